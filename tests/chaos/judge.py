"""Whether a run came through what was done to it: pure, from the times of its steps, its phases and the faults.

All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from tests.chaos.plan import Fault, FaultKind

LONGEST_PAUSE = 15.0
"""Seconds for which the training may stand still without a reason that it cannot help."""
ORDERLY_NOTICE = 5.0
"""Seconds; of a notice that is so far ahead, all that has to happen can happen in time."""


@dataclass(frozen=True, slots=True)
class Span:
    """From a moment to a later one."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """0 for one that is turned round."""
        return max(0.0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Applied:
    """A fault as it was really done."""

    fault: Fault
    at: float
    pids: tuple[int, ...] = ()
    """Of the processes that it hit. Those that end with one of them are named too, where it is killed."""
    workers: tuple[str, ...] = ()
    until: float | None = None
    """When a process that stood still, or a run that was paused, went on, or the next launcher had a world."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the status said from this moment on."""

    at: float
    suspended: bool
    able: int
    """Workers whose ranks could train: their agents are here and ready, and will not be taken."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time without a step."""

    span: Span
    explained: float
    """Seconds of it in which a step could not be expected."""

    @property
    def unexplained(self) -> float:
        """Seconds that are the run's own."""
        return self.span.seconds - self.explained


def pauses(steps: Iterable[float], end: float, reasons: Sequence[Span]) -> list[Pause]:
    """The times between one step and the next, and from the last one to the run's end, the worst first.

    Args:
        steps: when any rank has completed one, in any order. The time before the first is the run's start, no pause.
        end: when the run was over.
        reasons: when the training could not go on; see :func:`explanations`.
    """
    moments = [*sorted(steps), end]
    reasons = merged(reasons)
    found = [Pause(span, overlap(span, reasons)) for span in (Span(a, b) for a, b in pairwise(moments))]
    return sorted(found, key=lambda pause: pause.unexplained, reverse=True)


def explanations(applied: Sequence[Applied], looks: Sequence[Look], minimum: int, end: float) -> list[Span]:
    """When the training could not go on, whatever the launcher does.

    That is: while a process was stopped by us, unless we have killed it meanwhile; while we had the run paused; until
    another launcher has its first world; and while it was suspended with fewer workers than its minimum. What it takes
    to recover afterwards is the run's own time.

    Args:
        applied: every fault, in the order of their times.
        looks: what the status said, in order, each until the next.
        minimum: workers.
        end: when the run was over.
    """
    stopped = [
        Span(stop.at, min(stop.until or end, _killed(stop, applied), end)) for stop in applied if stop.fault.kind.stops
    ]
    without = (FaultKind.PAUSE, FaultKind.LOSE_LAUNCHER)
    paused = [Span(each.at, each.until or end) for each in applied if each.fault.kind in without]
    nexts = [*(look.at for look in looks[1:]), end]
    short = [
        Span(look.at, until)
        for look, until in zip(looks, nexts, strict=False)
        if look.suspended and look.able < minimum
    ]
    return [*stopped, *paused, *short]


def _killed(stop: Applied, applied: Sequence[Applied]) -> float:
    """When we have killed it; never: infinity."""
    kills = (kill for kill in applied if kill.fault.kind.kills and kill.at >= stop.at)
    return min((kill.at for kill in kills if set(stop.pids) <= set(kill.pids)), default=float("inf"))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same moments, no moment twice, in order."""
    result: list[Span] = []
    for span in sorted((span for span in spans if span.seconds), key=lambda span: span.begin):
        if result and span.begin <= result[-1].end:
            result[-1] = Span(result[-1].begin, max(result[-1].end, span.end))
        else:
            result.append(span)
    return result


def overlap(span: Span, disjoint: Iterable[Span]) -> float:
    """Seconds of ``span`` that are in one of the others."""
    return sum(Span(max(span.begin, other.begin), min(span.end, other.end)).seconds for other in disjoint)


@dataclass(frozen=True, slots=True)
class Digests:
    """What one rank's whole state was after a step."""

    step: int
    rank: int
    size: int
    """Of the rank's world."""
    entries: Mapping[str, str]
    """A digest of each, by its name."""

    @property
    def place(self) -> str:
        """Which rank it was."""
        return f"rank {self.rank} of {self.size}"


