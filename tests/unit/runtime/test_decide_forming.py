"""For how long a world may form, row by row of the table in ``docs/failures.md``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.engines.base import SessionFact, SessionState, Stage
from elastic_runtime.launcher.decision.decide import bound_of, decide, observe
from elastic_runtime.launcher.decision.facts import (
    Clocks,
    CloseSession,
    DecisionSettings,
    Facts,
    LeadershipState,
    ReformWorld,
    StepDown,
)
from elastic_runtime.run.spec import RecoverySpec, Timing, WorkersSpec
from elastic_runtime.run.status import Phase

FORMING, MAX_WAIT = 10.0, 100.0
SETTINGS = DecisionSettings(WorkersSpec(1, 3, 3), RecoverySpec(max_wait=MAX_WAIT), Timing(forming=FORMING))
CONNECTING, RETURNING, LEAVING = Stage
HELD = ("a", "b")


def forming(
    stage: Stage,
    holders: tuple[str, ...] | None,
    arrived: str = "",
    awaited: str = "",
    *,
    stopped: bool = False,
    hung: bool = False,
    world: int = 2,
    unheard: str = "",
) -> SessionFact:
    return SessionFact(
        SessionState.FORMING,
        ("a", "b", "c"),
        detail="rank 2 (c) ended with code 1" if stage is RETURNING else "",
        world=world,
        holders=holders,
        hung=hung,
        given_up=stopped,
        stage=stage,
        arrived=tuple(arrived),
        awaited=tuple(awaited),
        unheard=tuple(unheard),
    )


@pytest.mark.parametrize(
    ("session", "seconds", "action"),
    [
        pytest.param(forming(LEAVING, None, awaited="a"), None, None, id="processes-that-end"),
        pytest.param(forming(CONNECTING, None, world=1), None, None, id="a-first-world"),
        pytest.param(forming(CONNECTING, None, awaited="a"), FORMING, CloseSession(), id="another-world-with-no-state"),
        pytest.param(forming(RETURNING, None, "", "ab", world=1), FORMING, CloseSession(), id="over-with-no-state"),
        pytest.param(forming(RETURNING, (), unheard="b"), FORMING, CloseSession(), id="over-and-one-may-have-it"),
        pytest.param(forming(CONNECTING, HELD, "ab", "c"), FORMING, ReformWorld(), id="a-newcomer-does-not-come"),
        pytest.param(forming(CONNECTING, HELD, "bc", "a"), FORMING, ReformWorld(), id="a-holder-does-not-come"),
        pytest.param(forming(RETURNING, HELD, "a", "b"), FORMING, ReformWorld(), id="one-does-not-come-back"),
        pytest.param(forming(RETURNING, HELD, "", "ab"), MAX_WAIT, CloseSession(), id="none-has-come-back"),
        pytest.param(
            forming(RETURNING, HELD, "a", "b", stopped=True), 2 * FORMING, CloseSession(), id="stopped-and-does-not-end"
        ),
        pytest.param(
            forming(RETURNING, HELD, hung=True), 0.0, CloseSession(), id="those-that-have-it-cannot-come-back"
        ),
        pytest.param(forming(RETURNING, HELD), FORMING, ReformWorld(), id="an-engine-that-names-nobody"),
    ],
)
def test_each_stage_has_its_bound(session: SessionFact, seconds: float | None, action: object) -> None:
    bound = bound_of(session, SETTINGS)
    assert (bound.seconds if bound else None) == seconds
    facts = Facts(3, (), session, trained=True)

    def decided(waited: float) -> tuple[object, ...]:
        clocks = Clocks(0.0, forming_since=0.0, world=session.world, stage=session.stage)
        return decide(facts, clocks, SETTINGS, waited).actions

    assert decided(1e6 if seconds is None else seconds) == ()
    if seconds is not None:
        assert decided(seconds + 0.1) == (action,)


def said(session: SessionFact, waited: float) -> tuple[Phase, str]:
    facts, clocks = Facts(3, (), session, trained=True), Clocks(0.0, forming_since=0.0)
    decision = decide(facts, clocks, SETTINGS, waited)
    return decision.phase, decision.reason


def test_the_reason_names_whom_the_others_wait_for() -> None:
    waits = forming(RETURNING, HELD, "a", "b")
    assert said(waits, 0.5) == (Phase.RUNNING, "a world is over")
    assert said(waits, 2.0) == (
        Phase.RUNNING,
        "rank 2 (c) ended with code 1; a world is over, and waits for b to come back: stopped after 10 s",
    )
    assert said(waits, 11.0) == (Phase.RUNNING, "no new world within 11 s: b did not come")
    connects = forming(CONNECTING, HELD, "", "abcde")
    assert said(connects, 2.0)[1] == (
        "a new world is forming, and waits for a, b, c and 2 more to connect: stopped after 10 s"
    )


def test_the_reason_of_an_end_names_the_rank_that_failed_and_its_code() -> None:
    assert said(forming(RETURNING, None, "", "ab"), 11.0) == (
        Phase.SUSPENDED,
        "rank 2 (c) ended with code 1; no new world within 11 s: a and b did not come, and no rank has a state to wait "
        "for",
    )


def test_each_stage_of_a_world_has_its_own_time() -> None:
    clocks = Clocks(0.0)
    for now, stage in enumerate((RETURNING, RETURNING, CONNECTING, RETURNING, RETURNING)):
        clocks = observe(clocks, Facts(3, (), forming(stage, HELD)), SETTINGS, float(now))
    assert clocks.forming_since == 3.0


def test_a_newcomer_that_hangs_while_others_train_is_stopped() -> None:
    clocks = Clocks(0.0)

    def decided(now: float, *starting: str) -> tuple[tuple[object, ...], str]:
        nonlocal clocks
        session = SessionFact(SessionState.SETTLED, (), world=1, holders=HELD, starting=starting)
        facts = Facts(0, (), session, trained=True)
        clocks = observe(clocks, facts, SETTINGS, now)
        decision = decide(facts, clocks, SETTINGS, now)
        assert decision.phase is Phase.RUNNING
        return decision.actions, decision.reason

    assert decided(0.0, "c", "d")[0] == ()
    assert decided(FORMING, "c", "d")[0] == ()
    late = "c and d did not get ready for a world within 11 s of the start"
    assert decided(FORMING + 1, "c", "d") == ((ReformWorld(),), late)
    assert decided(FORMING + 2, "d")[0] == (), "it is the first from now on"
    assert decided(FORMING + 3)[0] == ()
    assert decided(100.0, "d")[0] == ()


def test_ranks_at_the_barrier_can_hand_over() -> None:
    facts = Facts(3, (), forming(RETURNING, HELD, "a", "b"), trained=True, leadership=LeadershipState.ENDING)
    assert decide(facts, Clocks(0.0), SETTINGS, 1.0).actions == (StepDown(handover=True),)
    nobody = replace(facts, session=forming(RETURNING, None, "", "ab"))
    assert decide(nobody, Clocks(0.0), SETTINGS, 1.0).actions == (StepDown(handover=False),)
