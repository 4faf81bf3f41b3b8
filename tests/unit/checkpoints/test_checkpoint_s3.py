"""The S3 store: what is in the bucket, damaged objects, what it costs, URIs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from elastic_runtime.checkpoint import open_store, validate_store_uri
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, PartWriter, opened_checkpoint
from elastic_runtime.checkpoint.manifest import Manifest
from elastic_runtime.checkpoint.objects import store, upload
from elastic_runtime.checkpoint.objects.bucket import CONNECTIONS
from elastic_runtime.checkpoint.s3 import S3Store
from elastic_runtime.errors import InvalidSettings
from tests.faulty_proxy import FaultyProxy, Refuse, matching
from tests.unit.checkpoints.s3_bench import LARGE, NOON, Place, newest, read_model, write

pytestmark = pytest.mark.usefixtures("small_pieces")


# What is in the bucket


def test_a_large_part_is_uploaded_in_pieces_and_comes_back_whole(checkpoints: Checkpoints, place: Place) -> None:
    content = os.urandom(LARGE)
    stored = write(checkpoints, 1, content)
    assert stored.manifest.parts[0].size == LARGE
    with opened_checkpoint(stored.uri) as again:
        assert read_model(again) == content
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


# Cost


def test_a_small_checkpoint_takes_few_requests(checkpoints: Checkpoints, proxy: FaultyProxy) -> None:
    checkpoints.claim()
    write(checkpoints, 1)
    proxy.seen.clear()
    write(checkpoints, 2)
    ours = [
        (request.method, re.sub(r"ckpt-[^/]*", "NAME", request.path.partition("/run")[2])) for request in proxy.seen
    ]
    mark, model, register = ("PUT", "/.draft-NAME"), ("PUT", "/NAME/model.pt"), ("GET", "/.register")
    manifest = ("PUT", "/NAME/manifest.json")
    assert sorted(ours[:4]) == sorted([mark, model, manifest, register])
    assert ours.index(mark) < min(ours.index(model), ours.index(manifest))
    assert ours[4] == ("PUT", "/.register")  # From here on it is durable.
    assert sorted(ours[5:]) == [("DELETE", "/.draft-NAME"), register]  # And what is there to retire?


def test_what_is_written_beside_a_checkpoint_delays_it_by_no_request(
    s3_store: S3Store, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.claim()
    put, manifest_goes, recorded = s3_store.bucket.put, threading.Event(), []

    def told(key: str, body: bytes, **condition: Any) -> None:
        if key.endswith("manifest.json"):
            manifest_goes.set()
        assert not key.endswith(".register") or recorded, "not visible before the record is written"
        put(key, body, **condition)

    monkeypatch.setattr(s3_store.bucket, "put", told)

    def model(stream: PartStream) -> None:
        stream.write(b"model")

    def record(name: str, manifest: Manifest, encoded: bytes) -> None:
        assert manifest_goes.wait(60.0)
        recorded.append((name, manifest.step, encoded))

    stored = checkpoints.write(1, NOON, {"model.pt": model}, record=record)

    assert stored is not None
    assert recorded == [(stored.name, 1, s3_store.read_manifest(stored.name))]


def test_a_part_that_is_refused_ends_a_checkpoint_of_many_before_all_are_made(
    checkpoints: Checkpoints, proxy: FaultyProxy, place: Place
) -> None:
    """And no more of them are in memory than connections there are."""
    made = []

    def part(name: str) -> PartWriter:
        def write_part(stream: PartStream) -> None:
            made.append(name)
            stream.write(b"x")

        return write_part

    proxy.fault = matching(Refuse(403, "AccessDenied"), "PUT", "/part-3")
    names = [f"part-{number}" for number in range(40)]
    with pytest.raises(InvalidSettings, match="AccessDenied"):
        checkpoints.write(1, NOON, {name: part(name) for name in names})
    assert len(made) <= 3 + CONNECTIONS + 1
    proxy.fault = lambda _request: None
    stored = checkpoints.write(2, NOON, {name: part(name) for name in names})
    assert stored is not None
    assert [each.name for each in stored.manifest.parts] == names


def test_leftovers_are_looked_for_every_five_minutes(
    checkpoints: Checkpoints, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(store, "_now", lambda: now)

    def looks() -> int:
        return sum(request.method == "GET" and "prefix=run%2F.draft-" in request.path for request in proxy.seen)

    write(checkpoints, 1)
    now += store.SWEEP - 1
    write(checkpoints, 2)
    assert looks() == 1
    now += 2
    write(checkpoints, 3)
    assert looks() == 2


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
