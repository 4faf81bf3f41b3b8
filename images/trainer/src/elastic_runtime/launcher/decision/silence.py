"""Which workers are lost though their connections are there, pure: they say nothing, and their world stands since then.

A machine that vanishes closes no connection. Its silence alone proves little, for an agent may wait for a busy
processor; but then the world goes on, or it is slow, and stood before.
"""

from __future__ import annotations

from elastic_runtime.engines.base import SessionState
from elastic_runtime.launcher.decision.facts import Clocks, DecisionSettings, Facts
from elastic_runtime.run.waits import CONFIRMING_BEATS, HEARD_BEATS, SILENT_BEATS


def silent(facts: Facts, settings: DecisionSettings, now: float) -> tuple[str, ...]:
    """Workers of a world that trains, from which nothing was heard since it has stopped to commit."""
    session, commits, beat = facts.session, facts.commits, settings.timing.heartbeat
    if session is None or session.state is not SessionState.SETTLED or commits is None or not commits.begun:
        return ()
    usual = max(commits.usual, beat)
    if now - commits.last <= usual:
        return ()
    listed = set(session.listed)
    of_world = [each.name for each in facts.workers if listed.intersection(slot.rank_id for slot in each.slots)]
    heard = {name: facts.heard[name] for name in of_world if name in facts.heard}
    if not any(now - moment <= HEARD_BEATS * beat for moment in heard.values()):
        return ()
    # Commits that had stopped before say nothing: ranks evaluate.
    return tuple(
        name for name, moment in heard.items() if now - moment > SILENT_BEATS * beat and commits.last >= moment - usual
    )


def confirmed(clocks: Clocks, settings: DecisionSettings, now: float) -> tuple[str, ...]:
    """Those of them that have been suspected for long enough."""
    if clocks.silent_since is None or now - clocks.silent_since < CONFIRMING_BEATS * settings.timing.heartbeat:
        return ()
    return clocks.silent
