"""A server of Google's or Azure's kind that means no good, and secrets that no message may hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.azure import bucket as azure_bucket
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.gcs import bucket as gcs_bucket
from elastic_runtime.checkpoint.gcs import bucket as gcs_session
from elastic_runtime.checkpoint.objects.bucket import error_text
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from tests import azure_server, gcs_server
from tests.faulty_proxy import Refuse, Send, faulty_proxy, matching
from tests.unit.checkpoints.clouds_bench import LARGE, Cloud
from tests.unit.checkpoints.s3_bench import write

SECRET = "planted-in-credentials"
pytestmark = pytest.mark.usefixtures("no_pauses")


def test_a_sas_is_sent_and_in_no_message(az: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with faulty_proxy(az) as proxy:
        given = {
            "AZURE_STORAGE_CONNECTION_STRING": "",
            "AZURE_STORAGE_SERVICE_ENDPOINT": f"{proxy.url}/{azure_server.ACCOUNT}",
            "AZURE_STORAGE_SAS_TOKEN": f"?sv=2024-01-01&sig={SECRET}",
        }
        proxy.fault = lambda request: Refuse(403, "AuthenticationFailed", f"sig={SECRET}")
        store = open_store("az://container/run", given)
        with pytest.raises(InvalidSettings) as refused:
            store.claim(1)
        assert SECRET in proxy.seen[0].path
        store.close()
    store = open_store("az://container/run", given)
    with pytest.raises(StoreUnavailable) as away:
        store.claim(1)
    store.close()
    for error in (refused.value, away.value):
        assert SECRET not in str(error)
    assert SECRET not in caplog.text


def test_the_right_to_an_upload_is_in_no_log(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    cloud.proxy.fault = matching(
        Refuse(503, "ServerBusy"), "PUT", "upload_id=" if cloud.kind == "gs" else "comp=block&"
    )
    store = cloud.opened()
    with pytest.raises(StoreUnavailable) as refused:
        write(Checkpoints(store, fence=1, keep=2), 1, bytes(LARGE))
    store.close()
    assert cloud.proxy.count("PUT") > 4
    assert "upload_id" not in f"{refused.value} {caplog.text}"


@pytest.mark.parametrize(
    "key",
    [
        SECRET,
        json.dumps({"type": "service_account", "private_key": SECRET, "client_email": "a@b", "token_uri": "https://t"}),
        json.dumps({"type": "external_account", "credential_source": {"executable": {"command": "/bin/false"}}}),
        "[" * 100_000,
    ],
)
def test_a_key_of_google_that_is_none_is_not_quoted(key: str) -> None:
    with pytest.raises(
        InvalidSettings, match="ELASTIC_TRAINING_GCS_KEY is not the key of a service account"
    ) as refused:
        open_store("gs://bucket/run", {gcs_session.KEY_VARIABLE: key}).claim(1)
    assert SECRET not in str(refused.value)


def test_azure_credentials_that_are_none_are_not_quoted() -> None:
    for given in (
        {"AZURE_STORAGE_CONNECTION_STRING": SECRET},
        {
            "AZURE_STORAGE_CONNECTION_STRING": "",
            "AZURE_STORAGE_ACCOUNT_NAME": "abc",
            "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
        },
    ):
        with pytest.raises((InvalidSettings, StoreUnavailable)) as refused:
            open_store("az://container/run", given).claim(1)
        assert SECRET not in str(refused.value)


def test_an_upload_that_is_sent_elsewhere_is_given_up(gs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = gcs_bucket.GcsBucket(gcs_server.new_bucket(), "gs://b/run")
    with faulty_proxy(gs) as proxy:
        proxy.fault = lambda request: Send(
            {"Content-Length": "0", "Location": "http://203.0.113.1/upload?upload_id=x"}, lambda go_on: None
        )
        monkeypatch.setattr(bucket, "_uploads", f"{proxy.url}/upload/storage/v1/b/b/o")
        with pytest.raises(StoreUnavailable, match="names another one"):
            bucket.begin_upload("run/model.pt")
    bucket.close()


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_nobody_is_sent_elsewhere(
    kind: str, status: int, s3: str, gs: str, az: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host would be shown what is asked for, and an Authorization header or a SAS with it."""
    servers = {"s3": s3, "gs": gs, "az": az}
    with faulty_proxy(servers[kind]) as proxy, faulty_proxy(servers[kind]) as elsewhere:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_server.connection_string(proxy.url))
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        proxy.fault = lambda request: Send(
            {"Content-Length": "0", "Location": f"{elsewhere.url}{request.path}", "x-amz-bucket-region": "us-west-2"},
            lambda go_on: None,
            status,
        )
        store = open_store(f"{kind}://a-bucket/run")
        with pytest.raises((StoreUnavailable, InvalidSettings)):
            store.claim(1)
        store.close()
        assert proxy.seen
        assert elsewhere.seen == []


def test_a_library_s_words_are_not_told() -> None:
    inner = ConnectionRefusedError(111, "Connection refused")
    error = ValueError(f"https://host/?sig={SECRET}", inner)
    assert error_text(error) == "ValueError: Connection refused"
    assert error_text(ValueError(SECRET)) == "ValueError"


# A server that means no good


def test_an_answer_that_is_longer_than_asked_for_is_not_read(cloud: Cloud) -> None:
    store = cloud.opened()
    stored = write(Checkpoints(store, fence=1, keep=2), 1, bytes(1000))
    sent: list[object] = []

    def endless(go_on: Callable[[bytes], object]) -> None:
        for _ in range(64):
            sent.append(go_on(bytes(1 << 20)))

    headers = {"ETag": '"0x1"', "x-goog-generation": "1", "Content-Range": "bytes 0-999/1000"}
    for length in ({}, {"Content-Length": str(64 << 20)}):
        cloud.proxy.fault = lambda request, length=length: (
            Send({**headers, **length}, endless)
            if request.method == "GET" and "model.pt" in request.path and "fields" not in request.path
            else None
        )
        with pytest.raises(StoreUnavailable, match="does not send what it was asked for"):
            stored.open_part("model.pt")
    assert len(sent) < 64 * 2
    store.close()


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b"[" * 100_000, b'{"items":[{"name":"x"}]}', b"<a/>", b"<a"])
def test_a_listing_that_is_none_is_no_answer(cloud: Cloud, answer: bytes) -> None:
    store = cloud.opened()
    cloud.proxy.fault = lambda request: (
        Send({"Content-Length": str(len(answer))}, lambda go_on: go_on(answer)) if "prefix=" in request.path else None
    )
    with suppress(StoreUnavailable):
        assert store.bucket.objects("run/") == []
    store.close()


def test_a_listing_has_an_end(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gcs_bucket, azure_bucket):
        monkeypatch.setattr(module, "MOST_LISTED", 3)
        monkeypatch.setattr(module, "PAGE", 1)
    store = cloud.opened()
    for number in range(9):
        store.bucket.put(f"run/ckpt-{number}/x", b"")
    assert len(store.bucket.folders("run/ckpt-")) == 3
    assert len(store.bucket.objects("run/")) == 3
    store.close()
