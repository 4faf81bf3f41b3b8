"""Memory of the launcher between two looks at the facts: since when each condition has lasted. Pure."""

from __future__ import annotations

from elastic_runtime.engines.base import SessionState, Stage
from elastic_runtime.launcher.decision.decide import minimum_ranks
from elastic_runtime.launcher.decision.facts import Clocks, DecisionSettings, Facts


def observe(clocks: Clocks, facts: Facts, settings: DecisionSettings, now: float) -> Clocks:
    """The clocks after this look.

    Args:
        clocks: after the look before.
        facts: how things stand.
        settings: what was asked for.
        now: seconds of the same clock as all times.
    """
    usable = sum(len(worker.slots) for worker in facts.workers if worker.ready and not worker.leaving)
    gathering = facts.session is None and usable >= minimum_ranks(facts, settings)
    session = facts.session
    world = session.world if session else 0
    stage = session.stage if session else Stage.CONNECTING
    same_world = clocks.forming_since if (world, stage) == (clocks.world, clocks.stage) else None
    is_finishing = session is not None and session.state is SessionState.FINISHING
    return Clocks(
        launched=clocks.launched,
        short_since=_short_since(clocks, facts, now),
        gathering_since=_since(clocks.gathering_since, gathering, now),
        hopeless_since=_since(clocks.hopeless_since, facts.refusal is not None and facts.refusal.hopeless, now),
        forming_since=_since(same_world, session is not None and session.state is SessionState.FORMING, now),
        world=world,
        finishing_since=_since(clocks.finishing_since, is_finishing, now),
        ending_since=_since(clocks.ending_since, facts.ending is not None, now),
        stage=stage,
    )


def _since(before: float | None, lasts: bool, now: float) -> float | None:
    return (now if before is None else before) if lasts else None


def _short_since(clocks: Clocks, facts: Facts, now: float) -> float | None:
    if facts.session is not None and facts.session.state is SessionState.FORMING:
        return clocks.short_since  # Worlds that are lost again and again, before they are complete, make no progress.
    return _since(clocks.short_since, facts.trained and not facts.has_world, now)
