"""The S3 store: damaged objects, writers that die or meet, and a server in trouble."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest

from elastic_runtime.checkpoint import open_store, validate_store_uri
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, StoredCheckpoint, open_checkpoint
from elastic_runtime.checkpoint.s3 import S3Store, bucket, store, upload
from elastic_runtime.errors import InvalidSettings, OwnershipLost, StoreUnavailable
from tests.faulty_proxy import Fault, FaultyProxy, Hold, LoseAnswer, Refuse, Request, Strip, faulty_proxy, matching
from tests.s3_server import new_bucket, s3_client

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PIECE = 5 << 20
"""Bytes: the least that S3 takes."""
LARGE = 2 * PIECE + 5
"""Bytes: three pieces, the last a small one."""


class Place:
    """A bucket as somebody else sees it."""

    def __init__(self, url: str) -> None:
        self.bucket = new_bucket()
        self.client = s3_client(url)

    def keys(self) -> list[str]:
        return sorted(each["Key"] for each in self.client.list_objects_v2(Bucket=self.bucket).get("Contents", ()))

    def uploads(self) -> list[Any]:
        return list(self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", ()))

    def read(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=key)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "PIECE", PIECE)


@pytest.fixture
def place(s3: str) -> Iterator[Place]:
    place = Place(s3)
    yield place
    place.client.close()


@pytest.fixture
def s3_store(place: Place) -> Iterator[S3Store]:
    store = S3Store(f"s3://{place.bucket}/run")
    yield store
    store.close()


@pytest.fixture
def checkpoints(s3_store: S3Store) -> Checkpoints:
    return Checkpoints(s3_store, fence=1, keep=2)


@pytest.fixture
def other(place: Place) -> Iterator[Checkpoints]:
    """A newer owner of the same run, elsewhere."""
    store = S3Store(f"s3://{place.bucket}/run")
    yield Checkpoints(store, fence=2, keep=2)
    store.close()


@pytest.fixture
def proxy(s3_url: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """In front of the server, for stores whose first request comes after this."""
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        yield proxy


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that botocore would have waited before trying again; it does not."""
    pauses: list[float] = []

    class NoTime:
        sleep = staticmethod(pauses.append)

    monkeypatch.setattr("botocore.endpoint.time", NoTime)
    return pauses


def write(checkpoints: Checkpoints, step: int, content: bytes | None = None) -> StoredCheckpoint:
    def model(stream: PartStream) -> None:
        stream.write(f"model of step {step}".encode() if content is None else content)

    return checkpoints.write(step, NOON + timedelta(seconds=step), {"model.pt": model})


def read_model(stored: StoredCheckpoint) -> bytes:
    with stored.open_part("model.pt") as stream:
        return stream.read()


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []
    found = checkpoints.newest(read_model, lambda uri, reason: skipped.append((uri, reason)))
    return (None if found is None else found[0].manifest.step), skipped


# What is in the bucket


def test_a_large_part_is_uploaded_in_pieces_and_comes_back_whole(checkpoints: Checkpoints, place: Place) -> None:
    content = os.urandom(LARGE)
    stored = write(checkpoints, 1, content)
    assert stored.manifest.parts[0].size == LARGE
    assert read_model(open_checkpoint(stored.uri)) == content
    head = place.client.head_object(Bucket=place.bucket, Key=f"run/{stored.name}/model.pt")
    assert head["ETag"].strip('"').endswith("-3")
    assert place.uploads() == []


def test_only_the_register_and_whole_checkpoints_stay(checkpoints: Checkpoints, place: Place) -> None:
    names = [write(checkpoints, step).name for step in (1, 2, 3)][1:]
    parts = [f"run/{name}/{part}" for name in names for part in ("manifest.json", "model.pt")]
    assert place.keys() == ["run/.register", *sorted(parts)]


