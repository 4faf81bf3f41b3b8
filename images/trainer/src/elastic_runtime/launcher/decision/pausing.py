"""A pause that is asked for, pure: training stops at a commit, that becomes durable, and then all workers are given up.

=================================  ===================================================================================
a pause is asked for               what follows
=================================  ===================================================================================
while a world trains               its ranks stop at their next commit; once it is durable, the session is closed
the same, ranks that are restarted all write the script's own checkpoint and end
while ranks wait for a world       one of them makes the commit that they hold durable; then the session is closed
while a world forms                nothing until it trains, or its bound is reached; a session's first world is given up
                                   at once: there is no state yet
while ranks end                    nothing: the run ends
without a session                  no worker is asked for any more
=================================  ===================================================================================
"""

from __future__ import annotations

from elastic_runtime.engines.base import SessionFact, SessionState, Stage
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import (
    Clocks,
    CloseSession,
    Decision,
    DecisionSettings,
    EndWorkers,
    Facts,
    Finish,
    ListRanks,
    RefusePause,
    StopTraining,
)
from elastic_runtime.run.status import Phase


def pause(facts: Facts, clocks: Clocks, settings: DecisionSettings, now: float) -> Decision | None:
    """Return what a pause wants done now. None: none is asked for, or the run has to go on for it."""
    asked, session = facts.pause, facts.session
    if asked is None:
        return None
    if session is None:
        longest = settings.recovery.max_pause
        if longest and asked.age > longest:
            late = f"{asked.words}: longer than {longest:.0f} s (recovery.max_pause)"
            return Decision((Finish(Phase.FAILED, FailureKind.MAX_PAUSE_EXCEEDED),), Phase.FAILED, late)
        return Decision((EndWorkers(),), Phase.PAUSED, asked.words)
    waited, longest = now - (now if clocks.pausing_since is None else clocks.pausing_since), settings.recovery.max_wait
    if waited > longest:
        late = f"no commit has become durable within {longest:.0f} s (recovery.max_wait)"
        return Decision((RefusePause(late),), paused_phase(facts), late)
    if facts.stands:
        return Decision((CloseSession(),), paused_phase(facts), "the last commit is durable: all workers are given up")
    return _stop(facts, session)


def paused_phase(facts: Facts) -> Phase:
    """Return the phase of a run that is to be paused."""
    if facts.session is None:
        return Phase.PAUSED
    if facts.session.state is SessionState.WAITING:
        return Phase.SUSPENDED
    return Phase.RUNNING if facts.trained else Phase.STARTING


def _stop(facts: Facts, session: SessionFact) -> Decision | None:
    match session.state:
        case SessionState.FORMING if session.holders is None and session.stage is not Stage.LEAVING:
            return Decision((CloseSession(),), paused_phase(facts), "paused before its ranks had met")
        case SessionState.SETTLED if session.restarts:
            return Decision((ListRanks((), 1),), Phase.RUNNING, "to be paused: all ranks write a checkpoint and end")
        case SessionState.SETTLED if facts.ending is None:
            return Decision((StopTraining(),), Phase.RUNNING, "to be paused at the next commit, once that is durable")
        case SessionState.WAITING if session.holders:
            words = "to be paused once the last commit is durable"
            return Decision((StopTraining(),), Phase.SUSPENDED, words)
    return None
