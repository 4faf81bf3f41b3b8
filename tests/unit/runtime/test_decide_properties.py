"""The launcher's decision: what holds for any facts whatever. Row by row: test_decide and its like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.launcher.decision.decide import choose_ranks, decide, minimum_ranks
from elastic_runtime.launcher.decision.facts import (
    Clocks,
    CloseSession,
    Decision,
    DecisionSettings,
    Facts,
    Finish,
    LeadershipState,
    ListRanks,
    OpenSession,
    ReformWorld,
    ReleaseWorker,
    SlotFact,
    StepDown,
    WorkerFact,
)
from elastic_runtime.launcher.decision.leaving import ranks_due, staying
from elastic_runtime.run.spec import RecoveryMode
from elastic_runtime.run.status import Phase
from tests.examples import rewarding
from tests.unit.runtime.decide_bench import NOW, settings

pytestmark = pytest.mark.timeout(240)
Situation = tuple[Facts, Clocks, DecisionSettings]
Check = Callable[[Situation], None]
ALWAYS: list[Check] = []
WHILE_IT_GOES_ON: list[Check] = []

NAMES = tuple("abcdefgh")
SLOTS = 2


@st.composite
def some_settings(draw: st.DrawFn) -> DecisionSettings:
    low, middle, high = sorted(draw(st.tuples(*[st.integers(1, 5)] * 3)))
    return settings(low, middle, high, SLOTS, mode=draw(st.sampled_from(RecoveryMode)))


@st.composite
def some_workers(draw: st.DrawFn) -> tuple[WorkerFact, ...]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    flags, moments, ends = st.booleans(), st.sampled_from([0.0, NOW + 5]), st.sampled_from([None, NOW + 5, NOW + 500])
    workers = (
        WorkerFact(
            name,
            ready=draw(flags),
            slots=tuple(SlotFact(f"{name}{index}", draw(moments)) for index in range(SLOTS)),
            leaving=draw(flags),
            running=draw(flags),
        )
        for name in names
    )
    return tuple(replace(each, gone_at=draw(ends), punctual=draw(flags)) if each.leaving else each for each in workers)


@st.composite
def some_session(draw: st.DrawFn) -> SessionFact | None:
    if draw(st.booleans()):
        return None
    state = draw(st.sampled_from(SessionState))
    listed = draw(
        st.lists(st.sampled_from([f"{name}{index}" for name in NAMES for index in range(SLOTS)]), unique=True)
    )
    outcome = draw(st.sampled_from(SessionOutcome)) if state is SessionState.ENDED else None
    known = st.lists(st.sampled_from(listed), unique=True).map(tuple) if listed else st.just(())
    restarts = draw(st.booleans())  # Then the state is in the script's checkpoints, and nobody's.
    return SessionFact(
        state,
        tuple(listed),
        outcome,
        world=1,
        restarts=restarts,
        holders=None if restarts else draw(st.none() | known),
        given_up=draw(st.booleans()),
        stage=draw(st.sampled_from(Stage)),
        awaited=draw(known),
        arrived=draw(known),
        unheard=draw(known),
    )


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Anything that the launcher can find itself in: the size is within its bounds, as its platform see to."""
    chosen = draw(some_settings())
    moments = st.none() | st.floats(0, NOW)
    return (
        Facts(
            wanted=draw(st.integers(chosen.workers.minimum, chosen.workers.maximum)),
            workers=draw(some_workers()),
            session=draw(some_session()),
            trained=draw(st.booleans()),
            rank_failures=draw(st.sampled_from([0, 0, 0, 11])),
            cancel=draw(st.sampled_from([None, None, None, "enough"])),
            leave_time=draw(st.sampled_from([None, 1.0, 60.0])),
            leadership=draw(st.sampled_from([LeadershipState.HELD, LeadershipState.HELD, *LeadershipState])),
        ),
        Clocks(draw(st.sampled_from([NOW - 10_000, NOW - 1])), draw(moments), draw(moments), draw(moments)),
        chosen,
    )


