"""What every checkpoint store must do, and what is built on it. A new store joins ``STORES`` (conftest.py)
and must pass."""

from __future__ import annotations

import errno
import io
import os
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

import pytest

from elastic_runtime.checkpoint.checkpoints import (
    Checkpoints,
    PartStream,
    PartWriter,
    StoredCheckpoint,
    opened_checkpoint,
)
from elastic_runtime.checkpoint.manifest import MOST_STEPS
from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_runtime.errors import (
    DamagedCheckpoint,
    InvalidDocument,
    InvalidSettings,
    OwnershipLost,
    StoreUnavailable,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def part(content: bytes) -> PartWriter:
    def write(stream: PartStream) -> None:
        for start in range(0, len(content), 7):
            stream.write(content[start : start + 7])

    return write


def write(checkpoints: Checkpoints, step: int, content: bytes | None = None) -> StoredCheckpoint:
    """One, and what it replaces is retired."""
    content = f"model of step {step}".encode() if content is None else content
    parts = {"model.pt": part(content), "empty": part(b"")}
    stored = checkpoints.write(step, NOON + timedelta(seconds=step), parts)
    assert stored is not None
    checkpoints.retire(stored)
    return stored


def read_model(stored: StoredCheckpoint) -> bytes:
    with stored.open_part("model.pt") as stream:
        return stream.read()


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[str]]:
    """Step of what is chosen, and the reasons for which others were passed over."""
    reasons: list[str] = []
    found = checkpoints.newest(read_model, lambda uri, reason: reasons.append(reason))
    if found is None:
        return None, reasons
    assert found[1] == f"model of step {found[0].manifest.step}".encode()
    return found[0].manifest.step, reasons


def steps(store: CheckpointStore) -> set[int]:
    found = set()
    for name in store.names():
        with opened_checkpoint(f"{store.uri}/{name}") as stored:
            found.add(stored.manifest.step)
    return found


def test_a_store_that_was_never_written_to_is_empty(store: CheckpointStore) -> None:
    assert newest(Checkpoints(store, fence=1, keep=2)) == (None, [])


def test_what_was_written_is_read_again_by_its_uri(store: CheckpointStore) -> None:
    stored = write(Checkpoints(store, fence=1, keep=2), 5)
    with opened_checkpoint(stored.uri) as again:
        assert again.manifest == stored.manifest
        assert read_model(again) == b"model of step 5"
        assert {part.name: part.size for part in again.manifest.parts} == {"model.pt": 15, "empty": 0}


def test_memory_of_a_large_piece_may_be_written_to_again_as_soon_as_it_is_handed_over(store: CheckpointStore) -> None:
    """It is digested by another thread, while it is written."""
    pieces = [bytes([number]) * (3 << 19) for number in range(4)]

    def reuse(stream: PartStream) -> None:
        buffer = bytearray(len(pieces[0]))
        for piece in pieces:
            buffer[:] = piece
            stream.write(memoryview(buffer))

    stored = Checkpoints(store, fence=1, keep=1).write(1, NOON, {"model.pt": reuse})
    assert stored is not None
    assert read_model(stored) == b"".join(pieces)


def test_the_highest_step_is_the_newest_whoever_published_last(store: CheckpointStore) -> None:
    checkpoints = Checkpoints(store, fence=1, keep=3)
    write(checkpoints, 20)
    write(checkpoints, 10)  # a leaving rank 0 whose slow write ended after its successor's
    assert newest(checkpoints) == (20, [])


def test_a_later_try_that_started_afresh_is_newer_than_a_higher_step(store: CheckpointStore) -> None:
    write(Checkpoints(store, fence=1, keep=3), 1000)
    later = Checkpoints(store, fence=2, keep=3)
    write(later, 10)
    assert newest(later) == (10, [])


def test_only_so_many_are_kept(store: CheckpointStore) -> None:
    checkpoints = Checkpoints(store, fence=1, keep=2)
    for step in (1, 2, 3, 4):
        write(checkpoints, step)
    assert steps(store) == {3, 4}


