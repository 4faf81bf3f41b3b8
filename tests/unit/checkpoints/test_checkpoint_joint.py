"""One checkpoint by several writers, on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from elastic_runtime.checkpoint import joint as joints
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, StoredCheckpoint, opened_checkpoint
from elastic_runtime.checkpoint.joint import Joint
from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.errors import InvalidDocument, OwnershipLost, StoreUnavailable

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@contextmanager
def writers(store: CheckpointStore, count: int) -> Iterator[Callable[[Joint], Future[StoredCheckpoint | None]]]:
    """Processes, here threads, each with a store of its own."""
    stores = [open_store(store.uri) for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        yield lambda joint: threads.submit(write, Checkpoints(stores[joint.writer], 1, 1), joint)
    for each in stores:
        each.close()


def write(checkpoints: Checkpoints, joint: Joint) -> StoredCheckpoint | None:
    def content(stream: PartStream) -> None:
        stream.write(f"of writer {joint.writer}".encode())

    return checkpoints.write(5, NOON, {f"part-{joint.writer}.pt": content}, joint=joint)


def share(store: CheckpointStore, writer: int, count: int = 3) -> Joint:
    return Joint(Checkpoints(store, 1, 1).new_name(5, NOON), writer, count)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_it_is_there_once_all_have_written(store: CheckpointStore, order: tuple[int, ...]) -> None:
    first = share(store, 0)
    with writers(store, 3) as begin:
        ends = {writer: begin(replace(first, writer=writer)) for writer in order}
        stored = ends[0].result()
        assert (ends[1].result(), ends[2].result()) == (None, None)
    assert stored is not None
    with opened_checkpoint(stored.uri) as again:
        assert [part.name for part in again.manifest.parts] == ["part-0.pt", "part-1.pt", "part-2.pt"]
        for writer in range(3):
            with again.open_part(f"part-{writer}.pt") as stream:
                assert stream.read() == f"of writer {writer}".encode()
    store.delete(first.name)
    assert store.names() == []


def test_nothing_is_there_where_a_writer_is_lost(store: CheckpointStore) -> None:
    first = share(store, 0)
    with writers(store, 3) as begin:
        ends = [begin(first), begin(replace(first, writer=1))]
        assert ends[1].result() is None
        first.given_up.set()
        with pytest.raises(StoreUnavailable, match=f"rank 2 has not written its part of {first.name}"):
            ends[0].result()
    assert store.names() == []


def test_a_writer_waits_no_longer_than_its_timeout(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joints, "WRITER_TIMEOUT", 0.0)
    with pytest.raises(StoreUnavailable, match="rank 1 has not written its part"):
        write(Checkpoints(store, 1, 1), share(store, 0, 2))
    assert store.names() == []


def test_a_writer_of_an_earlier_owner_publishes_nothing(store: CheckpointStore) -> None:
    store.claim(2)
    first = share(store, 0, 2)
    with writers(store, 2) as begin:
        ends = [begin(first), begin(replace(first, writer=1))]
        ends[1].result()
        with pytest.raises(OwnershipLost):
            ends[0].result()
    assert store.names() == []


def test_a_record_that_names_another_place_is_refused(store: CheckpointStore) -> None:
    first = share(store, 0, 2)
    with store.begin(first.name) as draft:
        with draft.part("parts-00001.json") as stream:
            stream.write(b'{"parts":[{"name":"../x","size":1,"sha256":""}]}')
        with pytest.raises(InvalidDocument, match="names a part that cannot be one"):
            joints.await_others(draft, first)
