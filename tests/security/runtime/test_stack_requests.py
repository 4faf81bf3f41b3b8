"""Somebody who asks for stacks again and again, to fill the log and to hold the ranks up."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.stack_dumps import PAUSE, StackDumps
from elastic_runtime.protocol.wire import DumpStacks, encode
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import EventKind

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@dataclass
class Run:
    """Requests, workers and clock in one."""

    time: float = 0.0
    request: str | None = None
    dumps: int = 0
    record: RunRecord = field(
        default_factory=lambda: RunRecord(RunSpec(name="run", uid="1", command=("python",)), lambda: NOON)
    )

    def now(self) -> float:
        return self.time

    def stacks_asked(self) -> str | None:
        return self.request

    def dump_stacks(self) -> int:
        self.dumps += 1
        return 2


def test_requests_without_end_are_answered_every_so_often() -> None:
    run = Run()
    dumps = StackDumps(run, run, run.record, run.now)
    dumps.look()
    for number in range(1000):
        run.request, run.time = str(number), number * PAUSE / 100
        dumps.look()
    assert run.dumps == 10
    events = run.record.status([], {}, 1).events
    assert [(event.kind, event.message) for event in events] == [
        (EventKind.STACKS, "the stacks of 2 ranks are in the log")
    ] * 10


def test_the_last_of_many_is_answered_and_none_is_twice() -> None:
    run = Run()
    dumps = StackDumps(run, run, run.record, run.now)
    dumps.look()
    for run.request in ("1", "2"):
        dumps.look()
    assert run.dumps == 1
    for _ in range(3):
        run.time += PAUSE
        dumps.look()
    assert run.dumps == 2


def test_a_request_to_the_launcher_before_is_not_answered_again() -> None:
    run = Run(request="of yesterday")
    dumps = StackDumps(run, run, run.record, run.now)
    dumps.look()
    assert run.dumps == 0


def test_a_request_of_any_length_is_read_to_some_length(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    assert folder.stacks_asked() is None
    (tmp_path / "stacks").write_bytes(b"\xff" * 10_000_000)
    asked = folder.stacks_asked()
    assert asked is not None
    assert len(asked) <= 64


def test_the_order_carries_nothing_that_a_rank_would_be_told() -> None:
    assert encode(DumpStacks()) == b'{"type":"dump_stacks"}\n'