def test_how_far_its_owner_has_come(store: CheckpointStore) -> None:
    checkpoints = Checkpoints(store, fence=2, keep=5)
    assert checkpoints.reached(0) is None
    write(Checkpoints(store, fence=1, keep=5), 1000)  # of an owner before, whose steps are none of ours
    write(checkpoints, 20)
    last = write(checkpoints, 30)
    assert [checkpoints.reached(step) for step in (20, 25, 30, 31)] == [last, last, last, None]


def test_one_that_does_not_fit_reaches_no_step(store: CheckpointStore) -> None:
    """The training began before it: what it has at that step is another state."""
    checkpoints, other = (Checkpoints(store, fence=1, keep=5) for _ in range(2))
    write(checkpoints, 20)
    misfit = write(checkpoints, 1000)

    def fits(stored: StoredCheckpoint) -> None:
        if stored == misfit:
            raise InvalidDocument("does not fit the model of this script")

    assert checkpoints.newest(fits, lambda uri, reason: None) is not None
    assert checkpoints.reached(500) is None
    assert other.reached(500) == misfit
    other.pass_over(checkpoints.passed_over)
    assert other.reached(500) is None


def test_only_what_its_owner_has_written_is_gone_on_from_where_that_is_asked(store: CheckpointStore) -> None:
    before = write(Checkpoints(store, fence=1, keep=5), 1000)
    checkpoints = Checkpoints(store, fence=2, keep=5)

    def own() -> StoredCheckpoint | None:
        found = checkpoints.newest(lambda stored: None, lambda uri, reason: None, own=True)
        return found and found[0]

    assert own() is None
    stored = write(checkpoints, 10)
    assert own() == stored
    assert before.name in store.names()


