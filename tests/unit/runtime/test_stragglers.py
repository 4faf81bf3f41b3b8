"""Workers that hold the others back: found by how long their ranks wait, told once, and replaced within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.launcher.decision.facts import DecisionSettings, Ending, Facts, PauseFact
from elastic_runtime.launcher.decision.stragglers import (
    HOUR,
    PER_HOUR,
    PER_LAUNCHER,
    Sample,
    StragglerFacts,
    decide_stragglers,
    median_without,
    paces,
)
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.launcher.straggler_watch import StragglerWatch
from elastic_runtime.launcher.worker_pool import Worker, WorkerPool
from elastic_runtime.protocol.rank_link import Busy, OwnTime
from elastic_runtime.run.spec import MOST_TOLD, Stragglers
from elastic_runtime.run.status import EventKind
from tests.unit.runtime.decide_bench import NOW, SETTLED, WAITING, facts, session, settings, worker
from tests.unit.runtime.test_worker_pool import Connection

WINDOW = 300.0
EVERY = WINDOW / MOST_TOLD
REPLACES = settings(minimum=2, stragglers=Stragglers.REPLACE)
REPORTS = settings(minimum=2)


def told(own: float, step: float, message: float = 0.0, window: float = WINDOW) -> list[Sample]:
    """What a rank tells whose own work takes ``own`` seconds of a step, and its messages ``message``."""
    seconds = window / MOST_TOLD
    waited = seconds * (step - own + message) / (step + message)
    steps = round(seconds / (step + message))
    return [Sample(NOW - index * seconds, seconds, waited, steps) for index in reversed(range(MOST_TOLD))]


def world(*own: float, message: float = 0.0) -> dict[str, list[list[Sample]]]:
    """Of workers a, b, …, with a rank each whose own work takes so long a step."""
    return {name: [told(each, max(own), message)] for name, each in zip("abcdefgh", own, strict=False)}


def three() -> Facts:
    """Three workers whose ranks train."""
    return facts(3, *map(worker, "abc"), session=session(SETTLED, *"abc"))


def words(*own: float, given: Facts | None = None, asked: DecisionSettings = REPORTS, **known: Any) -> list[str]:
    names = "abcdefgh"[: len(own)]
    given = given or facts(len(names), *map(worker, names), session=session(SETTLED, *names))
    found = decide_stragglers(StragglerFacts(world(*own), **known), given, asked, NOW)
    assert not any(each.replace for each in found) or asked.recovery.stragglers is Stragglers.REPLACE
    return [each.message for each in found]


def test_names_the_slow_worker_and_by_how_much() -> None:
    assert words(0.25, 0.5, 0.25) == [
        "b takes 2.0 times as long as the others for 5 minutes: 0.50 s a step where the others take 0.25 s"
    ]


def test_a_worker_of_several_ranks_is_as_slow_as_its_slowest() -> None:
    ranks = {"a": [told(1.0, 2.0), told(2.0, 2.0)], "b": [told(1.0, 2.0), told(1.0, 2.0)], "c": [told(1.0, 2.0)]}
    found = paces(ranks)
    assert found["a"].skew == pytest.approx(2.0)
    assert found["a"].seconds == pytest.approx(2.0)
    assert found["b"].skew == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ((1.0,), []),
        ((1.0, 1.0, 1.0), []),
        ((1.0, 1.4, 1.0), []),
        ((1.0, 1.6), ["b takes 1.6 times"]),
        ((1.0, 1.6, 1.0, 2.0), ["d takes 2.0 times", "b takes 1.6 times"]),
        ((2.0, 2.0, 2.0, 1.0), []),
    ],
    ids=["alone", "equal", "below-the-factor", "two", "two-of-four", "most"],
)
def test_who_is_told_of(own: tuple[float, ...], says: list[str]) -> None:
    assert [each[: len(said)] for each, said in zip(words(*own), says, strict=True)] == says


def test_is_told_once() -> None:
    assert words(1.0, 2.0, 1.0, told={"b"}) == []


@given(
    own=st.lists(st.floats(0.1, 1.0), min_size=2, max_size=8),
    message=st.floats(0.0, 2.0),
)
def test_skew_is_of_the_ranks_own_work_and_their_messages(own: list[float], message: float) -> None:
    """All ranks need the time that messages take. So a slow network makes nobody slow."""
    found = paces(world(*own, message=message))
    for index, name in enumerate(found):
        others = median(own[:index] + own[index + 1 :])
        assert found[name].skew == pytest.approx((own[index] + message) / (others + message), rel=1e-6)


@given(ordered=st.lists(st.integers(0, 9), min_size=2).map(sorted), data=st.data())
def test_a_median_leaves_some_out(ordered: list[int], data: st.DataObject) -> None:
    left_out = data.draw(st.lists(st.sampled_from(range(len(ordered))), max_size=len(ordered) - 1, unique=True))
    rest = [each for index, each in enumerate(ordered) if index not in left_out]
    assert median_without(ordered, [ordered[index] for index in left_out]) == median(rest)


@given(data=st.data())
def test_any_numbers_are_compared(data: st.DataObject) -> None:
    numbers = st.builds(Sample, st.just(NOW), st.floats(0.1, 1e5), st.just(0.0), st.integers(0, 2**53))
    samples = st.lists(numbers.flatmap(lambda each: st.floats(0, each.seconds).map(lambda w: replace(each, waited=w))))
    known = data.draw(st.dictionaries(st.sampled_from("abcd"), st.lists(samples, max_size=3)))
    for each in paces(known).values():
        assert 0 < each.skew <= 100
    decide_stragglers(StragglerFacts(known), three(), REPLACES, NOW)


def slow_during(slices: Sequence[int]) -> StragglerFacts:
    """b is slow in these fifths of the window, from the oldest on."""
    normal, slow = world(1.0, 1.0, 1.0), world(1.0, 3.0, 1.0)
    fifth = MOST_TOLD // 5
    return StragglerFacts(
        {
            name: [[(slow if index // fifth in slices else normal)[name][0][index] for index in range(MOST_TOLD)]]
            for name in normal
        }
    )


@pytest.mark.parametrize(("slices", "count"), [(range(5), 1), (range(1, 5), 0), ((0, 1, 3, 4), 0)])
def test_has_to_be_slow_for_the_whole_window(slices: Sequence[int], count: int) -> None:
    assert len(decide_stragglers(slow_during(slices), three(), REPORTS, NOW)) == count


@pytest.mark.parametrize(
    "samples",
    [
        {**world(1.0, 3.0, 1.0), "c": [told(1.0, 3.0)[10:]]},
        {**world(1.0, 3.0, 1.0), "c": [[]]},
        {**world(1.0, 3.0, 1.0), "c": []},
        {name: [[replace(each, steps=0) for each in rank] for rank in ranks] for name, ranks in world(1, 3, 1).items()},
        world(100.0, 300.0, 100.0),
    ],
    ids=["began-late", "silent", "no-ranks", "no-steps", "too-few-steps"],
)
def test_nobody_is_slow_while_too_little_is_known(samples: dict[str, list[list[Sample]]]) -> None:
    assert decide_stragglers(StragglerFacts(samples), three(), REPLACES, NOW) == ()


def test_nothing_is_told_of_a_world_that_does_not_train() -> None:
    assert words(1.0, 3.0, 1.0, given=replace(three(), session=session(WAITING, "a", "b", "c"))) == []


# Replacing


def test_a_slow_worker_is_replaced_also_when_it_was_told_of_before() -> None:
    known = StragglerFacts(world(1.0, 3.0, 1.0), told={"b"})
    (found,) = decide_stragglers(known, three(), REPLACES, NOW)
    assert (found.worker, found.replace) == ("b", True)
    assert found.message.endswith("; it is replaced")


@pytest.mark.parametrize(
    ("own", "asked", "replaced", "why"),
    [
        ((1.0, 3.0), REPLACES, (), "with 2 workers, it may be the others that are fast"),
        ((1.0, 3.0, 1.0, 3.0), REPLACES, (), "2 of 4 workers are slow"),
        ((1.0, 3.0, 1.0), settings(minimum=3, start=3, stragglers=Stragglers.REPLACE), (), "fewer than workers.min=3"),
        ((1.0, 3.0, 1.0), REPLACES, (NOW - HOUR + 1,) * PER_HOUR, "2 were replaced within an hour"),
        (
            (1.0, 3.0, 1.0),
            REPLACES,
            (NOW - 2 * HOUR,) * PER_LAUNCHER,
            "10 were replaced since the launcher has started",
        ),
    ],
)
def test_who_is_not_replaced_is_told_of_with_the_reason(
    own: tuple[float, ...], asked: DecisionSettings, replaced: tuple[float, ...], why: str
) -> None:
    said = words(*own, asked=asked, replaced=replaced)
    assert said
    assert all(f"; it is not replaced: {why}" in each for each in said)


def test_one_is_replaced_at_a_time() -> None:
    said = words(1.0, 2.0, 1.0, 3.0, 1.0, asked=REPLACES)
    assert [each.partition("; ")[2] for each in said] == [
        "it is replaced",
        "it is not replaced: one is replaced at a time",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"wanted": 4},
        {"workers": (worker("a"), worker("b"), worker("c", leaving=True))},
        {"pause": PauseFact("paused")},
        {"ending": Ending(((0, 7),), (1, 2))},
    ],
    ids=["missing-one", "leaving", "pause", "ending"],
)
def test_nothing_is_replaced_while_something_changes(changes: dict[str, object]) -> None:
    assert words(1.0, 3.0, 1.0, given=replace(three(), **changes), asked=REPLACES) == []  # type: ignore[arg-type]


# The launcher's side, over hours


@dataclass
class Run:
    """A run whose workers each have a rank; those that are named are slow."""

    asked: DecisionSettings
    slow: set[str]
    start: int = 4
    now: float = NOW
    events: list[tuple[float, str]] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = lambda: self.now  # noqa: E731
        self.pool = WorkerPool(self.asked.recovery, 1.0, clock)
        self.standstills = Standstills(clock)
        record = cast(RunRecord, self)
        self.watch = StragglerWatch(self.asked, self.pool, record, self.standstills, clock)
        self.count = 0
        for _ in range(self.start):
            self.add()
        self.forms()

    def event(self, kind: EventKind, message: str, worker: str) -> None:
        assert kind is EventKind.STRAGGLER
        assert message.startswith(worker)
        self.events.append((self.now, message))

    def add(self) -> None:
        self.pool.add(Connection(f"w-{self.count}"), datetime(2026, 1, 2, tzinfo=UTC)).ready = True
        self.count += 1

    def ranks(self) -> list[str]:
        return [worker.slots[0].rank_id for worker in self.pool.workers.values()]

    def forms(self) -> None:
        self.watch.new_world(self.ranks())

    def says(self, rank_id: str, seconds: float) -> None:
        slow = {f"{name}.0.0" for name in self.slow}
        waits = rank_id not in slow and not slow.isdisjoint(self.ranks())
        self.watch.said(rank_id, OwnTime(seconds, seconds * 2 / 3 if waits else 0.0, round(seconds)))

    def leaves(self, worker: Worker) -> None:
        self.leaving.append(worker.name)

    def passes(self, seconds: float) -> None:
        """A replaced worker is gone at once, and another one comes."""
        for _ in range(round(seconds / EVERY)):
            self.now += EVERY
            for rank_id in self.ranks():
                self.says(rank_id, EVERY)
            workers = self.pool.facts()
            given = Facts(self.start, workers, session(SETTLED, *self.ranks()), trained=True)
            assert len(workers) >= self.asked.workers.minimum
            before = len(self.leaving)
            self.watch.look(given, self.leaves)
            for name in self.leaving[before:]:
                self.pool.remove(name)
                self.add()
                self.forms()


def test_a_slow_worker_is_told_of_once_and_its_pace_is_known() -> None:
    run = Run(REPORTS, {"w-1"})
    run.passes(WINDOW * 0.8)
    assert run.events == []
    run.passes(3 * WINDOW)
    assert [message for _, message in run.events] == [
        "w-1 takes 3.0 times as long as the others for 5 minutes: 1.00 s a step where the others take 0.33 s"
    ]
    pace = run.pool.workers["w-1"].pace
    assert pace is not None
    assert pace.skew == pytest.approx(3.0)
    assert run.leaving == []
    run.forms()
    assert run.pool.workers["w-1"].pace is None


def test_a_slow_worker_is_replaced_once() -> None:
    run = Run(REPLACES, {"w-1"})
    run.passes(3 * HOUR)
    assert run.leaving == ["w-1"]
    assert len(run.events) == 1


def test_bad_luck_with_replacements_is_bounded() -> None:
    """Each worker that comes is slow, as when they all get the same machine."""
    run = Run(REPLACES, {"w-1", *(f"w-{number}" for number in range(4, 100))})
    run.passes(6 * HOUR)
    assert len(run.leaving) == PER_LAUNCHER
    times = [when for when, message in run.events if message.endswith("it is replaced")]
    assert all(second - first >= HOUR for first, second in zip(times, times[PER_HOUR:], strict=False))


def test_nothing_is_measured_where_that_is_off() -> None:
    run = Run(settings(stragglers=Stragglers.OFF), {"w-1"})
    run.passes(2 * WINDOW)
    assert (run.events, run.pool.workers["w-1"].pace) == ([], None)


def test_time_in_which_a_rank_is_busy_does_not_count() -> None:
    """The others wait for a rank that evaluates: they do not, for a slow one."""
    run = Run(REPLACES, {"w-1"})
    for _ in range(20):
        run.standstills.said("w-0.0.0", Busy("evaluation", 60.0))
        run.passes(WINDOW / 4)
        run.standstills.said("w-0.0.0", Busy("", 0.0))
        run.passes(EVERY)
    assert run.events == []
