"""Runs with a deadline from beginning to end, on virtual time: sizes, what is said, and the stop at a budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

import pytest

from elastic_runtime.launcher.deadline_watch import DeadlineWatch
from elastic_runtime.launcher.decision.sizing import SizeWish, Sizing
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.protocol.rank_link import Progress, TotalSteps
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.headline import headline
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState
from tests.unit.runtime.run_record.bench import NOON, Clock, worker

STARTS = 25.0
"""Seconds until a worker that is asked for is there."""
RESET = 4.0
"""Seconds between two worlds."""


@dataclass
class Run:
    """A training whose step takes ``0.1 + 0.9 / n`` seconds, with noise; looked at once a second."""

    deadline: DeadlineSpec
    steps: int = 7200
    told: bool = True
    """The script tells how many steps it has."""
    clock: Clock = field(default_factory=Clock)
    asked: int = 1
    wish: SizeWish | None = None
    previous: Status | None = None
    shortage: tuple[datetime, datetime] = (NOON, NOON)
    """While one worker can be had."""
    bounds: WorkersSpec = field(default_factory=lambda: WorkersSpec(1, 1, 8))

    def __post_init__(self) -> None:
        self.spec = RunSpec("run", "uid", ("true",), workers=self.bounds, deadline=self.deadline)
        self.record, self.sizing = RunRecord(self.spec, self.clock, self.previous), Sizing(self.spec)
        self.watch = DeadlineWatch(self.spec, self.record, self.sizing, self.clock, self.previous)
        self.here: list[Worker] = []
        self.done, self.since_reset, self.short = 0.0, 0.0, 0.0
        self.random, self.names = Random(1), 0
        self.stopped: str | None = None
        if self.told:
            self.record.rank_said(TotalSteps(self.steps, by_script=True), "worker-0")

    def go(self, until: datetime | None = None) -> Status:
        """Until the last step, the stop, or that time. Returns the last status."""
        while self.done < self.steps and self.stopped is None and (until is None or self.clock.now < until):
            self.look()
            self.second()
        return self.status()

    def look(self) -> None:
        note = self.sizing.look(self.asked, self.clock.now, self.wish)
        then = self.watch.size_seen(asked=note is not None)
        if note:
            self.record.event(EventKind.SIZE_ASKED, note + then)
        if self.sizing.write:
            self.asked = self.sizing.wanted
        self.status()
        self.stopped = self.watch.over_budget(len(self.here))
        self.watch.look()

    def second(self) -> None:
        self.clock.tick(1.0)
        wanted = self.sizing.wanted
        if self.shortage[0] <= self.clock.now < self.shortage[1]:
            wanted = min(wanted, 1)
        self.short = self.short + 1 if len(self.here) < wanted else 0.0
        if len(self.here) > wanted or self.short >= STARTS:
            self.resize(wanted)
        self.since_reset += 1
        if self.here and self.since_reset > RESET:
            self.done += 1 / ((0.1 + 0.9 / len(self.here)) * self.random.uniform(0.9, 1.1))
            self.record.rank_said(Progress(min(self.steps, int(self.done))), "worker-0")

    def resize(self, wanted: int) -> None:
        while len(self.here) > wanted:
            self.record.gone(self.here.pop(), WorkerState.LEFT)
        while len(self.here) < wanted:
            self.names += 1
            self.here.append(worker(f"worker-{self.names}"))
            self.here[-1].since = self.clock.now
        self.since_reset = 0.0
        self.record.stand(Phase.RUNNING, "they train")
        self.record.world([each.name for each in self.here])

    def status(self) -> Status:
        ranks = {each.slots[0].rank_id: rank for rank, each in enumerate(self.here)}
        return replace(self.record.status(self.here, ranks, self.sizing.wanted), deadline=self.watch.told())

    def sizes(self) -> list[int]:
        return [each.workers for each in self.status().asked]

    def said(self, kind: EventKind = EventKind.DEADLINE) -> list[str]:
        return [each.message for each in self.status().events if each.kind is kind]


def after(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


class TestByATime:
    @pytest.mark.parametrize("minutes", [30, 45, 60, 90])
    def test_it_grows_as_far_as_it_has_to(self, minutes: int) -> None:
        """Alone, a worker takes two hours."""
        run = Run(DeadlineSpec(after(minutes), price=1.0))
        status = run.go()
        assert status.step == 7200
        assert run.clock.now <= after(minutes)
        assert max(run.sizes()) > 1
        # All eight would be done after 25 to 26 minutes: fewer workers, and a better use of each, with the reserve.
        workers = status.deadline.spent * 60 / minutes if status.deadline and status.deadline.spent else 0.0
        needed = 0.9 / (minutes * 60 / 7200 - 0.1)
        assert workers <= max(1.0, needed) * 1.35
        assert run.said(EventKind.SIZE_ASKED)[0].startswith(
            f"{run.sizes()[1]} workers by the deadline, 1 before: with "
        )

    def test_it_catches_up_after_a_shortage(self) -> None:
        run = Run(DeadlineSpec(after(60)), shortage=(after(10), after(35)))
        run.go(after(9))
        before = run.sizing.wanted
        status = run.go()
        assert run.clock.now <= after(60)
        assert before < max(each.workers for each in status.asked if each.time > after(35))

    def test_one_that_is_ahead_gives_workers_up(self) -> None:
        run = Run(DeadlineSpec(after(80)), bounds=WorkersSpec(1, 6, 8), asked=6)
        run.go()
        assert run.clock.now <= after(80)
        assert run.sizes()[-1] < 3

    def test_a_deadline_that_cannot_be_met_is_said_once(self) -> None:
        run = Run(DeadlineSpec(after(15)))
        status = run.go()
        assert [words.rpartition("; ")[2] for words in run.said()] == [
            "that is after 12:15",
            "the deadline 12:15 has passed",
        ]
        assert max(run.sizes()) == 8
        assert status.step == 7200
        told = headline(status).deadline
        assert told is not None
        assert told.words.endswith("the deadline 12:15 has passed")

    def test_without_a_number_of_steps_the_size_stays_and_that_is_said(self) -> None:
        run = Run(DeadlineSpec(after(60)), told=False)
        run.go(after(5))
        assert (run.sizes(), len(run.said())) == ([1], 1)

    def test_a_size_that_somebody_asks_for_is_kept_for_an_hour(self) -> None:
        run = Run(DeadlineSpec(after(100)), steps=14400)
        run.go(after(10))
        before = run.sizing.wanted
        run.asked = 1
        run.go(after(69))
        assert (before > 1, run.sizing.wanted) == (True, 1)
        assert run.said(EventKind.SIZE_ASKED)[-1].endswith("; kept for 1 h, then the deadline sets the size again")
        assert run.said()[-1].endswith("and this size was asked for")
        run.go(after(73))
        assert run.sizing.wanted > before

    def test_a_pause_is_left_alone(self) -> None:
        run = Run(DeadlineSpec(after(60)), wish=SizeWish("1", 1, pause=True))
        run.go(after(5))
        assert run.said(EventKind.SIZE_ASKED) == ["a pause asked for, 1 workers before"]
        run.wish = SizeWish("2", 1)
        run.go(after(6))
        assert run.sizing.wanted > 1

    def test_the_next_launcher_keeps_it_as_long(self) -> None:
        run = Run(DeadlineSpec(after(100)), steps=14400)
        run.go(after(10))
        run.asked = 1
        status = run.go(after(12))
        assert status.deadline is not None
        successor = Run(run.deadline, 14400, clock=run.clock, asked=1, previous=status)
        successor.look()
        now = successor.watch.told()
        assert now is not None
        assert now.held_until == status.deadline.held_until

    def test_the_next_launcher_takes_the_size_of_the_one_before_for_nobodys(self) -> None:
        run = Run(DeadlineSpec(after(60)))
        status = run.go(after(8))
        successor = Run(run.deadline, clock=run.clock, asked=run.asked, previous=status)
        successor.look()
        assert status.target_size == run.asked != run.bounds.start
        now = successor.watch.told()
        assert now is not None
        assert now.held_until is None


class TestByABudget:
    def test_a_run_that_costs_more_says_so_and_is_stopped_at_the_budget(self) -> None:
        run = Run(DeadlineSpec(budget=1.0, price=1.0))
        status = run.go()
        assert run.stopped is not None
        assert run.stopped.startswith("the budget of 1.00 $ is reached: 0.99 $ are spent")
        assert len(run.said()) == 1
        assert "costs 2." in run.said()[0]
        assert status.deadline is not None
        assert status.deadline.spent is not None
        assert 0.98 < status.deadline.spent < 1.0
        assert run.sizes() == [1]

    def test_one_that_can_afford_more_workers_takes_them_and_ends_within_the_budget(self) -> None:
        run = Run(DeadlineSpec(budget=6.0, price=1.0))
        status = run.go()
        assert (run.stopped, status.step) == (None, 7200)
        assert status.deadline is not None
        assert status.deadline.spent is not None
        assert status.deadline.spent <= 6.0
        assert max(run.sizes()) >= 3

    def test_the_budget_wins_over_the_time(self) -> None:
        run = Run(DeadlineSpec(after(35), budget=2.2, price=1.0))
        run.go()
        assert run.stopped is None
        assert run.clock.now > after(35)
        assert "that is after 12:35" in run.said()[0]


def test_a_run_without_a_deadline_is_left_alone() -> None:
    run = Run(DeadlineSpec(after(60)))
    run.watch = DeadlineWatch(replace(run.spec, deadline=None), run.record, run.sizing, run.clock)
    run.go(after(30))
    assert (run.sizes(), run.said(), run.watch.told(), run.stopped) == ([1], [], None, None)