def test_pieces_are_of_sizes_that_s3_takes_and_enough_for_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sizes = [upload.piece_size(number) for number in range(1, 10_001)]
    assert min(sizes) >= 5 << 20
    assert max(sizes) <= 5 << 30
    assert sum(sizes) > 3 << 40


def truncate(content: bytes) -> bytes:
    return content[:-1]


def alter(content: bytes) -> bytes:
    return content[:3] + bytes([content[3] ^ 1]) + content[4:]


def lose(content: bytes) -> None:
    return None


@pytest.mark.parametrize("part", ["model.pt", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, alter, lose])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    checkpoints: Checkpoints, place: Place, part: str, damage: Callable[[bytes], bytes | None]
) -> None:
    write(checkpoints, 1)
    broken = write(checkpoints, 2)
    key = f"run/{broken.name}/{part}"
    content = damage(place.read(key))
    if content is None:
        place.delete(key)
    else:
        place.write(key, content)
    step, skipped = newest(checkpoints)
    assert step == 1
    assert [uri for uri, _ in skipped] == [broken.uri]
    assert any(word in skipped[0][1] for word in ("torn", "altered", "bytes", "cannot be read"))


@pytest.mark.parametrize("content", [None, b'{"fence":"high"}'])  # others that are no document: test_documents
def test_without_a_readable_register_whole_checkpoints_are_found_again(
    checkpoints: Checkpoints, place: Place, content: bytes | None
) -> None:
    for step in (1, 2):
        write(checkpoints, step)
    place.write("run/half/model.pt", b"of somebody who was killed")
    if content is None:
        place.delete("run/.register")
    else:
        place.write("run/.register", content)
    assert newest(checkpoints) == (2, [])
    checkpoints.claim()
    assert newest(checkpoints) == (2, [])
    write(checkpoints, 3)
    assert newest(checkpoints) == (3, [])


def test_objects_that_are_none_of_ours_are_left_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SILENCE", -3600.0)
    foreign = ["run/notes.txt", "run/data/shard-0", "runs/other", "other/.draft-x", "ckpt"]
    for key in foreign:
        place.write(key, b"mine")
    place.client.create_multipart_upload(Bucket=place.bucket, Key="run/data/shard-1")
    for prefix in ("", "/run"):
        s3_store = S3Store(f"s3://{place.bucket}{prefix}")
        for step in (1, 2, 3):
            write(Checkpoints(s3_store, fence=1, keep=1), step)
        s3_store.close()
    assert set(foreign) <= set(place.keys())
    assert [each["Key"] for each in place.uploads()] == ["run/data/shard-1"]


# Writers that die, and writers that are taken for dead

KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.s3 import upload
upload.PIECE = 5 << 20
def model(stream):
    stream.write(bytes(11 << 20))
