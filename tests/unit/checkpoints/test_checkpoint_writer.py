"""The thread that writes checkpoints: what comes first where a notice meets a slow store."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.protocol.rank_link import CheckpointWritten, RankLink
from elastic_runtime.script import kept_outputs
from elastic_runtime.training.checkpointing.writer import CheckpointWriter, Snapshot

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class SlowStore:
    """A writer whose parts wait until they are let go, and what became durable, in order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self._begun = {1: threading.Event(), 2: threading.Event()}
        self._go = threading.Event()
        link = RankLink(None)
        monkeypatch.setattr(link, "send", self._sent)
        monkeypatch.setattr(kept_outputs, "upload", lambda: self.order.append("outputs"))
        self.checkpoints = Checkpoints(open_store((folder / "run").as_uri()), 1, 3)
        self.writer = CheckpointWriter(self.checkpoints, 60.0, link, lambda: self.now)
        self.told: list[CheckpointWritten] = []

    def begin(self, serial: int, *, handover: bool = False, if_absent: bool = False) -> None:
        def part(stream: PartStream) -> None:
            self._begun[serial].set()
            assert self._go.wait(30)
            stream.write(b"weights")

        self.writer.begin(Snapshot(serial, serial, NOON, {"state": part}), handover=handover, if_absent=if_absent)

    def is_at_work(self, serial: int) -> None:
        assert self._begun[serial].wait(30)

    def goes_on(self) -> None:
        self._go.set()
        self.writer.close()

    def _sent(self, message: object) -> None:
        if isinstance(message, CheckpointWritten):
            self.order.append(f"step {message.step}")
            self.told.append(message)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowStore:
    return SlowStore(tmp_path, monkeypatch)


def test_outputs_follow_each_checkpoint(slow: SlowStore) -> None:
    slow.begin(1)
    slow.begin(2)
    slow.goes_on()
    assert slow.order == ["step 1", "outputs", "step 2", "outputs", "outputs"]


def test_a_handover_behind_a_slow_checkpoint_is_durable_before_any_outputs(slow: SlowStore) -> None:
    slow.begin(1)
    slow.is_at_work(1)
    slow.writer.want_handover()
    assert slow.writer.handover_due()
    slow.begin(2, handover=True)
    slow.goes_on()
    assert slow.order == ["step 1", "step 2", "outputs", "outputs"]


def test_a_first_write_takes_as_long_as_it_has_taken_so_far(slow: SlowStore) -> None:
    assert slow.writer.seconds == 0
    slow.begin(1)
    slow.is_at_work(1)
    slow.now = 40.0
    assert slow.writer.seconds == 40
    slow.goes_on()
    assert slow.writer.seconds == 40
    slow.now = 90.0
    assert slow.writer.seconds == 40


@pytest.mark.parametrize(("durable", "wanted"), [(2, 2), (2, 1)])
def test_what_another_rank_has_written_is_told_of(slow: SlowStore, durable: int, wanted: int) -> None:
    # Its agent may have been killed before that rank could tell: nobody else knows of the checkpoint.
    theirs = slow.checkpoints.write(durable, NOON, {"state": lambda stream: None})
    assert theirs is not None
    slow.begin(wanted, handover=True, if_absent=True)
    slow.goes_on()
    assert slow.told == [CheckpointWritten(theirs.uri, durable, NOON, True, 0.0)]
    assert slow.checkpoints.store.names() == [theirs.name]
    assert slow.writer.has_written(wanted)
