"""Every order in which up to three workers can be disturbed, and their ranks come to hang: see :mod:`.forming_model`.

A search over all states, not a sample. From each of them the run must train again when it is left alone, in bounded
time; and a state that a living rank has must never be given up for an older one. A run ends only if ranks hang.

More disturbances one after another take minutes: ``make test-long``, and ::

    FORMING_DISTURBANCES=2 python -m pytest tests/unit/runtime/test_forming_model.py
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from elastic_runtime.launcher.decision import standstill
from elastic_runtime.run.spec import RecoveryMode
from elastic_runtime.run.waits import ANSWER, AT_WORK, FIRST_COMMIT
from tests.unit.runtime.forming_model import disturbed, max_wait, progress
from tests.unit.runtime.forming_state import (
    COLLECTIVE,
    FORMING_TIME,
    MAX_WAIT,
    STANDSTILL,
    WORKERS,
    Engine,
    Hang,
    State,
    Worker,
    at_rest,
    at_start,
    hanging,
)

MOST_TICKS = MAX_WAIT + 3 * FORMING_TIME + 12
"""The wait for ranks of which none comes back, three stages of a world, a time to gather, and backoffs."""
MORE = int(os.environ.get("FORMING_DISTURBANCES", "1"))
Step = tuple[str, int, float]
"""What happens, the number of the state that follows, and the seconds until then."""
Schedule = Callable[[list[Step]], Step]


class Search:
    """All states that can be reached from one, which is number 0."""

    def __init__(self, start: State) -> None:
        self.states = [start]
        self.came: list[tuple[int, str]] = [(-1, "")]
        self.undisturbed: list[list[Step]] = []
        self._numbers = {start.key: 0}
        queue = deque([0])
        while queue:
            number = queue.popleft()
            state = self.states[number]
            going = list(progress(state)) or list(max_wait(state))
            self.undisturbed.append(
                [(name, self._number(after, number, name, queue), seconds) for name, after, seconds in going]
            )
            for name, after, _ in disturbed(state):
                self._number(after, number, name, queue)

    def _number(self, state: State, before: int, name: str, queue: deque[int]) -> int:
        number = self._numbers.setdefault(state.key, len(self.states))
        if number == len(self.states):
            self.states.append(state)
            self.came.append((before, name))
            queue.append(number)
        return number

    def story(self, number: int, schedule: Schedule | None = None) -> str:
        """How it came to that state, and what follows."""
        names, at = [], number
        while at >= 0:
            at, name = self.came[at]
            names.append(name)
        names = [*reversed(names), "-- left alone --"]
        while schedule and not self.states[number].trains and len(names) < 80 and self.undisturbed[number]:
            name, number, _ = schedule(self.undisturbed[number])
            names.append(name)
        return "\n".join(names)

    def ticks_until_it_trains(self, schedule: Schedule) -> list[float]:
        """From each state, if nobody disturbs it any more; infinite where it never does."""
        ticks: list[float | None] = [0.0 if state.trains or state.ended else None for state in self.states]
        for start in range(len(self.states)):
            path: list[tuple[int, float]] = []
            seen: set[int] = set()
            number = start
            while ticks[number] is None and number not in seen and self.undisturbed[number]:
                seen.add(number)
                _, following, seconds = schedule(self.undisturbed[number])
                path.append((number, seconds))
                number = following
            known = ticks[number]
            count = float("inf") if known is None else known
            ticks[number] = count
            for each, seconds in reversed(path):
                count += seconds
                ticks[each] = count
        return [float("inf") if count is None else count for count in ticks]


def eagerly(steps: list[Step]) -> Step:
    """The launcher first."""
    return steps[0]


def lazily(steps: list[Step]) -> Step:
    """The launcher last."""
    return steps[-1]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(at_start(1, 2, 1), id="from-the-start"),
        pytest.param(at_rest(1, 1, MORE), id="one"),
        pytest.param(at_rest(1, 2, MORE), id="two"),
        pytest.param(at_rest(2, 2, 2), id="two-at-least"),
        pytest.param(at_rest(1, 3, MORE), id="three"),
        pytest.param(at_rest(1, 2, MORE, RecoveryMode.FIXED), id="fixed"),
        pytest.param(at_start(1, 2, 1, elastic=False), id="from-the-start-with-no-state"),
        pytest.param(at_rest(1, 2, 2, elastic=False), id="two-with-no-state"),
        pytest.param(at_rest(2, 3, MORE, elastic=False), id="three-with-no-state"),
    ],
)
def test_it_trains_again_and_keeps_the_state(start: State) -> None:
    search = Search(start)
    for number, state in enumerate(search.states):
        assert not state.lost, f"{state.lost}\n{search.story(number)}"
        assert not state.ended, f"{state.ended}\n{search.story(number)}"
    for schedule in (eagerly, lazily):
        ticks = search.ticks_until_it_trains(schedule)
        longest = max(range(len(ticks)), key=ticks.__getitem__)
        assert ticks[longest] <= MOST_TICKS, f"{ticks[longest]} seconds\n{search.story(longest, schedule)}"


HANGS = tuple(Hang)
BOUND = (
    FIRST_COMMIT * AT_WORK * STANDSTILL  # All sleep, in a world that has not committed.
    + ANSWER
    + MAX_WAIT  # None comes back.
    + 3 * FORMING_TIME
    + 12
)
"""Until a run trains again, or ends; one that has not committed twice has :data:`DAY` instead of the first."""
DAY = COLLECTIVE


def first_world(engine: Engine) -> State:
    """Two workers are ready, and no rank was started."""
    ready = tuple(Worker(index, here=index < 2, ready=index < 2) for index in range(WORKERS))
    return replace(at_start(1, 2, 1, engine=engine), workers=ready)


def then_anything(engine: Engine) -> State:
    """A rank hangs, and then there is a loss, a notice, another size, or another one hangs."""
    return replace(at_rest(2, 2, 2, engine=engine), hangs_first=True)


@pytest.fixture
def short_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """For which a run without two commits is left alone, if nothing shows whether its ranks move."""
    monkeypatch.setattr(standstill, "LONGEST_BUSY", DAY)


@pytest.mark.usefixtures("short_day")
@pytest.mark.parametrize("engine", Engine)
@pytest.mark.parametrize(
    ("start", "at_once", "kinds"),
    [
        pytest.param(first_world, 2, HANGS, id="the-first-world"),
        pytest.param(partial(at_rest, 1, 2, 1), 2, HANGS, id="two"),
        pytest.param(partial(at_rest, 2, 2, 1), 2, HANGS, id="two-at-least"),
        pytest.param(partial(at_rest, 1, 3, 1), 3, HANGS, id="three"),
        pytest.param(then_anything, 1, (Hang.ASLEEP,), id="then-anything"),
        pytest.param(then_anything, 2, HANGS, id="then-anything-of-all", marks=pytest.mark.long),
        pytest.param(partial(at_start, 1, 2, 1), 2, HANGS, id="from-the-start", marks=pytest.mark.long),
        pytest.param(partial(at_rest, 1, 1, 2), 1, HANGS, id="one-and-anything", marks=pytest.mark.long),
    ],
)
def test_whoever_hangs_the_run_trains_again_or_ends(
    start: Callable[..., State], at_once: int, kinds: tuple[Hang, ...], engine: Engine
) -> None:
    """Any of its ranks are stopped, asleep or silent, each in its way, at any moment."""
    search = Search(hanging(start(engine=engine), *kinds, at_once=at_once))
    bound = BOUND if search.states[0].trained else BOUND + DAY
    for number, state in enumerate(search.states):
        assert not state.lost, f"{state.lost}\n{search.story(number)}"
        assert state.has_hung or not state.ended, f"{state.ended}\n{search.story(number)}"
    for schedule in (eagerly, lazily):
        ticks = search.ticks_until_it_trains(schedule)
        longest = max(range(len(ticks)), key=ticks.__getitem__)
        assert ticks[longest] <= bound, f"{ticks[longest]} seconds\n{search.story(longest, schedule)}"
