"""Which workers hold the others back for good, and whether one of them is to be replaced; pure.

All ranks of a world need the same time for a step, since each waits for the slowest. So what is compared is the part of
the time that each works: all of it, less what it waits longer than the rank that waits least, which waits for messages
alone. With *w* as the part of its time that rank *i* waits::

    own(i) = 1 - (w(i) - min w),  skew = own(slowest rank of a worker) / median own(ranks of the others)

A worker is slow if its skew is above the factor in each of :data:`SLICES` slices of the window. So one long evaluation,
or one slow minute, makes nobody slow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from elastic_runtime.engines.base import SessionState
from elastic_runtime.launcher.decision.facts import DecisionSettings, Facts
from elastic_runtime.run.spec import Stragglers

SLICES = 5
"""Slices of the window, in each of which a worker has to be slow."""
LEAST_STEPS = 2
"""Steps of each slice; with fewer, one rank may have been seen at work more than another by chance."""
COVERED = 0.9
"""Part of the window that a rank has to have told of."""
LEAST_WORKERS = 3
"""For a replacement: of two, the slow one may be the usual one."""
LEAST_OWN = 0.01
"""Part of its time that a rank works at least, for others to be compared with it."""
HOUR, PER_HOUR, PER_LAUNCHER = 3600.0, 2, 10
"""Workers that are replaced in an hour, and by one launcher, at most."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a rank tells: see :class:`~elastic_runtime.protocol.rank_link.OwnTime`."""

    end: float
    """When it was told."""
    seconds: float
    waited: float
    steps: int


@dataclass(frozen=True, slots=True)
class WorkerPace:
    """How long a worker's own work takes, over the window or what there is of it."""

    seconds: float
    """A step, of its slowest rank."""
    skew: float
    """Times as long as the others."""
    others: float
    """Seconds a step, of the ranks of the others: the median."""


@dataclass(frozen=True, slots=True)
class StragglerFacts:
    """What is known of the present world's ranks, and of what was done before."""

    samples: Mapping[str, Sequence[Sequence[Sample]]]
    """Of each rank, in order, by worker; those that are older than the window are left out."""
    told: Collection[str] = ()
    """Workers that were told of."""
    replaced: tuple[float, ...] = ()
    """When workers were replaced."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that holds the others back."""

    worker: str
    message: str
    """For people."""
    replace: bool
    """It is to leave, for another one to come."""


def paces(samples: Mapping[str, Iterable[Iterable[Sample]]]) -> dict[str, WorkerPace]:
    """Compare workers by what their ranks have told.

    Returns:
        Paces by worker; none if not every rank has told of time and steps, or there are not two workers.
    """
    sums = {worker: [_summed(each) for each in ranks] for worker, ranks in samples.items()}
    every = [each for ranks in sums.values() for each in ranks]
    if len(sums) < 2 or not all(sums.values()) or not all(each.seconds and each.steps for each in every):
        return {}
    least = min(each.waited / each.seconds for each in every)
    step = median(each.seconds / each.steps for each in every)
    own = {
        worker: [max(LEAST_OWN, 1 - (each.waited / each.seconds - least)) for each in ranks]
        for worker, ranks in sums.items()
    }
    ordered = sorted(each for ranks in own.values() for each in ranks)
    found = {}
    for worker, ranks in own.items():
        slowest, others = max(ranks), median_without(ordered, ranks)
        found[worker] = WorkerPace(slowest * step, slowest / others, others * step)
    return found


def _summed(samples: Iterable[Sample]) -> Sample:
    known = list(samples)
    seconds, waited = sum(each.seconds for each in known), sum(each.waited for each in known)
    return Sample(known[-1].end if known else 0.0, seconds, waited, sum(each.steps for each in known))


