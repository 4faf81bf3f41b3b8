"""Where the time of a disturbed training went: pure, from the times of its steps, its worlds and the kills.

All times are seconds of one monotonic clock. Every second from the first whole step to the last is in one share, so
that the shares add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any


class Share(StrEnum):
    """What a second was spent on; all but the first are lost."""

    TRAINING = "steps at the undisturbed pace"
    REDONE = "the step in flight at a kill, done again"
    NOTICING = "from a kill until the last survivor has noticed, its own computation included"
    FORMING = "until all ranks of the next world are connected"
    RESTORING = "until the last of them is in its training function"
    CHANGING = "planned changes: a replacement joins, a noticed worker leaves"
    FEWER = "fewer ranks share the computation"
    SLOWER = "steps that took longer for other reasons"


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A step as the last rank of its world completed it, the last time that it was done."""

    number: int
    time: float
    size: int
    """Ranks of that world."""


@dataclass(frozen=True, slots=True)
class Moments:
    """When something happened that a step had to wait for, each in order."""

    kills: Sequence[float] = ()
    noticed: Sequence[float] = ()
    """A rank's training function ended with an exception."""
    worlds: Sequence[float] = ()
    """All ranks of a world were connected."""
    entered: Sequence[float] = ()
    """A rank was in its training function."""


def whole_steps(notes: Iterable[Mapping[str, Any]]) -> list[WholeStep]:
    """Of notes with ``step``, ``rank``, ``size`` and ``time``; steps that some rank never did are left out."""
    tries: dict[int, dict[tuple[int, int], float]] = {}
    for note in notes:
        times = tries.setdefault(note["step"], {})
        key = note["size"], note["rank"]
        times[key] = max(times.get(key, note["time"]), note["time"])
    found = []
    for number, times in sorted(tries.items()):
        # The ranks of its last try: a world that was broken in it may have been larger, or as large.
        size = max(times, key=times.__getitem__)[0]
        ranks = [time for (of, _), time in times.items() if of == size]
        if len(ranks) == size:
            found.append(WholeStep(number, max(ranks), size))
    return found


def pace(steps: Sequence[WholeStep]) -> float:
    """Seconds a step, from the first to the last. Raises ValueError for fewer than two."""
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} whole steps: no pace")
    return (steps[-1].time - steps[0].time) / (steps[-1].number - steps[0].number)


def account(
    steps: Sequence[WholeStep], moments: Moments, undisturbed: float, computing: float, full: int
) -> dict[Share, float]:
    """Seconds by share.

    Args:
        steps: in the order of their numbers.
        moments: of the same run.
        undisturbed: seconds a step, of the run that nobody disturbs.
        computing: seconds of it that are computation, which the ranks of a world share.
        full: ranks of a world from which nobody is missing.
    """
    seconds = dict.fromkeys(Share, 0.0)
    for before, after in pairwise(steps):
        passed, due = after.time - before.time, undisturbed * (after.number - before.number)
        fewer = computing * (full / after.size - 1) * (after.number - before.number)
        noticed = _within(moments.noticed, before.time, after.time)
        if noticed:
            for share, part in _loss(moments, before.time, after.time, noticed[-1]).items():
                seconds[share] += part
                passed -= part
        elif _within(moments.worlds, before.time, after.time):
            seconds[Share.CHANGING] += passed - due - fewer
            passed = due + fewer
        seconds[Share.TRAINING] += due
        seconds[Share.FEWER] += fewer
        seconds[Share.SLOWER] += passed - due - fewer
    return seconds


def _loss(moments: Moments, begin: float, end: float, noticed: float) -> dict[Share, float]:
    """What lies between two steps before the first step's own time."""
    killed = max((kill for kill in moments.kills if kill <= noticed), default=begin)
    connected = max(_within(moments.worlds, noticed, end), default=noticed)
    entered = max(_within(moments.entered, connected, end), default=connected)
    redone = max(killed - begin, 0.0)
    return {
        Share.REDONE: redone,
        Share.NOTICING: noticed - begin - redone,
        Share.FORMING: connected - noticed,
        Share.RESTORING: entered - connected,
    }


def _within(times: Sequence[float], begin: float, end: float) -> list[float]:
    return [time for time in times if begin < time <= end]