@st.composite
def living_situations(draw: st.DrawFn) -> Situation:
    """One in which nothing ends the run."""
    given, clocks, chosen = draw(situations())
    going = replace(given, rank_failures=0, cancel=None, leadership=LeadershipState.HELD)
    if going.session and going.session.outcome not in (None, SessionOutcome.LOST):
        going = replace(going, session=None)
    return going, Clocks(NOW - 1, gathering_since=clocks.gathering_since), chosen


def leaving_ranks(given: Facts) -> set[str]:
    return {slot.rank_id for each in given.workers if each.leaving for slot in each.slots}


def holders(given: Facts) -> set[str]:
    """Ranks that have the state, of workers that are here."""
    ready = {slot.rank_id for each in given.workers if each.ready for slot in each.slots}
    return ready & set(given.session.holders or () if given.session else ())


def listed_in(given: Facts) -> tuple[str, ...]:
    """By rank, and who has the state still, listed no more."""
    return tuple(dict.fromkeys((*(given.session.holders or ()), *given.session.listed))) if given.session else ()


class TestAnySituation:
    """What must hold, of the same situations: to draw one takes longer than to ask everything of it."""

    @rewarding()
    @given(situations())
    def test_always(self, situation: Situation) -> None:
        for holds in ALWAYS:
            holds(situation)

    @rewarding()
    @given(living_situations())
    def test_while_it_goes_on(self, situation: Situation) -> None:
        for holds in WHILE_IT_GOES_ON:
            holds(situation)


def always(check: Check) -> Check:
    ALWAYS.append(check)
    return check


def while_it_goes_on(check: Check) -> Check:
    WHILE_IT_GOES_ON.append(check)
    return check


@always
def an_end_is_the_only_action_and_final(situation: Situation) -> None:
    decided = decide(*situation, NOW)
    ends = [action for action in decided.actions if isinstance(action, Finish)]
    assert bool(ends) == decided.phase.final
    if ends:
        assert list(decided.actions) == ends
        assert (ends[0].failure is None) == (ends[0].phase is Phase.SUCCEEDED)
        assert ends[0].phase is decided.phase


@always
def making_way_is_the_only_action(situation: Situation) -> None:
    facts, *_ = situation
    actions = decide(*situation, NOW).actions
    ways = [action for action in actions if isinstance(action, StepDown)]
    assert not ways or list(actions) == ways
    assert (facts.leadership is not LeadershipState.LOST) or ways
    assert facts.leadership is not LeadershipState.HELD or not ways


@while_it_goes_on
def goes_on_unless_something_ends_it(situation: Situation) -> None:
    assert not decide(*situation, NOW).phase.final


@always
def never_more_ranks_than_wanted_but_for_one_that_alone_holds_the_state(situation: Situation) -> None:
    given, _, chosen = situation
    ranks = choose_ranks(given, chosen, NOW)
    assert len(set(ranks)) == len(ranks)
    holding = set(ranks) & holders(given)
    alone = len(holding) == 1 and holding <= leaving_ranks(given)
    assert len(ranks) <= given.wanted * SLOTS + alone


@always
def leaving_ones_are_kept_only_while_they_last_or_for_the_minimum_or_for_the_state(situation: Situation) -> None:
    given, _, chosen = situation
    ranks, going = choose_ranks(given, chosen, NOW), leaving_ranks(given)
    assert going & set(ranks) <= set(listed_in(given)), "a worker with a notice is never newly listed"
    if kept := going & set(ranks) - staying(given, chosen, NOW):
        alone = kept & holders(given) and not holders(given) & (set(ranks) - going)
        assert len(ranks) <= minimum_ranks(given, chosen) or (alone and len(ranks) - len(kept) <= given.wanted * SLOTS)


@always
def the_state_is_kept_where_only_leaving_ones_hold_it(situation: Situation) -> None:
    given, _, chosen = situation
    if holders(given) and holders(given) <= leaving_ranks(given):
        assert holders(given) & set(choose_ranks(given, chosen, NOW))


@always
def only_ranks_that_can_run(situation: Situation) -> None:
    given, _, chosen = situation
    ready = {slot.rank_id: slot for each in given.workers if each.ready for slot in each.slots}
    for rank_id in choose_ranks(given, chosen, NOW):
        assert rank_id in ready
        assert ready[rank_id].usable_at <= NOW or rank_id in listed_in(given)


