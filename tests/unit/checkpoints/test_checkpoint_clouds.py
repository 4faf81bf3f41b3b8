"""The stores of Google and Azure: what is in the bucket, faults, and who the ranks are.

What holds for every store is in ``test_checkpoint_store.py``; what follows from a fault in the tests of S3's, whose
upload, download and register these two share.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.azure import bucket as azure_client
from elastic_runtime.checkpoint.checkpoints import Checkpoints, opened_checkpoint
from elastic_runtime.checkpoint.gcs import bucket as gcs_bucket
from elastic_runtime.checkpoint.objects import store as object_store
from elastic_runtime.checkpoint.objects.bucket import Bucket, Changed
from elastic_runtime.checkpoint.objects.store import ObjectStore
from elastic_runtime.errors import InvalidSettings, OwnershipLost, StoreUnavailable
from tests import azure_server
from tests.faulty_proxy import Fault, Hold, LoseAnswer, Refuse, Request, Send, matching
from tests.unit.checkpoints.clouds_bench import LARGE, PIECE, Cloud
from tests.unit.checkpoints.s3_bench import newest, read_model, write

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def store(cloud: Cloud) -> Iterator[ObjectStore]:
    store = cloud.opened()
    yield store
    store.close()


@pytest.fixture
def checkpoints(store: ObjectStore) -> Checkpoints:
    return Checkpoints(store, fence=1, keep=2)


def keys(store: ObjectStore) -> list[str]:
    return sorted(each.key for each in store.bucket.objects(""))


def test_a_large_part_is_uploaded_in_pieces_and_comes_back_whole(
    checkpoints: Checkpoints, store: ObjectStore, cloud: Cloud
) -> None:
    content = os.urandom(LARGE)
    stored = write(checkpoints, 1, content)
    with opened_checkpoint(stored.uri) as again:
        assert read_model(again) == content
    assert cloud.proxy.count("PUT", "upload_id=" if cloud.kind == "gs" else "comp=block&") == 3
    assert keys(store) == ["run/.register", f"run/{stored.name}/manifest.json", f"run/{stored.name}/model.pt"]
    assert store.bucket.uploads("run/") == []


def test_only_the_newest_stay_and_what_others_put_there(checkpoints: Checkpoints, store: ObjectStore) -> None:
    store.bucket.put("run/notes.txt", b"mine")
    names = [write(checkpoints, step).name for step in (1, 2, 3)][1:]
    parts = [f"run/{name}/{part}" for name in names for part in ("manifest.json", "model.pt")]
    assert keys(store) == ["run/.register", *sorted(parts), "run/notes.txt"]


def test_what_a_writer_that_died_has_left_is_swept_up(
    checkpoints: Checkpoints, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = "ckpt-f1-s1-t1-aa"
    store.mark(dead)
    key = store.key(dead, "model.pt")
    begun = store.bucket.begin_upload(key)
    store.bucket.upload_piece(key, begun, 1, bytes(PIECE), last=False)
    store.bucket.put(store.key(dead, "optimizer.pt"), b"half")
    monkeypatch.setattr(object_store, "SILENCE", -3600.0)
    write(checkpoints, 2)
    assert dead not in " ".join(keys(store))
    assert store.bucket.uploads("run/") == []


def test_without_a_register_whole_checkpoints_are_found_again(checkpoints: Checkpoints, store: ObjectStore) -> None:
    for step in (1, 2):
        write(checkpoints, step)
    store.bucket.put("run/ckpt-f1-s9-t1-aa/model.pt", b"of somebody who was killed")
    store.bucket.delete("run/.register")
    assert newest(checkpoints) == (2, [])


def test_of_many_that_claim_at_once_the_highest_wins(cloud: Cloud) -> None:
    stores = [cloud.opened() for _ in range(5)]
    lost: list[int] = []
    start = threading.Barrier(len(stores))

    def claim(fence: int, store: ObjectStore) -> None:
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
    assert stores[0].register.read().fence == 5
    assert 5 not in lost
    for each in stores:
        each.close()


@pytest.mark.parametrize("moment", ["model.pt", "manifest.json", ".register"])
def test_a_writer_that_is_replaced_at_any_moment_publishes_nothing(
    checkpoints: Checkpoints, store: ObjectStore, cloud: Cloud, moment: str
) -> None:
    checkpoints.claim()
    other = cloud.opened()
    held, go_on = threading.Event(), threading.Event()

    def fault(request: Request) -> Fault:
        if request.method in ("PUT", "POST") and moment in request.path and not held.is_set():
            held.set()
            return Hold(go_on)
        return None

    cloud.proxy.fault = fault
    errors: list[Exception] = []

    def old_writer() -> None:
        try:
            write(checkpoints, 9)
        except OwnershipLost as error:
            errors.append(error)

    thread = threading.Thread(target=old_writer)
    thread.start()
    assert held.wait(30)
    other.claim(2)
    go_on.set()
    thread.join()
    assert [str(error) for error in errors] == [f"{cloud.uri} belongs to a newer owner: its fence is 2, ours is 1"]
    assert keys(other) == ["run/.register"]
    other.close()


@pytest.mark.parametrize("text", ["model.pt", "manifest.json", ".register", ".draft-"])
@pytest.mark.parametrize("fault", [LoseAnswer(), Refuse(503, "ServerBusy")])
def test_a_fault_that_passes_is_not_noticed(
    checkpoints: Checkpoints, store: ObjectStore, cloud: Cloud, fault: Fault, text: str
) -> None:
    checkpoints.claim()
    method = "POST" if cloud.kind == "gs" else "PUT"
    cloud.proxy.fault = matching(fault, method, text, times=1)
    stored = write(checkpoints, 2)
    assert store.names() == [stored.name]
    assert ".draft" not in " ".join(keys(store))


@pytest.mark.parametrize("text", ["model.pt", "manifest.json", ".register"])
def test_a_fault_that_lasts_costs_one_checkpoint_and_nothing_stays(
    checkpoints: Checkpoints, store: ObjectStore, cloud: Cloud, text: str
) -> None:
    write(checkpoints, 1)
    before = keys(store)
    method = "POST" if cloud.kind == "gs" else "PUT"
    cloud.proxy.fault = matching(Refuse(503, "ServerBusy"), method, text)
    with pytest.raises(StoreUnavailable, match=rf"^{cloud.uri}, writing run/.*503"):
        write(checkpoints, 2)
    assert cloud.proxy.count(method, text) <= 1 + 4 * 3
    cloud.proxy.fault = lambda request: None
    assert newest(checkpoints) == (1, [])
    if text != ".register":
        assert keys(store) == before


def test_a_piece_that_is_not_kept_whole_is_noticed(checkpoints: Checkpoints, cloud: Cloud) -> None:
    if cloud.kind == "gs":
        answer = Send({"Content-Length": "0"}, lambda go_on: None)  # It says that all is there.
        cloud.proxy.fault = matching(answer, "PUT", "upload_id=")
        expected = "has not kept all of it"
    else:
        cloud.proxy.fault = matching(Refuse(400, "InvalidBlockList"), "PUT", "comp=blocklist")
        expected = "as if its writer were dead"
    with pytest.raises(StoreUnavailable, match=expected):
        write(checkpoints, 1, bytes(LARGE))


def test_a_server_that_ignores_conditions_is_refused(
    checkpoints: Checkpoints, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.bucket.put
    monkeypatch.setattr(store.bucket, "put", lambda key, body, **condition: put(key, body))
    with pytest.raises(InvalidSettings, match=r"ignores the (header If-None-Match|condition ifGenerationMatch=0)"):
        checkpoints.claim()


def test_a_bucket_that_is_not_there_is_named(cloud: Cloud) -> None:
    missing = open_store(f"{cloud.kind}://no-such-bucket-here/run")
    with pytest.raises(InvalidSettings, match=r"Create the (bucket|container)"):
        missing.claim(1)
    missing.close()


def test_rights_that_are_missing_are_named(checkpoints: Checkpoints, cloud: Cloud) -> None:
    cloud.proxy.fault = lambda request: Refuse(403, "AuthorizationPermissionMismatch")
    with pytest.raises(InvalidSettings, match=r"objectUser|Storage Blob Data Contributor"):
        checkpoints.claim()


@pytest.mark.parametrize("act", ["delete", "objects"])
def test_rights_to_write_alone_are_enough_to_write(
    checkpoints: Checkpoints,
    store: ObjectStore,
    act: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is swept up or retired then, and the log says so once each."""

    def refused(key: str) -> None:
        raise InvalidSettings("checkpoint", f"{key}: AuthorizationFailure", "Give the right")

    monkeypatch.setattr(object_store, "SWEEP", -1.0)
    monkeypatch.setattr(object_store, "SILENCE", -3600.0)
    checkpoints.claim()
    monkeypatch.setattr(store.bucket, act, refused)
    for step in (1, 2, 3, 4):
        write(checkpoints, step)
    assert newest(checkpoints) == (4, [])
    assert sum("old ones stay" in record.getMessage() for record in caplog.records) == 1
    assert sum("have left stays: the store refuses" in record.getMessage() for record in caplog.records) == 1


def test_nobody_there_is_unavailable(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_server.connection_string("http://127.0.0.1:9"))
    store = cloud.opened()
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        store.claim(1)
    store.close()


def test_a_server_that_does_not_answer_is_given_up(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_bucket, "READ_TIMEOUT", 0.1)
    monkeypatch.setattr(azure_client, "READ_TIMEOUT", 0.1)
    go_on = threading.Event()
    cloud.proxy.fault = matching(Hold(go_on), "GET", "register")
    store = cloud.opened()
    with pytest.raises(StoreUnavailable, match=r"(?i)time|response"):
        store.claim(1)
    go_on.set()
    store.close()


# Who the ranks are


def conditional(bucket: Bucket, **condition: Any) -> bool:
    try:
        bucket.put("run/x", b"", **condition)
    except Changed:
        return False
    return True


def test_conditions_hold(store: ObjectStore) -> None:
    assert not conditional(store.bucket, version=store.bucket.no_version)
    assert conditional(store.bucket, new=True)
    assert not conditional(store.bucket, new=True)
    _, version = store.bucket.get("run/x", 10)
    assert conditional(store.bucket, version=version)
    assert not conditional(store.bucket, version=version)