def test_a_damaged_one_reaches_no_step(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(store, fence=1, keep=5)
    whole = write(checkpoints, 20)
    broken = write(checkpoints, 30)
    open_part = type(store).open_part

    def damaged(store: CheckpointStore, name: str, part: str, size: int) -> BinaryIO:
        stream = open_part(store, name, part, size)
        if name != broken.name or part != "model.pt":
            return stream
        with stream:
            return io.BytesIO(stream.read()[::-1])

    monkeypatch.setattr(type(store), "open_part", damaged)
    assert checkpoints.reached(20) == whole
    assert checkpoints.reached(25) is None


def test_one_that_retires_nothing_leaves_that_to_the_next(store: CheckpointStore) -> None:
    checkpoints = Checkpoints(store, fence=1, keep=1)
    write(checkpoints, 30)
    checkpoints.write(20, NOON, {"model.pt": part(b"model of step 20")})
    assert newest(checkpoints) == (30, [])
    write(checkpoints, 40)
    assert steps(store) == {40}


def test_what_a_broken_one_is_replaced_by_is_never_retired_for_it(store: CheckpointStore) -> None:
    write(Checkpoints(store, fence=1, keep=2), 100)
    write(Checkpoints(store, fence=1, keep=2), 300)
    checkpoints = Checkpoints(store, fence=1, keep=1)

    def torn(stored: StoredCheckpoint) -> None:
        if stored.manifest.step == 300:
            raise DamagedCheckpoint("torn")

    found = checkpoints.newest(torn, lambda uri, reason: None)
    assert found is not None
    assert found[0].manifest.step == 100
    write(checkpoints, 150)
    assert steps(store) == {150}


def test_what_does_not_fit_is_neither_removed_nor_counted(store: CheckpointStore) -> None:
    before = Checkpoints(store, fence=1, keep=9)
    for step in (100, 200, 300):
        write(before, step)
    checkpoints = Checkpoints(store, fence=2, keep=2)

    def misfit(stored: StoredCheckpoint) -> None:
        if stored.manifest.step > 100:
            raise InvalidDocument("does not fit the model of this script")

    assert checkpoints.newest(misfit, lambda uri, reason: None) is not None
    write(checkpoints, 150)
    assert steps(store) == {100, 150, 200, 300}
    write(checkpoints, 160)
    assert steps(store) == {150, 160, 200, 300}


def test_what_a_newer_owner_has_is_not_removed_though_it_is_damaged(store: CheckpointStore) -> None:
    checkpoints = Checkpoints(store, fence=1, keep=1)
    old = write(checkpoints, 100)
    write(Checkpoints(store, fence=2, keep=9), 50)

    def torn(stored: StoredCheckpoint) -> None:
        if stored.manifest.fence == 2:
            raise DamagedCheckpoint("torn")

    assert checkpoints.newest(torn, lambda uri, reason: None) is not None
    checkpoints.retire(old)
    assert steps(store) == {50, 100}


class Unread(io.BytesIO):
    """A part of which some was read when the file system went away."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self._error = error

    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(self._error, os.strerror(self._error))


@pytest.mark.parametrize("error", [errno.ESTALE, errno.ETIMEDOUT, errno.EIO, errno.ENOSPC])
def test_a_part_that_cannot_be_read_for_now_is_not_damaged(
    store: CheckpointStore, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No training begins anew for it, and nothing is removed."""
    checkpoints = Checkpoints(store, fence=1, keep=1)
    stored = write(checkpoints, 1)
    monkeypatch.setattr(type(store), "open_part", lambda *_: Unread(error))
    for ask in (lambda: newest(checkpoints), lambda: checkpoints.reached(1)):
        with pytest.raises(StoreUnavailable, match=f"{stored.uri}, reading model.pt: {os.strerror(error)}"):
            ask()
    checkpoints.write(2, NOON, {})
    assert len(store.names()) == 2


def test_a_part_that_the_medium_calls_damaged_is_passed_over(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(store, fence=1, keep=1)
    write(checkpoints, 1)
    monkeypatch.setattr(type(store), "open_part", lambda *_: Unread(errno.EBADMSG))
    step, [reason] = newest(checkpoints)
    assert step is None
    assert reason.startswith("its part model.pt cannot be read: ")


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("skew", [0, 150])
def test_a_rank_that_ends_late_does_not_remove_what_its_successor_has_written(
    store: CheckpointStore, keep: int, skew: int
) -> None:
    """Whichever of their clocks is ahead."""
    successor = Checkpoints(store, fence=1, keep=keep)
    for step in (1100, 1200):
        write(successor, step)
    left = steps(store)
    leaving = Checkpoints(store, fence=1, keep=keep)
    late = leaving.write(1000, NOON + timedelta(seconds=1000 + skew), {"model.pt": part(b"model of step 1000")})
    assert late is not None
    leaving.retire(late)
    assert steps(store) == {1000, *left}
    assert newest(leaving) == (1200, [])
    for step in (1300, 1600, 1700):
        write(successor, step)
    assert 1000 not in steps(store)
    assert len(steps(store)) == keep


def test_rights_to_write_alone_keep_what_is_old_and_the_log_says_so_once(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(store: CheckpointStore, name: str) -> None:
        raise InvalidSettings("checkpoint", f"deleting {name}: Access Denied", "Give the right to delete")

    monkeypatch.setattr(type(store), "delete", refused)
    checkpoints = Checkpoints(store, fence=1, keep=1)
    for step in (1, 2, 3):
        write(checkpoints, step)
    assert steps(store) == {1, 2, 3}
    [said] = [record.getMessage() for record in caplog.records if "old ones stay" in record.getMessage()]
    assert "the store refuses to list or to delete. checkpoint: deleting ckpt-" in said
    assert said.endswith("Give the right to delete")


@pytest.mark.parametrize("name", ["lr scheduler.pt", "ema:teacher.pt", "x" * 121])
def test_what_nobody_could_read_again_is_not_published(store: CheckpointStore, name: str) -> None:
    with pytest.raises(InvalidSettings, match="the checkpoint of step 1 could not be read again: its manifest names"):
        Checkpoints(store, fence=1, keep=1).write(1, NOON, {name: part(b"weights")})
    assert store.names() == []


@pytest.mark.parametrize("step", [-1, MOST_STEPS + 1])
def test_a_step_of_which_nobody_could_find_it_is_not_published(store: CheckpointStore, step: int) -> None:
    with pytest.raises(InvalidSettings, match=f"the checkpoint of step {step} could not be read again"):
        Checkpoints(store, fence=1, keep=1).write(step, NOON, {"model.pt": part(b"weights")})
    assert store.names() == []


def test_keeping_none_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(InvalidSettings, match=r"checkpoint\.keep: 0 is less than 1"):
        Checkpoints(store, fence=1, keep=0)


def test_a_writer_that_was_replaced_publishes_nothing(store: CheckpointStore) -> None:
    old = Checkpoints(store, fence=1, keep=2)
    write(old, 1)
    Checkpoints(store, fence=2, keep=2).claim()
    with pytest.raises(OwnershipLost, match="its fence is 2, ours is 1"):
        write(old, 2)
    with pytest.raises(OwnershipLost):
        old.claim()
    assert steps(store) == {1}


def test_a_writer_that_is_replaced_while_it_writes_publishes_nothing(store: CheckpointStore) -> None:
    old = Checkpoints(store, fence=1, keep=2)

    def replaced_meanwhile(stream: PartStream) -> None:
        stream.write(b"half")
        Checkpoints(store, fence=2, keep=2).claim()

    with pytest.raises(OwnershipLost):
        old.write(1, NOON, {"model.pt": replaced_meanwhile})
    assert store.names() == []


def test_a_writer_with_the_same_fence_may_go_on(store: CheckpointStore) -> None:
    write(Checkpoints(store, fence=3, keep=2), 1)
    again = Checkpoints(store, fence=3, keep=2)
    again.claim()
    write(again, 2)
    assert steps(store) == {1, 2}


def test_of_two_runs_with_the_same_fence_the_first_to_claim_writes(store: CheckpointStore) -> None:
    first = Checkpoints(store, fence=3, keep=2, owner="again.1")
    second = Checkpoints(store, fence=3, keep=2, owner="other.2")
    first.claim()
    with pytest.raises(OwnershipLost, match=r"another run, again\.1, which began in the same second \(fence 3\)"):
        second.claim()
    with pytest.raises(OwnershipLost, match="another run"):
        write(second, 7)
    first.claim()  # another rank 0 of the same run
    write(first, 1)
    assert steps(store) == {1}


def test_a_run_with_a_higher_fence_takes_the_store_over_from_another(store: CheckpointStore) -> None:
    first = Checkpoints(store, fence=3, keep=2, owner="again.1")
    first.claim()
    second = Checkpoints(store, fence=4, keep=2, owner="other.2")
    second.claim()
    with pytest.raises(OwnershipLost, match="its fence is 4, ours is 3"):
        write(first, 1)
    write(second, 2)
    assert steps(store) == {2}


def test_a_write_that_fails_leaves_nothing(store: CheckpointStore) -> None:
    def fails(stream: PartStream) -> None:
        stream.write(b"half")
        raise RuntimeError("out of words")

    with pytest.raises(RuntimeError, match="out of words"):
        Checkpoints(store, fence=1, keep=2).write(1, NOON, {"model.pt": fails})
    assert store.names() == []


def test_deleting_what_is_gone_is_no_error(store: CheckpointStore) -> None:
    stored = write(Checkpoints(store, fence=1, keep=2), 1)
    store.delete(stored.name)
    store.delete(stored.name)
    assert store.names() == []
    with pytest.raises(InvalidDocument, match=r"manifest\.json cannot be read"), opened_checkpoint(stored.uri):
        pass


def test_the_uri_of_a_store_is_not_that_of_a_checkpoint(store: CheckpointStore) -> None:
    with pytest.raises(InvalidSettings, match="not the URI of one checkpoint"), opened_checkpoint(store.uri):
        pass
