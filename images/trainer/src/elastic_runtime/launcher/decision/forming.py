"""For how long a world may form, or end, and what follows when it takes longer: a table, pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic_runtime.engines.base import SessionFact, SessionState, Stage
from elastic_runtime.launcher.decision.facts import DecisionSettings

MAX_NAMED = 3
"""Rank ids that a reason names."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Of one stage of a session."""

    seconds: float
    """Since the stage has begun."""
    closes: bool
    """What follows. True: the session is closed, or where its ranks are ending, the run fails. False: who has not come
    is stopped, and the others go on."""


def bound_of(session: SessionFact, settings: DecisionSettings) -> Bound | None:
    """Of a session whose state is FORMING or FINISHING; None: the start's own bounds apply, or the ranks' agents'.

    ====================  ==============================  ==========================  ==================================
    stage                 the state                       bound                       what follows
    ====================  ==============================  ==========================  ==================================
    leaving               --                              the agents' grace           --
    connecting            none yet: a first world         ``start_timeout``, or       the run fails
                                                          ``max_wait``
    any other             nobody holds it                 ``forming``                 the session is closed
    connecting            held                            ``forming``                 who is not there is stopped
    returning             held, by ranks that say that    none                        the session is closed
                          they cannot come back
    returning             held, and a rank is there       ``forming``                 who is not there is stopped
    returning             held, and no rank is there:     ``max_wait``                the session is closed
                          all may be at work, as in a
                          long evaluation
    retreating            held, and a rank is there       ``forming``                 who is not there is stopped
    retreating            held, and no rank is there      ``forming``                 the session is closed
    any, after a stop     held                            ``forming`` once more       the session is closed
    finishing: a rank     any                             ``max_wait``                the run fails
    has ended with 0
    ====================  ==============================  ==========================  ==================================
    """
    forming = settings.timing.forming
    if session.state is SessionState.FINISHING:
        return Bound(max(forming, settings.recovery.max_wait), closes=True)
    if session.stage is Stage.LEAVING:
        return None
    if not session.holders:
        is_first = session.stage is Stage.CONNECTING and session.world <= 1
        return None if is_first else Bound(forming, closes=True)
    if session.hung:
        return Bound(0.0, closes=True)
    if session.stage is not Stage.CONNECTING and session.awaited and not session.arrived:
        may_work = session.stage is Stage.RETURNING
        return Bound(max(forming, settings.recovery.max_wait) if may_work else forming, closes=True)
    return Bound(2 * forming, closes=True) if session.given_up else Bound(forming, closes=False)


def named(rank_ids: Sequence[str]) -> str:
    """For people."""
    names = list(rank_ids[:MAX_NAMED])
    if more := len(rank_ids) - len(names):
        names.append(f"{more} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def standing(session: SessionFact, bound: Bound | None, waited: float, calm: float) -> str:
    """How a world forms, for people: once it takes longer than ``calm`` seconds, with whom it waits for."""
    is_over = session.stage is Stage.RETURNING
    what = "a world is over" if is_over else "a new world is forming"
    if bound is None or not session.awaited or waited <= calm:
        return what
    ends = f"{session.detail}; " if is_over and session.detail else ""
    who = named(session.awaited)
    where = "to come back" if session.stage is not Stage.CONNECTING else "to connect"
    then = "the session is closed" if bound.closes else "stopped"
    return f"{ends}{what}, and waits for {who} {where}: {then} after {bound.seconds:.0f} s"


def too_late(session: SessionFact, bound: Bound, waited: float) -> str:
    """Why the bound was reached, for people."""
    who = f": {named(session.awaited)} did not come" if session.awaited else ""
    if not bound.closes:
        return f"no new world within {waited:.0f} s{who}"
    ends = f"{session.detail}; " if session.detail else ""
    left = ", and its ranks do not come back" if session.holders else f"{who}, and nobody has a state to wait for"
    return f"{ends}no new world within {waited:.0f} s{left}"
