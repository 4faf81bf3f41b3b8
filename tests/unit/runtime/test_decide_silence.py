"""The launcher's decision about workers that say nothing, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionState
from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import Clocks, CommitFact, Decision, Facts, GiveUpWorker
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import NOW, SETTLED, USUAL, A, B, C, facts, session

TICK = 0.25
LONG = 15.0
"""Seconds after which silence alone has ended a worker."""


def moments() -> Iterator[float]:
    """Since the last heartbeat."""
    return (TICK * step for step in range(1, int(LONG / TICK)))


def given(ago: dict[str, float], committed: float, longest: float = 0.5) -> Facts:
    """Three that train, heard of so many seconds ago, the last commit too."""
    heard = {name: NOW - seconds for name, seconds in ago.items()}
    commits = CommitFact(NOW - committed, longest)
    return facts(3, A, B, C, session=session(SETTLED, "a", "b", "c"), heard=heard, commits=commits, trained=True)


def lost_after(quiet: set[str], stands: bool, longest: float = 0.5, stood_before: float = 0.0) -> float | None:
    """Seconds of silence of these after which one is given up, as the others go on to be heard."""
    clocks = Clocks(launched=0.0, world=0)
    for seconds in moments():
        now = NOW + seconds
        heard = {name: NOW if name in quiet else now - 0.5 for name in "abc"}
        last = NOW - stood_before if stands else now - 0.3
        seen = replace(given({}, 0.0, longest), heard=heard, commits=CommitFact(last, longest))
        clocks = observe(clocks, seen, USUAL, now)
        actions = decide(seen, clocks, USUAL, now).actions
        if given_up := {action.name for action in actions if isinstance(action, GiveUpWorker)}:
            assert given_up == quiet
            return seconds
    return None


def test_one_that_is_silent_while_the_world_stands_is_lost_before_three_heartbeats() -> None:
    assert lost_after({"b"}, stands=True) == pytest.approx(2.75, abs=TICK)


def test_two_that_vanish_together_are_lost_together() -> None:
    assert lost_after({"a", "b"}, stands=True) == pytest.approx(2.75, abs=TICK)


def test_long_steps_take_their_time() -> None:
    assert lost_after({"b"}, stands=True, longest=3.0) == pytest.approx(2 * 3.0 + 1.0, abs=2 * TICK)


def test_silence_alone_is_not_enough() -> None:
    assert lost_after({"b"}, stands=False) is None


def test_a_world_that_stood_before_says_nothing() -> None:
    """Its ranks evaluate."""
    assert lost_after({"b"}, stands=True, stood_before=5.0) is None


def test_where_nobody_is_heard_it_may_be_the_launcher() -> None:
    assert lost_after({"a", "b", "c"}, stands=True) is None


def test_says_why() -> None:
    silent = given({"a": 0.5, "b": 3.2, "c": 0.5}, committed=3.0)
    clocks = Clocks(launched=0.0, silent_since=NOW - 1.0, silent=("b",))
    assert decide(silent, clocks, USUAL, NOW) == Decision(
        (GiveUpWorker("b", "its agent has been silent for 3.2 s, and no rank has committed"),),
        Phase.RUNNING,
        "b is silent",
    )


def test_one_that_is_heard_again_is_suspected_anew() -> None:
    silent = given({"a": 0.5, "b": 2.5, "c": 0.5}, committed=2.5)
    suspected = observe(Clocks(launched=0.0), silent, USUAL, NOW)
    assert (suspected.silent, suspected.silent_since) == (("b",), NOW)
    heard = observe(suspected, given({"a": 0.5, "b": 0.1, "c": 0.5}, committed=3.4), USUAL, NOW + 0.9)
    assert (heard.silent, heard.silent_since) == ((), None)


@pytest.mark.parametrize("state", [state for state in SessionState if state is not SETTLED])
def test_only_of_a_world_that_trains(state: SessionState) -> None:
    """Others have bounds of their own."""
    silent = given({"a": 0.5, "b": 9.0, "c": 0.5}, committed=9.0)
    assert (
        observe(Clocks(launched=0.0), replace(silent, session=session(state, "a", "b", "c")), USUAL, NOW).silent == ()
    )


def test_the_first_step_of_a_world_takes_its_time() -> None:
    silent = given({"a": 0.5, "b": 3.0, "c": 0.5}, committed=3.0)
    assert observe(Clocks(launched=0.0), silent, USUAL, NOW).silent == ("b",)
    compiling = replace(silent, commits=CommitFact(NOW - 3.0, 0.5, begun=False))
    assert observe(Clocks(launched=0.0), compiling, USUAL, NOW).silent == ()


def test_before_two_commits_nothing_is_known() -> None:
    silent = replace(given({"a": 0.5, "b": 9.0, "c": 0.5}, committed=9.0), commits=None)
    assert observe(Clocks(launched=0.0), silent, USUAL, NOW).silent == ()
