"""Writers of the S3 store that die, that are taken for dead, and that meet."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.checkpoint.objects import store
from elastic_runtime.checkpoint.s3 import S3Store
from elastic_runtime.errors import OwnershipLost, StoreUnavailable
from tests.faulty_proxy import Fault, FaultyProxy, Hold, Refuse, Request, matching
from tests.unit.checkpoints.s3_bench import LARGE, Place, newest, write

pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.fixture
def other(place: Place) -> Iterator[Checkpoints]:
    """A newer owner of the same run, elsewhere."""
    store = S3Store(f"s3://{place.bucket}/run")
    yield Checkpoints(store, fence=2, keep=2)
    store.close()


# Writers that die, and writers that are taken for dead

KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.objects import upload
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
    monkeypatch.setattr(store, "SWEEP", -1.0)
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
    moments = iter([0.0, 0.0, 0.0, store.STANDSTILL + 1])
    monkeypatch.setattr(store, "_now", lambda: next(moments))
    with pytest.raises(StoreUnavailable, match="stood still"):
        write(checkpoints, 1)
    assert place.keys() == []


def test_a_writer_that_waits_for_others_is_at_work(
    s3_store: S3Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(store, "_now", lambda: now[0])
    with s3_store.begin("ckpt-f1-s1-t1-aa") as draft:
        for _ in range(10):
            now[0] += store.TOUCH + 1
            assert draft.read("parts-00001.json", 10) is None
            place.read("run/.draft-ckpt-f1-s1-t1-aa")
            place.delete("run/.draft-ckpt-f1-s1-t1-aa")
        draft.publish(b"manifest", fence=1)
    assert s3_store.names() == ["ckpt-f1-s1-t1-aa"]


def test_a_writer_that_stood_still_while_it_waited_does_not_publish(
    s3_store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(store, "_now", lambda: now[0])
    with s3_store.begin("ckpt-f1-s1-t1-aa") as draft:
        now[0] += store.STANDSTILL + 1
        draft.read("parts-00001.json", 10)
        with pytest.raises(StoreUnavailable, match="stood still"):
            draft.publish(b"manifest", fence=1)
    assert s3_store.names() == []


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
    assert reasons == ["its model.pt cannot be read: it is not in the store"]


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