@always
def ranks_that_train_stay_in_order_and_before_newcomers(situation: Situation) -> None:
    given, _, chosen = situation
    ranks, before = choose_ranks(given, chosen, NOW), listed_in(given)
    survivors = [rank_id for rank_id in ranks if rank_id in before]
    assert list(ranks[: len(survivors)]) == survivors
    assert survivors == [rank_id for rank_id in before if rank_id in survivors]


@always
def no_newcomer_in_the_place_of_one_that_could_stay(situation: Situation) -> None:
    given, _, chosen = situation
    ranks, before = set(choose_ranks(given, chosen, NOW)), listed_in(given)
    could_stay = {
        slot.rank_id for each in given.workers if each.ready and not each.leaving for slot in each.slots
    } & set(before)
    if ranks - set(before):
        assert could_stay <= ranks


@always
def changes_no_world_that_is_forming_or_ending(situation: Situation) -> None:
    given, clocks, chosen = situation
    if given.session and given.session.state in (SessionState.FORMING, SessionState.FINISHING):
        for action in decide(given, clocks, chosen, NOW).actions:
            broken = given.session.holders == ()
            allowed = ReleaseWorker | Finish | StepDown
            assert isinstance(action, allowed | CloseSession | ReformWorld if broken else allowed)


@always
def lists_at_least_the_minimum_where_ranks_train(situation: Situation) -> None:
    given, clocks, chosen = situation
    for action in decide(given, clocks, chosen, NOW).actions:
        if isinstance(action, OpenSession):
            assert given.session is None
            assert len(action.ranks) >= action.minimum == minimum_ranks(given, chosen)
        if isinstance(action, ListRanks):
            assert given.session is not None
            assert action.minimum == minimum_ranks(given, chosen)
            due = ranks_due(given, chosen, NOW) & set(given.session.listed)
            assert given.session.state is SessionState.WAITING or due or len(action.ranks) >= action.minimum


@always
def nobody_trains_on_who_would_be_taken_with_the_state_unsaved(situation: Situation) -> None:
    given, clocks, chosen = situation
    trains = given.session is not None and given.session.state is SessionState.SETTLED
    due = ranks_due(given, chosen, NOW) & set(listed_in(given))
    decided = decide(given, clocks, chosen, NOW)
    if trains and due and not any(isinstance(action, Finish | StepDown | CloseSession) for action in decided.actions):
        [listing] = [action for action in decided.actions if isinstance(action, ListRanks)]
        assert not due & set(listing.ranks)


@always
def releases_only_who_leaves_and_runs_nothing(situation: Situation) -> None:
    given, clocks, chosen = situation
    by_name = {each.name: each for each in given.workers}
    decided = decide(given, clocks, chosen, NOW)
    newly = {rank_id for action in decided.actions if isinstance(action, ListRanks) for rank_id in action.ranks}
    for action in decided.actions:
        if isinstance(action, ReleaseWorker):
            released = by_name[action.name]
            assert released.leaving
            assert not released.running
            assert not {slot.rank_id for slot in released.slots} & newly


@while_it_goes_on
def does_nothing_twice(situation: Situation) -> None:
    given, clocks, chosen = situation
    after = carried_out(given, decide(given, clocks, chosen, NOW))
    assert decide(after, clocks, chosen, NOW).actions == ()


def carried_out(given: Facts, decided: Decision) -> Facts:
    """The facts right after these actions, when nothing else has happened yet."""
    for action in decided.actions:
        match action:
            case ReleaseWorker(name):
                given = replace(given, workers=tuple(each for each in given.workers if each.name != name))
            case ListRanks(ranks, minimum):
                assert given.session is not None
                given = replace(given, session=replace(given.session, listed=ranks, minimum=minimum))
            case OpenSession(ranks):
                given = replace(given, session=SessionFact(SessionState.FORMING, ranks))
            case ReformWorld():
                assert given.session is not None
                given = replace(given, session=replace(given.session, given_up=True))
            case CloseSession():
                # What follows is a decision of its own, about other facts.
                given = replace(given, session=SessionFact(SessionState.FORMING, ()), workers=())
            case Finish() | StepDown():
                raise AssertionError("an end among living situations")
    return given
