"""The S3 store and a server in trouble: what passes, what lasts, what nobody but the user can help."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import boto3
import pytest

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.objects import store
from elastic_runtime.checkpoint.s3 import S3Store, bucket
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from tests.faulty_proxy import Fault, FaultyProxy, Hold, LoseAnswer, Refuse, Request, Strip, matching
from tests.s3_server import NAMED
from tests.unit.checkpoints.s3_bench import LARGE, Place, newest, read_model, write

pytestmark = pytest.mark.usefixtures("small_pieces")
by_proxy = pytest.mark.skipif(
    NAMED in os.environ,
    reason="the proxy makes a server like this of moto's; a real one has signatures and ways of its own",
)


@pytest.mark.parametrize(
    ("fault", "request_of"),
    [
        # The harder fault, since the request that is sent again meets what the first has done.
        (LoseAnswer(), "/model.pt"),
        (LoseAnswer(), "partNumber=2"),
        (LoseAnswer(), "/manifest.json"),
        (LoseAnswer(), "/.register"),
        (LoseAnswer(), "/.draft-"),
        # Sent again alike, whatever it asks for.
        (Refuse(500, "InternalError"), "partNumber=2"),
        (Refuse(503, "SlowDown"), "/.register"),
    ],
)
def test_a_fault_that_passes_is_not_noticed(
    checkpoints: Checkpoints, proxy: FaultyProxy, place: Place, pauses: list[float], fault: Fault, request_of: str
) -> None:
    checkpoints.claim()
    write(checkpoints, 1)
    proxy.fault = matching(fault, "PUT", request_of, times=2)
    stored = write(checkpoints, 2, bytes(LARGE) if "part" in request_of else None)
    assert len(pauses) == 2
    assert checkpoints.store.names()[-1] == stored.name
    assert len(checkpoints.store.names()) == 2
    assert ".draft" not in " ".join(place.keys())


@pytest.mark.parametrize(
    ("fault", "method", "request_of"),
    [
        (Refuse(500, "InternalError"), "PUT", "/model.pt"),
        (Refuse(503, "SlowDown"), "PUT", "/manifest.json"),
        (Refuse(500, "InternalError"), "PUT", "/.register"),
        (Refuse(503, "SlowDown"), "GET", "/.register"),
        (Refuse(503, "SlowDown"), "PUT", "partNumber=3"),
    ],
)
def test_a_fault_that_lasts_costs_one_checkpoint_and_nothing_stays(
    checkpoints: Checkpoints, proxy: FaultyProxy, place: Place, pauses: list[float],
    fault: Refuse, method: str, request_of: str
) -> None:  # fmt: skip
    write(checkpoints, 1)
    before = place.keys()
    proxy.fault = matching(fault, method, request_of)
    with pytest.raises(
        StoreUnavailable, match=rf"s3://{place.bucket}/run, .*said the test \({fault.code}, HTTP status"
    ):
        write(checkpoints, 2, bytes(LARGE) if "part" in request_of else None)
    assert 3 <= len(pauses) <= 12
    assert all(pause <= 8 for pause in pauses)
    proxy.fault = lambda request: None
    assert newest(checkpoints) == (1, [])
    if method == "PUT" and "register" not in request_of:
        assert place.keys() == before
        assert place.uploads() == []
    write(checkpoints, 3)
    assert newest(checkpoints) == (3, [])


def test_a_server_that_does_not_answer_is_given_up(
    checkpoints: Checkpoints, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setattr(bucket, "READ_TIMEOUT", 0.1)
    go_on = threading.Event()
    proxy.fault = matching(Hold(go_on), "GET", "/.register")
    with pytest.raises(StoreUnavailable, match="Read timeout"):
        checkpoints.claim()
    assert len(pauses) == 3
    go_on.set()


def test_nobody_there_is_unavailable(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match="Could not connect"):
        checkpoints.claim()


def test_what_the_user_says_of_retries_goes(
    checkpoints: Checkpoints, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    proxy.fault = matching(Refuse(503, "SlowDown"), "GET")
    with pytest.raises(StoreUnavailable):
        checkpoints.claim()
    assert len(pauses) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Refuse(403, "AccessDenied"), r"said the test \(AccessDenied\). Give the workers' credentials s3:GetObject"),
        (Refuse(403, "InvalidAccessKeyId"), "credentials that the server knows"),
        (Refuse(400, "AuthorizationHeaderMalformed"), "Set AWS_REGION"),
        (Refuse(501, "NotImplemented"), "conditional writes"),
    ],
)
def test_a_refusal_for_good_names_the_remedy(
    checkpoints: Checkpoints, proxy: FaultyProxy, place: Place, fault: Fault, message: str
) -> None:
    proxy.fault = lambda request: fault
    with pytest.raises(
        InvalidSettings, match=rf"^checkpoint: s3://{place.bucket}/run, reading run/.register: .*{message}"
    ):
        checkpoints.claim()


def test_expired_credentials_may_be_renewed(checkpoints: Checkpoints, proxy: FaultyProxy, pauses: list[float]) -> None:
    proxy.fault = lambda request: Refuse(400, "ExpiredToken")
    with pytest.raises(StoreUnavailable, match="ExpiredToken"):
        checkpoints.claim()


def test_a_bucket_that_is_not_there_is_named(s3: str) -> None:
    missing = S3Store("s3://no-such-bucket-here/run")
    with pytest.raises(InvalidSettings, match=r"NoSuchBucket.*Create the bucket"):
        missing.claim(1)
    missing.close()


def test_no_credentials_is_said(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(InvalidSettings, match=r"Unable to locate credentials.*AWS_ACCESS_KEY_ID"):
        checkpoints.claim()


def test_without_boto3_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidSettings, match=r"needs boto3.*elastic-runtime\[s3\]"):
        open_store("s3://bucket/run").names()


@by_proxy
@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_server_that_ignores_conditions_is_refused(checkpoints: Checkpoints, proxy: FaultyProxy, header: str) -> None:
    proxy.fault = lambda request: Strip(header)
    with pytest.raises(InvalidSettings, match=f"ignores the header {header}.*Use one that knows conditional writes"):
        checkpoints.claim()


@by_proxy
@pytest.mark.parametrize("quoted", [True, False])
def test_a_server_that_compares_versions_only_in_one_spelling_is_understood(
    checkpoints: Checkpoints, proxy: FaultyProxy, quoted: bool
) -> None:
    def only(request: Request) -> Fault:
        version = request.headers.get("If-Match")
        return Refuse(412, "PreconditionFailed") if version and version.startswith('"') != quoted else None

    proxy.fault = only
    write(checkpoints, 1)
    write(checkpoints, 2)
    proxy.seen.clear()
    write(checkpoints, 3)
    assert newest(checkpoints)[0] == 3
    assert {only(request) for request in proxy.seen} == {None}, "it was found out once"


@by_proxy
def test_a_server_that_compares_versions_in_one_spelling_and_ignores_the_other_is_refused(
    checkpoints: Checkpoints, proxy: FaultyProxy
) -> None:
    write(checkpoints, 1)

    def ignores(request: Request) -> Fault:
        version = request.headers.get("If-Match", "")
        return Refuse(412, "PreconditionFailed") if version.startswith('"') else Strip("If-Match")

    proxy.fault = ignores
    with pytest.raises(InvalidSettings, match="ignores the header If-Match"):
        write(checkpoints, 2)


def test_no_room_for_the_copy_names_the_folder(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    stored = write(checkpoints, 1)
    full = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(store.tempfile, "TemporaryFile", lambda: full)
    with pytest.raises(StoreUnavailable, match=r"no copy of .*/model\.pt in .* \(TMPDIR\): No space left"):
        read_model(stored)
    assert full.closed
