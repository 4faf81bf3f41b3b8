"""The launcher's part of the traces: who is asked, who need not answer, and what the status shows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from elastic_runtime.launcher import gathering
from elastic_runtime.launcher.gathering import Gathering, marks
from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.protocol.wire import SaveTraces, TracesSaved
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_runtime.run.status import Event, EventKind, Phase, Status, World

NOW = datetime(2026, 11, 22, tzinfo=UTC)
STATUS = Status(
    "run",
    "u",
    Phase.RUNNING,
    "",
    NOW,
    history=(World(NOW, 2, 1), World(NOW, 0, 1)),
    events=(Event(NOW, EventKind.LOST, "worker-1 was lost"), Event(NOW, EventKind.SCALED, "world 2")),
)


@dataclass
class Played:
    """A worker that answers as it is told to."""

    name: str
    answer: Callable[[SaveTraces], TracesSaved | None]
    gathering: Gathering
    orders: list[SaveTraces] = field(default_factory=list)

    @property
    def connection(self) -> Played:
        return self

    def send(self, order: SaveTraces) -> None:
        self.orders.append(order)
        if (answer := self.answer(order)) is not None:
            asyncio.get_running_loop().call_soon(self.gathering.saved, self.name, answer)


def spec(**observe: Any) -> RunSpec:
    return RunSpec("run", "u", ("python",), checkpoint=CheckpointSpec("s3://b/run/"), observe=ObserveSpec(**observe))


def gathered(asked: RunSpec, *answers: Callable[[SaveTraces], TracesSaved | None]) -> tuple[Gathering, list[Played]]:
    async def gather() -> tuple[Gathering, list[Played]]:
        found = Gathering(asked)
        workers = [Played(f"worker-{number}", answer, found) for number, answer in enumerate(answers)]
        await found.gather(cast(list[Worker], workers), STATUS)
        return found, workers

    return asyncio.run(gather())


def good(order: SaveTraces) -> TracesSaved:
    return TracesSaved(("traces/timeline-1.json.gz",) if order.merge else ("traces/profile-1-rank-0.json.gz",))


def test_all_save_and_one_merges() -> None:
    found, workers = gathered(spec(timeline=True), good, good)
    assert found.timeline == "s3://b/run/traces/timeline-1.json.gz"
    assert found.profiles == ("s3://b/run/traces/profile-1-rank-0.json.gz",)
    assert [[order.merge for order in worker.orders] for worker in workers] == [[False, True], [False]]
    names = [mark.name for mark in workers[0].orders[1].marks]
    assert names == ["world", "lost: worker-1 was lost"]


def test_who_does_not_answer_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SAVING", 0.05)
    monkeypatch.setattr(gathering, "MERGING", 0.05)
    found, _ = gathered(spec(timeline=True), lambda _order: None, good)
    assert found.timeline == "s3://b/run/traces/timeline-1.json.gz"


def test_samples_are_merged_by_the_first_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gathering, "SAVING", 0.05)
    monkeypatch.setattr(gathering, "MERGING_SAMPLES", 0.05)
    found, workers = gathered(spec(timeline=True, sampled=True), lambda _order: None, good)
    assert found.timeline is None
    assert [len(worker.orders) for worker in workers] == [2, 1]
    assert not caplog.records


def test_where_nobody_is_left_the_log_says_how_it_is_done_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    found, _ = gathered(spec(timeline=True))
    assert found.timeline is None
    assert "python -m elastic_runtime.tracing.traces s3://b/run 1" in caplog.text


def test_a_run_that_asks_for_nothing_asks_nobody() -> None:
    _, workers = gathered(spec(), good)
    assert workers[0].orders == []


def test_an_answer_that_nobody_waits_for_is_nothing() -> None:
    found = Gathering(spec(timeline=True))
    found.saved("worker-0", TracesSaved(("traces/timeline-1.json.gz",)))
    found.gone("worker-0")
    assert found.timeline is None


def test_marks_are_the_worlds_and_what_happened_to_them() -> None:
    assert [(mark.generation, mark.size) for mark in marks(STATUS)] == [(1, 2), (0, 0)]