@dataclass(frozen=True, slots=True)
class Try:
    """What one launcher had trained, of a run that several have looked after, one after the other."""

    first: int
    """Step."""
    last: int
    stored: int = 0
    """Step of the newest checkpoint when it was lost, as far as that was told; 0: of none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round went."""

    ended: str
    """Empty for a run that has succeeded; else why it has not."""
    weights: tuple[float, ...]
    """At the end, the same on every rank; empty where there are none."""
    pauses: tuple[Pause, ...]
    """The worst first."""
    left: tuple[str, ...]
    """Processes and keys that are still there."""
    repeated: int = 0
    """Steps that the world did more than once, where checkpoints are written."""
    digests: tuple[Digests, ...] = ()
    """In any order; several of a step that was done again."""
    tries: tuple[Try, ...] = ()
    """In order."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What every round has to come to."""

    weights: tuple[float, ...]
    digests: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By step, of each entry of the state."""

    @classmethod
    def by(cls, undisturbed: Outcome) -> Expected:
        """This outcome. Where its ranks differ, it is not as expected itself."""
        return cls(undisturbed.weights, {each.step: each.entries for each in undisturbed.digests})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a round, each in words, or empty."""

    wrong: str = ""
    """It did not end as the undisturbed one does, or has lost a step for nothing."""
    apart: str = ""
    """Some rank's state was not that of the undisturbed run after the same step, nor perhaps that of other ranks."""
    pause: str = ""
    left: str = ""

    @property
    def troubles(self) -> list[str]:
        """All that is wrong."""
        return [words for words in (self.wrong, self.apart, self.pause, self.left) if words]


def judge(outcome: Outcome, applied: Sequence[Applied], expected: Expected) -> Verdict:
    """Compare a round with the undisturbed one."""
    return Verdict(
        wrong=outcome.ended
        or _compare(outcome.weights, expected.weights)
        or _lost(outcome.repeated, applied)
        or _elsewhere(outcome.tries),
        apart=_first_apart(outcome.digests, expected) or _undigested(outcome, expected),
        pause=_too_long(outcome.pauses),
        left=f"left behind: {', '.join(outcome.left)}" if outcome.left else "",
    )


def apart(digests: Iterable[Digests], expected: Expected) -> list[Digests]:
    """Those that are not the expected ones, in the order of steps and ranks."""
    found = [each for each in digests if dict(each.entries) != dict(expected.digests.get(each.step, {}))]
    return sorted(found, key=lambda each: (each.step, each.size, each.rank))


def _first_apart(digests: Iterable[Digests], expected: Expected) -> str:
    """In words, the first step at which states differ."""
    for step, group in groupby(apart(digests, expected), key=lambda each: each.step):
        others = list(group)
        return f"after step {step}, {'; '.join(_entries_apart(others, expected.digests.get(step, {})))}"
    return ""


def _entries_apart(others: Sequence[Digests], wanted: Mapping[str, str]) -> Iterator[str]:
    """In words; entries that differ at the same ranks are named together."""
    names = dict.fromkeys(name for entries in (wanted, *(each.entries for each in others)) for name in entries)
    entries_at: dict[str, list[str]] = {}
    for name in names:
        differing = [each for each in others if each.entries.get(name) != wanted.get(name)]
        if places := dict.fromkeys(each.place for each in differing):
            alike = len({each.entries.get(name) for each in differing}) == 1
            among = "" if len(places) == 1 else " alike" if alike else ", and from each other"
            entries_at.setdefault(f"on {', '.join(places)} from the undisturbed run's{among}", []).append(name)
    for where, together in entries_at.items():
        yield f"{', '.join(together)} {'differ' if len(together) > 1 else 'differs'} {where}"


def _undigested(outcome: Outcome, expected: Expected) -> str:
    """In words, the first steps of which no rank has given digests in a run that came to its end."""
    missing = sorted(set(expected.digests) - {each.step for each in outcome.digests})
    return f"no digests after steps {', '.join(map(str, missing))}" if missing and not outcome.ended else ""


def orderly(applied: Iterable[Applied]) -> bool:
    """Whether nothing was done that may cost a step: only sizes, pauses, and notices in time."""
    faults = [each.fault for each in applied]
    return all(fault.kind.planned or (fault.kind.notices and fault.seconds >= ORDERLY_NOTICE) for fault in faults)


def _lost(repeated: int, applied: Sequence[Applied]) -> str:
    return f"{repeated} steps were done again, and nobody was killed" if repeated and orderly(applied) else ""


def _elsewhere(tries: Sequence[Try]) -> str:
    """In words, a launcher that did not go on at the newest checkpoint; without one, at the first step."""
    for lost, after in pairwise(tries):
        if not lost.stored < after.first <= (lost.last + 1 if lost.stored else 1):
            of_stored = f"the checkpoint of step {lost.stored}" if lost.stored else "no checkpoint"
            return f"the next launcher began with step {after.first}, with {of_stored} and {lost.last} steps done"
    return ""


def _compare(weights: tuple[float, ...], undisturbed: tuple[float, ...]) -> str:
    if not weights or len(weights) != len(undisturbed):
        return f"{len(weights)} weights, {len(undisturbed)} are expected"
    differences = [abs(a - b) for a, b in zip(weights, undisturbed, strict=True) if a != b]
    if not differences:
        return ""
    return f"{len(differences)} of {len(weights)} weights differ, by up to {max(differences):.3g}"


def _too_long(found: Sequence[Pause]) -> str:
    worst = max(found, key=lambda pause: pause.unexplained, default=None)
    if worst is None or worst.unexplained <= LONGEST_PAUSE:
        return ""
    return f"no step for {worst.span.seconds:.1f} s, of which {worst.unexplained:.1f} s are without a reason"
