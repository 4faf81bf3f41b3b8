"""What the launcher decides while a pause is asked for, and during it, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.decide import observe
from elastic_runtime.launcher.decision.facts import (
    CloseSession,
    Decision,
    Ending,
    EndWorkers,
    LeadershipState,
    ListRanks,
    PauseFact,
    Refusal,
    RefusePause,
    StepDown,
    StopTraining,
)
from elastic_runtime.run.status import Phase
from tests.unit.runtime.decide_bench import (
    FRESH,
    NOW,
    SETTLED,
    USUAL,
    WAITING,
    A,
    B,
    C,
    Row,
    by_its_words,
    decide_now,
    ended,
    facts,
    failed,
    forming,
    session,
    settings,
    since,
    worker,
)

PAUSE = PauseFact("paused by ada since 12:00")
TRAINS = facts(2, A, B, session=session(SETTLED, "a", "b"), trained=True, pause=PAUSE)
PAUSED = facts(2, trained=True, pause=PAUSE)
RESTARTS = SessionFact(SETTLED, ("a", "b"), restarts=True)
STOPS = Decision((StopTraining(),), Phase.RUNNING, "to be paused at the next commit, once that is durable")
CLOSES = Decision((CloseSession(),), Phase.RUNNING, "the last commit is durable: all workers are given up")
HELD = Decision((EndWorkers(),), Phase.PAUSED, PAUSE.words)
LATE = "no commit has become durable within 1800 s (recovery.max_wait)"

ASKED = [
    Row("a world that trains stops at its next commit", TRAINS, STOPS),
    Row(
        "so does one in which another size is under way",
        replace(TRAINS, wanted=3, workers=(A, B, C)),
        STOPS,
    ),
    Row(
        "so does one of whom a worker has a notice",
        replace(TRAINS, workers=(A, worker("b", leaving=True))),
        STOPS,
    ),
    Row("it is closed once that commit is durable", replace(TRAINS, stands=True), CLOSES),
    Row(
        "ranks that are restarted write and end",
        replace(TRAINS, session=RESTARTS),
        Decision((ListRanks((), 1),), Phase.RUNNING, "to be paused: all ranks write a checkpoint and end"),
    ),
    Row(
        "they are awaited while they do",
        replace(TRAINS, session=replace(RESTARTS, state=SessionState.FORMING, listed=(), stage=Stage.LEAVING)),
        Decision((), Phase.RUNNING, "a new world is forming"),
    ),
    Row(
        "their session is closed when they have",
        replace(TRAINS, session=replace(ended(SessionOutcome.SHORT, "all"), restarts=True)),
        Decision((CloseSession(),), Phase.RUNNING, "the ranks ended as they were asked to: all"),
    ),
    Row(
        "of ranks that wait one writes what they hold",
        replace(TRAINS, session=session(WAITING, "a")),
        Decision((StopTraining(),), Phase.SUSPENDED, "to be paused once the last commit is durable"),
    ),
    Row(
        "they are given up once it is durable",
        replace(TRAINS, session=session(WAITING, "a"), stands=True),
        replace(CLOSES, phase=Phase.SUSPENDED),
    ),
    Row(
        "a world that forms comes to train first",
        replace(TRAINS, session=forming()),
        Decision((), Phase.RUNNING, "a new world is forming"),
    ),
    Row(
        "a first world is given up, since there is nothing to keep",
        replace(TRAINS, session=forming(holders=None), trained=False),
        Decision((CloseSession(),), Phase.STARTING, "paused before its ranks had met"),
    ),
    Row(
        "ranks that are ending end the run",
        replace(TRAINS, session=session(SessionState.FINISHING, "a", "b")),
        Decision((), Phase.RUNNING, "the ranks are ending"),
    ),
    Row(
        "so do those of whom one has returned",
        replace(TRAINS, ending=Ending(((0, 9),), (1,), 9)),
        Decision((), Phase.RUNNING, "1 ranks have ended their training, 1 have not"),
    ),
    Row("a run without a session has no worker any more", PAUSED, HELD),
    Row("nor one that has not begun", replace(PAUSED, trained=False), HELD),
    Row("a worker that comes late is sent away", replace(PAUSED, workers=(A, B, C)), HELD),
]
BOUNDS = [
    Row(
        "a commit that does not come is not waited for for ever",
        TRAINS,
        Decision((RefusePause(LATE),), Phase.RUNNING, LATE),
        clocks=since(pausing_since=NOW - 1801),
    ),
    Row("it is for as long as an evaluation may last", TRAINS, STOPS, clocks=since(pausing_since=NOW - 1800)),
    Row(
        "waits that are bounded otherwise are not, in a pause",
        replace(PAUSED, refusal=Refusal("no room", hopeless=True)),
        HELD,
        clocks=since(launched=NOW - 1e6, short_since=NOW - 1e6, hopeless_since=NOW - 1e6),
    ),
    Row("a pause lasts", replace(PAUSED, pause=PauseFact(PAUSE.words, 7 * 86400.0)), HELD),
    Row(
        "but not for ever",
        replace(PAUSED, pause=PauseFact(PAUSE.words, 7 * 86400.0 + 1)),
        failed(FailureKind.MAX_PAUSE_EXCEEDED, f"{PAUSE.words}: longer than 604800 s (recovery.max_pause)"),
    ),
    Row(
        "unless it may",
        replace(PAUSED, pause=PauseFact(PAUSE.words, 1e9)),
        HELD,
        settings=settings(max_pause=0.0),
    ),
]


@by_its_words([*ASKED, *BOUNDS])
def test_a_pause(row: Row) -> None:
    assert row.decide() == row.decided


@by_its_words(ASKED)
def test_one_that_is_withdrawn_has_no_effect(row: Row) -> None:
    actions = set(row.decide(pause=None, stands=False).actions)
    assert not {StopTraining(), EndWorkers(), ListRanks((), 1)} & actions


@pytest.mark.parametrize("given", [TRAINS, PAUSED])
def test_what_ends_a_run_or_its_launcher_goes_before(given: object) -> None:
    assert decide_now(replace(given, cancel="enough")).reason == "cancelled: enough"  # type: ignore[type-var]
    [action] = decide_now(replace(given, leadership=LeadershipState.LOST)).actions  # type: ignore[type-var]
    assert action == StepDown(handover=False)


def test_a_launcher_that_makes_way_in_a_pause_says_that_it_is_one() -> None:
    decided = decide_now(replace(PAUSED, leadership=LeadershipState.ENDING))
    assert (decided.actions, decided.phase) == ((StepDown(handover=False),), Phase.PAUSED)


def test_limits_begin_anew_after_a_pause() -> None:
    before = since(launched=NOW - 1e6, short_since=NOW - 1e6, hopeless_since=NOW - 1e6)
    paused = observe(before, PAUSED, USUAL, NOW)
    resumed = replace(PAUSED, pause=None)
    after = observe(paused, resumed, USUAL, NOW + 1)
    assert (after.launched, after.short_since) == (NOW, NOW + 1)
    assert decide_now(resumed, clocks=after) == Decision((), Phase.SUSPENDED, "0 of 2 ranks can start")


def test_how_long_it_is_pausing_is_known_until_it_is_paused() -> None:
    asked = observe(FRESH, TRAINS, USUAL, NOW)
    assert asked.pausing_since == NOW
    assert observe(asked, TRAINS, USUAL, NOW + 9).pausing_since == NOW
    assert observe(asked, PAUSED, USUAL, NOW + 9).pausing_since is None
    assert observe(asked, replace(TRAINS, pause=None), USUAL, NOW + 9).pausing_since is None