def median_without(ordered: Sequence[float], left_out: Iterable[float]) -> float:
    """Return the median of the rest, of which there has to be one, in a time that does not grow with it.

    Args:
        ordered: ascending.
        left_out: some of these.
    """
    gone = sorted(left_out)

    def of_the_rest(index: int) -> float:
        for each in gone:
            if each <= ordered[index]:
                index += 1
        return ordered[index]

    rest = len(ordered) - len(gone)
    return (of_the_rest((rest - 1) // 2) + of_the_rest(rest // 2)) / 2


def slow_workers(
    samples: Mapping[str, Sequence[Sequence[Sample]]], factor: float, window: float, now: float
) -> dict[str, WorkerPace]:
    """Return workers that are slow in the window and each slice of it, the slowest first, with their paces in it."""
    every = [rank for ranks in samples.values() for rank in ranks]
    if any(sum(each.seconds for each in rank) < COVERED * window for rank in every):
        return {}
    slow = {worker: pace for worker, pace in paces(samples).items() if pace.skew > factor}
    for number in range(SLICES if slow else 0):
        until, since = now - number * window / SLICES, now - (number + 1) * window / SLICES
        part = {
            worker: [[each for each in rank if since < each.end <= until] for rank in ranks]
            for worker, ranks in samples.items()
        }
        steps = [sum(each.steps for each in rank) for ranks in part.values() for rank in ranks]
        found = paces(part) if min(steps, default=0) >= LEAST_STEPS else {}
        slow = {worker: pace for worker, pace in slow.items() if worker in found and found[worker].skew > factor}
    return dict(sorted(slow.items(), key=lambda each: -each[1].skew))


def decide_stragglers(
    known: StragglerFacts, facts: Facts, settings: DecisionSettings, now: float
) -> tuple[Straggler, ...]:
    """Return workers that have become slow, each once; one that could not be replaced again, if it can be now.

    Args:
        known: of the ranks.
        facts: how things stand.
        settings: what was asked for.
        now: seconds of the same clock as all times.
    """
    recovery, session = settings.recovery, facts.session
    if session is None or session.state is not SessionState.SETTLED:
        return ()
    slow = slow_workers(known.samples, recovery.factor, recovery.window, now)
    asked = recovery.stragglers is Stragglers.REPLACE
    if not slow or (asked and _is_changing(facts)):
        return ()
    found = list[Straggler]()
    for worker, pace in slow.items():
        obstacle = _obstacle(known, facts, settings, now, len(slow)) if asked else ""
        if asked and any(each.replace for each in found):
            obstacle = "one is replaced at a time"
        replace = asked and not obstacle
        if replace or worker not in known.told:
            then = "; it is replaced" if replace else f"; it is not replaced: {obstacle}" if obstacle else ""
            found.append(Straggler(worker, f"{_words(worker, pace, recovery.window)}{then}", replace))
    return tuple(found)


def _is_changing(facts: Facts) -> bool:
    """Whether another size, a pause or the end is on its way."""
    leaving = any(each.leaving for each in facts.workers)
    ends = facts.pause is not None or facts.ending is not None or facts.ended is not None
    return leaving or ends or sum(not each.joined for each in facts.workers) != facts.wanted


def _obstacle(known: StragglerFacts, facts: Facts, settings: DecisionSettings, now: float, slow: int) -> str:
    """Why no worker can be replaced, for people; empty: one can."""
    workers = len(known.samples)
    if workers < LEAST_WORKERS:
        return f"with {workers} workers, it may be the others that are fast"
    if 2 * slow >= workers:
        return f"{slow} of {workers} workers are slow"
    if len(facts.workers) <= settings.workers.minimum:
        return f"fewer than workers.min={settings.workers.minimum} would remain"
    if len(known.replaced) >= PER_LAUNCHER:
        return f"{PER_LAUNCHER} were replaced since the launcher has started"
    if sum(now - each < HOUR for each in known.replaced) >= PER_HOUR:
        return f"{PER_HOUR} were replaced within an hour"
    return ""


def _words(worker: str, pace: WorkerPace, window: float) -> str:
    span = f"{window / 60:g} minutes" if window >= 120 else f"{window:g} s"
    others = f"{_seconds(pace.seconds)} a step where the others take {_seconds(pace.others)}"
    return f"{worker} takes {pace.skew:.1f} times as long as the others for {span}: {others}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