def optimizer(stream):
    stream.write(bytes(11 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
Checkpoints(open_store(sys.argv[1]), 1, 2).write(7, datetime.now(UTC), {"model.pt": model, "optimizer.pt": optimizer})
"""


def test_a_writer_that_was_killed_leaves_nothing_to_find_and_is_swept_up(
    checkpoints: Checkpoints, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, checkpoints.store.uri], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [each["Key"].rpartition("/")[2] for each in place.uploads()] == ["optimizer.pt"]
    left = place.keys()
    assert newest(checkpoints) == (None, [])

    write(checkpoints, 1)
    assert set(left) < set(place.keys()), "whoever has written a moment ago may be alive"
    assert len(place.uploads()) == 1

    monkeypatch.setattr(store, "SILENCE", -1.0)
    alive = write(checkpoints, 2).name
    assert place.uploads() == []
    assert not set(left) & set(place.keys())
    assert checkpoints.store.names()[-1] == alive
    assert newest(checkpoints) == (2, [])


def test_a_writer_at_work_touches_its_marker(
    checkpoints: Checkpoints, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(0, 10**6, 61))
    monkeypatch.setattr(store, "_now", lambda: float(next(seconds)))
    monkeypatch.setattr(store, "STANDSTILL", 1e9)
    write(checkpoints, 1, bytes(LARGE))
    assert proxy.count("PUT", "/.draft-") == 1 + 3


def test_a_writer_that_stood_still_does_not_publish_what_may_be_swept_already(
    checkpoints: Checkpoints, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter([0.0, store.STANDSTILL + 1])
    monkeypatch.setattr(store, "_now", lambda: next(moments))
    with pytest.raises(StoreUnavailable, match="stood still"):
        write(checkpoints, 1)
    assert place.keys() == []


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_writer_whose_upload_was_swept_says_so(
    checkpoints: Checkpoints, proxy: FaultyProxy, place: Place, method: str
) -> None:
    proxy.fault = matching(Refuse(404, "NoSuchUpload"), method, "uploadId=")
    with pytest.raises(StoreUnavailable, match="as if its writer were dead"):
        write(checkpoints, 1, bytes(LARGE))
    assert place.keys() == []


def test_a_reader_of_what_is_being_deleted_takes_another(checkpoints: Checkpoints, s3_store: S3Store) -> None:
    write(checkpoints, 1)
    old = write(checkpoints, 2)
    reasons: list[str] = []

    def read(stored: StoredCheckpoint) -> int:
        if stored.name == old.name:
            s3_store.delete(old.name)
        stored.open_part("model.pt").close()
        return stored.manifest.step

    found = checkpoints.newest(read, lambda uri, reason: reasons.append(reason))
    assert found is not None
    assert found[1] == 1
    assert reasons == ["its model.pt cannot be read: there is none"]


# Two writers alive at once


def test_of_many_that_claim_at_once_the_highest_wins(place: Place) -> None:
    stores = [S3Store(f"s3://{place.bucket}/run") for _ in range(6)]
    lost: list[int] = []
    start = threading.Barrier(len(stores))

    def claim(fence: int, store: S3Store) -> None:
        start.wait()
        try:
            store.claim(fence)
        except OwnershipLost:
            lost.append(fence)

    threads = [threading.Thread(target=claim, args=each) for each in enumerate(stores, start=1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].register.read().fence == 6
    assert 6 not in lost
    for fence, each in enumerate(stores, start=1):
        if fence < 6:
            with pytest.raises(OwnershipLost, match=f"its fence is 6, ours is {fence}"):
                each.claim(fence)
        each.close()


@pytest.mark.parametrize("moment", ["/model.pt", "/manifest.json", "/.register"])
def test_a_writer_that_is_replaced_at_any_moment_publishes_nothing(
    checkpoints: Checkpoints, other: Checkpoints, proxy: FaultyProxy, place: Place, moment: str
) -> None:
    write(other, 5)
    other.store.register.change(lambda entries: type(entries)(1, entries.published))  # type: ignore[attr-defined]
    held, go_on = threading.Event(), threading.Event()

    def fault(request: Request) -> Fault:
        if request.method == "PUT" and moment in request.path and not held.is_set():
            held.set()
            return Hold(go_on)
        return None

    proxy.fault = fault
    errors: list[Exception] = []

    def old_writer() -> None:
        try:
            write(checkpoints, 9)
        except OwnershipLost as error:
            errors.append(error)

    thread = threading.Thread(target=old_writer)
    thread.start()
    assert held.wait(30)
    other.claim()  # through the same proxy, which holds nothing more
    go_on.set()
    thread.join()
    assert [str(error) for error in errors] == [
        f"{checkpoints.store.uri} belongs to a newer owner: its fence is 2, ours is 1"
    ]
    assert newest(other) == (5, [])
    assert "s000000000009" not in " ".join(place.keys())


def test_two_writers_with_one_fence_publish_both(checkpoints: Checkpoints, place: Place) -> None:
    """A rank 0 that leaves, whose last write is still under way, and its successor."""
    late = S3Store(f"s3://{place.bucket}/run")
    with late.begin("ckpt-f1-s1-t1-aa") as draft:
        with draft.part("model.pt") as stream:
            stream.write(b"one")
        write(checkpoints, 2)
        draft.publish(b"manifest", fence=1)
    assert [name[:9] for name in late.names()] == ["ckpt-f000", "ckpt-f1-s"]
    late.close()


# A server in trouble


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
    monkeypatch.setitem(bucket._TIMEOUTS, "read_timeout", 0.1)
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


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_server_that_ignores_conditions_is_refused(checkpoints: Checkpoints, proxy: FaultyProxy, header: str) -> None:
    proxy.fault = lambda request: Strip(header)
    with pytest.raises(InvalidSettings, match=f"ignores the header {header}.*Use one that knows conditional writes"):
        checkpoints.claim()


def test_no_room_for_the_copy_names_the_folder(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    stored = write(checkpoints, 1)
    full = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(store.tempfile, "TemporaryFile", lambda: full)
    with pytest.raises(StoreUnavailable, match=r"no copy of .*/model\.pt in .* \(TMPDIR\): No space left"):
        read_model(stored)
    assert full.closed


# Cost


def test_a_small_checkpoint_takes_few_requests(checkpoints: Checkpoints, proxy: FaultyProxy) -> None:
    checkpoints.claim()
    write(checkpoints, 1)
    proxy.seen.clear()
    write(checkpoints, 2)
    ours = [
        (request.method, re.sub(r"ckpt-[^/]*", "NAME", request.path.partition("/run")[2])) for request in proxy.seen
    ]
    assert ours[0][0] == "GET"  # leftovers? then: we are at work
    assert ours[1:] == [
        *[("PUT", "/.draft-NAME"), ("PUT", "/NAME/model.pt"), ("PUT", "/NAME/manifest.json")],
        *[("GET", "/.register"), ("PUT", "/.register"), ("DELETE", "/.draft-NAME")],
        ("GET", "/.register"),  # what is there to retire?
    ]


def test_nothing_beyond_the_prefix_is_listed(checkpoints: Checkpoints, proxy: FaultyProxy) -> None:
    for step in (1, 2, 3):
        write(checkpoints, step)
    listings = [request.path for request in proxy.seen if request.method == "GET" and "list-type=2" in request.path]
    assert listings
    assert all("prefix=run%2F" in path for path in listings)


def test_a_prepared_store_has_its_client(s3_store: S3Store, checkpoints: Checkpoints, place: Place) -> None:
    checkpoints.prepare()
    assert "_client" in vars(s3_store.bucket)
    assert place.keys() == []


def test_preparing_a_store_that_is_away_is_no_error(
    checkpoints: Checkpoints, proxy: FaultyProxy, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    proxy.fault = matching(Refuse(503, "SlowDown"))
    checkpoints.prepare()
    assert "the checkpoint store is not ready" in caplog.text


# URIs


@pytest.mark.parametrize("uri", ["s3://bucket/run", "s3://my.bucket-1/a b/c/", "s3://bucket"])
def test_a_uri_of_a_bucket_is_taken(uri: str) -> None:
    validate_store_uri(uri)
    assert open_store(uri).uri == uri.rstrip("/")


@pytest.mark.parametrize("uri", ["s3://", "s3:///run", "s3://key:secret@bucket/run", "s3://-/run", "s3:bucket/run"])
def test_a_uri_without_a_bucket_is_refused(uri: str) -> None:
    with pytest.raises(InvalidSettings, match=r"no valid name of a bucket\. Write s3://bucket/prefix"):
        validate_store_uri(uri)


def test_checking_a_uri_does_not_import_boto3() -> None:
    program = (
        "import sys, elastic_runtime.checkpoint as c; c.validate_store_uri('s3://bucket/run'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert {"boto3", "botocore", "cattrs"}.isdisjoint(done.stdout.split())
