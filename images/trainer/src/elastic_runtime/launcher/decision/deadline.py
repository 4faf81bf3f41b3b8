"""Size of a run that shall be done by a time, or cost at most so much. Pure.

**Uniform progress.** A run with *W* steps left and *T* seconds to its deadline is on the uniform line if it makes ``W /
T`` steps a second. Each look finds the smallest size that is at least that fast::

    m = min { n : d(n) <= T - r },  d(n) = W / θ(n)

A run that is ahead of the line gets fewer workers, one that is behind gets more. This is the policy "Uniform Progress"
of Wu et al., *Can't Be Late: Optimizing Spot Instance Savings under Deadlines* (NSDI 2024), for a number of workers
instead of one machine. Their choice between spot and on-demand machines is left out: a run has workers of one kind.

**Reserve.** A market may take machines at any time, and there are no others. So *r* seconds are left before the
deadline, :data:`RESERVE` of the time that the run has trained and has left. As their policy, which uses each spot
machine that there is, a look takes more workers than *m* as long as these cost hardly more until the end::

    n = max { n >= m : n * d(n) <= q * m * d(m) }

with *q* = :data:`PREMIUM` and *d* as estimated, without a bound. With θ proportional to *n*, all workers cost as much
as few of them, and the run is done early.

**Throughput.** ``d(n)`` is the estimate of :mod:`elastic_runtime.launcher.record.time_left` with *n* workers wanted. It
uses measured sizes, infers others from a step of ``a + b / n`` seconds (so that θ is concave), and has the time until
missing workers are there. θ is taken at a lower bound: ``d(n)`` is halfway from the estimate to the interval's end.

**Cost.** *n* workers cost ``c(n) = p * n * (d(n) + e)`` until the end, at *p* dollars a second for each, where *e* is
:data:`ENDING`. *R* dollars are left of the budget:

* A run takes at most the largest size with ``c(n) <= R``.
* Without a deadline, it takes the size with the largest ``R / d(n) - p * n``. As θ is concave, each worker pays then:
  it makes as many steps for a dollar as each dollar that is left has to buy, ``(θ(n) - θ(n - 1)) / p >= W / R``. This
  has θ at an upper bound, halfway to the interval's other end, so that a size that has not trained is tried.

A look asks for at most :data:`GROWTH` times as many workers, and for no more while some are missing. So each size
on the way is measured, and tells more of the next one.

**Hysteresis.** A size is kept as long as it is between the size that is needed now and the one that were needed with
:data:`MARGIN` times the durations, costs and *q*; without a deadline, as long as it is the best with ``MARGIN * θ(n)``.
So estimates that vary by 3 % do not change it to and fro.

A size that somebody else has asked for is kept for :data:`HOLD`, whatever follows from it. A deadline that passes ends
nothing; then the fastest size trains to the end. At the budget the run is stopped (:func:`over_budget`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo

from elastic_runtime.run.deadline import MAX_WORDS, DeadlineSpec
from elastic_runtime.run.spec import WorkersSpec
from elastic_runtime.run.status import shortened

LOOK = timedelta(minutes=1)
"""Time from one decision to the next."""
HOLD = timedelta(hours=1)
"""For which a size is kept that somebody else has asked for."""
MARGIN = 1.15
"""More than the ratio of two times or costs, each of two estimates that are 3 % off, to whichever side."""
GROWTH = 2
"""How many times as many workers one look may ask for."""
ENDING = 30.0
"""Seconds that workers are still there after the stop at a budget, at most: hand-over, and end of the ranks."""
RESERVE = 0.2
"""Share of a run's time that the uniform line leaves before the deadline."""
PREMIUM = 1.05
"""How many times the cost of the fewest workers more of them may cost."""
MOST_SIZES = 100
"""Sizes that are compared; of more, some are left out."""
HOUR = 3600.0


class Trouble(StrEnum):
    """What stands in the way."""

    UNKNOWN = "unknown"
    """Nobody knows how many steps are left."""
    LATE = "late"
    """It ends after the deadline."""
    COSTLY = "costly"
    """It costs more than the budget."""
    PASSED = "passed"
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """Settings that do not change during a run."""

    deadline: DeadlineSpec
    workers: WorkersSpec


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Time to the last step with a number of workers."""

    workers: int
    least: float
    """Lower end of the interval, at most :attr:`seconds`."""
    seconds: float
    """Estimated, more than 0."""
    most: float
    """Upper end of the interval, at least :attr:`seconds`."""

    @property
    def prudent(self) -> float:
        """*d* of the module."""
        return (self.seconds + self.most) / 2

    @property
    def hopeful(self) -> float:
        """The same at the upper bound of θ."""
        return (self.least + self.seconds) / 2

    @property
    def surely(self) -> float:
        """The estimate, or less if it is far from sure, so that no trouble is told that a wide interval alone makes."""
        return min(self.seconds, MARGIN * self.least)


@dataclass(frozen=True, slots=True)
class DeadlineFacts:
    """How things stand at one moment."""

    wanted: int
    """Workers asked for."""
    worker_seconds: float
    """For which workers have been here so far, summed."""
    sizes: tuple[SizeEstimate, ...] = ()
    """By workers, those that can be had: of :func:`compared`, with :attr:`wanted`. Empty: there is no estimate."""
    measured: float = 0.0
    """Seconds for which the pace was measured so far."""
    missing: bool = False
    """Fewer workers train than are wanted."""
    steps_known: bool = True
    """It is known how many steps are left."""
    held_until: datetime | None = None
    """Until when the size is kept that somebody has asked for."""
    trouble: frozenset[Trouble] = frozenset()
    """At the look before."""


@dataclass(frozen=True, slots=True)
class DeadlineDecision:
    """What follows."""

    workers: int
    """To be asked for."""
    why: str = ""
    """For people: why these, if they are others than before."""
    trouble: frozenset[Trouble] = frozenset()
    words: str = ""
    """For people: of the trouble; without any, when the run ends and what it costs; empty: that is not known."""


def decide(facts: DeadlineFacts, settings: DeadlineSettings, now: datetime) -> DeadlineDecision:
    """Decide how many workers the run shall have.

    Args:
        facts: how things stand.
        settings: what was asked for.
        now: aware.
    """
    if not facts.sizes:
        return _unknown(facts, settings, now)
    held = facts.held_until is not None and now < facts.held_until
    aim = facts.wanted if held else _aim(facts, settings, now)
    most = max(facts.wanted, min(aim, facts.wanted if facts.missing else GROWTH * facts.wanted))
    workers = min(aim, max(each.workers for each in facts.sizes if each.workers <= most))
    return _told(workers, aim, facts, settings.deadline, now, held=held)


def compared(workers: WorkersSpec, wanted: int) -> Sequence[int]:
    """Return the sizes to compare, ascending: those within the bounds, or some of many, and the one that is wanted."""
    least, most = workers.minimum, workers.maximum
    return sorted({*range(least, most + 1, (most - least) // MOST_SIZES + 1), most, wanted})


def spent(worker_seconds: float, deadline: DeadlineSpec) -> float | None:
    """Return the dollars for so much time of workers. None: no price is known."""
    return None if deadline.price is None else worker_seconds / HOUR * deadline.price


def over_budget(worker_seconds: float, here: int, deadline: DeadlineSpec) -> str | None:
    """Return why the run is to be stopped, for people. None: it may still cost something.

    Args:
        worker_seconds: for which workers have been here so far, summed.
        here: workers that cost something now.
        deadline: of the run.
    """
    dollars, end = spent(worker_seconds, deadline), spent(ENDING * here, deadline)
    if deadline.budget is None or dollars is None or end is None or dollars + end < deadline.budget:
        return None
    hours = f"{worker_seconds / HOUR:.3g} worker hours at {deadline.price:g} $"
    return (
        f"the budget of {deadline.budget:.2f} $ is reached: {dollars:.2f} $ are spent ({hours}), and the rest is for "
        "the hand-over and the end of the workers (deadline.budget)"
    )


def _dollars_left(facts: DeadlineFacts, deadline: DeadlineSpec) -> float | None:
    """*R* of the module. None: there is no budget."""
    dollars = spent(facts.worker_seconds, deadline)
    return None if deadline.budget is None or dollars is None else deadline.budget - dollars


def _aim(facts: DeadlineFacts, settings: DeadlineSettings, now: datetime) -> int:
    deadline, wanted, sizes = settings.deadline, facts.wanted, facts.sizes
    dollars, price = _dollars_left(facts, deadline), (deadline.price or 0.0) / HOUR
    found = []
    if deadline.by is not None:
        seconds = (deadline.by - now).total_seconds()
        early = seconds - RESERVE * (facts.measured + max(0.0, seconds))
        found.append(_kept(wanted, lambda margin: _early(sizes, wanted, early / margin, PREMIUM * margin)))
    if dollars is not None:
        found.append(_kept(wanted, lambda margin: _affordable(sizes, dollars / margin, price)))
    if dollars is not None and deadline.by is None:
        found.append(_paying(sizes, wanted, dollars, price))
    return min(found)


def _kept(wanted: int, size: Callable[[float], int]) -> int:
    """The size that is wanted, if it is between those without and with a margin; else the nearer one of these."""
    low, high = sorted((size(1.0), size(MARGIN)))
    return min(max(wanted, low), high)


def _in_time(sizes: Sequence[SizeEstimate], wanted: int, seconds: float) -> int:
    """The smallest size that is fast enough, else the fastest, or a larger one that is wanted and nearly as fast."""
    if fast := [each.workers for each in sizes if each.prudent <= seconds]:
        return min(fast)
    best = min(sizes, key=lambda each: (each.prudent, each.workers))
    nearly = wanted > best.workers and _of(sizes, wanted).prudent <= MARGIN * best.prudent
    return wanted if nearly else best.workers


def _early(sizes: Sequence[SizeEstimate], wanted: int, seconds: float, premium: float) -> int:
    """The largest size that costs at most so many times as much as the fewest workers that are in time."""
    fewest = _in_time(sizes, wanted, seconds)
    most = premium * fewest * _of(sizes, fewest).seconds
    return max(each.workers for each in sizes if each.workers >= fewest and each.workers * each.seconds <= most)


def _affordable(sizes: Sequence[SizeEstimate], dollars: float, price: float) -> int:
    """The largest size that ends within so many dollars, else the smallest of all."""
    cheap = (each.workers for each in sizes if price * each.workers * (each.prudent + ENDING) <= dollars)
    return max(cheap, default=sizes[0].workers)


def _paying(sizes: Sequence[SizeEstimate], wanted: int, dollars: float, price: float) -> int:
    """The size all of whose workers pay, unless the one that is wanted is nearly as good."""
    worth = {each.workers: dollars / each.hopeful - price * each.workers for each in sizes}
    best = max(worth, key=lambda workers: (worth[workers], -workers))
    return wanted if MARGIN * dollars / _of(sizes, wanted).hopeful - price * wanted >= worth[best] else best


def _of(sizes: Sequence[SizeEstimate], workers: int) -> SizeEstimate:
    return next(each for each in sizes if each.workers == workers)


# For people.


def _unknown(facts: DeadlineFacts, settings: DeadlineSettings, now: datetime) -> DeadlineDecision:
    """Nothing can be decided."""
    by, trouble, words = settings.deadline.by, set(), []
    if by is not None and now >= by:
        trouble.add(Trouble.PASSED)
        words.append(f"the deadline {_clock(by, now, settings.deadline)} has passed")
    # A script may report its first steps before it tells how many there are.
    if not facts.steps_known and facts.measured >= LOOK.total_seconds():
        trouble.add(Trouble.UNKNOWN)
        words.append(
            "the steps that are left are not known, so the size stays as it is: have the script tell how many steps it "
            "has, report(step, of=...)"
        )
    return DeadlineDecision(facts.wanted, "", frozenset(trouble), shortened("; ".join(words), MAX_WORDS))


def _told(
    workers: int, aim: int, facts: DeadlineFacts, deadline: DeadlineSpec, now: datetime, *, held: bool
) -> DeadlineDecision:
    def ends(number: int) -> str:
        return f"with {_workers(number)}, it {_outcome(_of(facts.sizes, number), facts, deadline, now)}"

    size, trouble, words = _of(facts.sizes, aim), set(), [ends(aim)]
    if deadline.by is not None:
        seconds, by = (deadline.by - now).total_seconds(), _clock(deadline.by, now, deadline)
        if seconds <= 0:
            trouble.add(Trouble.PASSED)
            words.append(f"the deadline {by} has passed")
        elif size.surely * _margin(Trouble.LATE, facts) > seconds:
            trouble.add(Trouble.LATE)
            words.append(f"that is after {by}{_way_out(aim, facts, deadline, seconds, held=held)}")
    dollars = _dollars_left(facts, deadline)
    if dollars is not None and _cost(size.workers, size.surely, deadline) * _margin(Trouble.COSTLY, facts) > dollars:
        trouble.add(Trouble.COSTLY)
        words.append(f"that is more than the budget of {deadline.budget:.2f} $, at which it will be stopped")
    why = "" if workers == facts.wanted else f"{ends(workers)}; {ends(facts.wanted)}"
    return DeadlineDecision(workers, why, frozenset(trouble), shortened("; ".join(words), MAX_WORDS))


def _margin(trouble: Trouble, facts: DeadlineFacts) -> float:
    """What has been told is over once there is some room."""
    return MARGIN if trouble in facts.trouble else 1.0


def _way_out(workers: int, facts: DeadlineFacts, deadline: DeadlineSpec, seconds: float, *, held: bool) -> str:
    """What it would take to be in time, or why it cannot be had."""
    if held:
        return ", and this size was asked for"
    larger = [each for each in facts.sizes if each.seconds <= seconds and each.workers > workers]
    if not larger or deadline.budget is None:
        return ""
    total = _cost(larger[0].workers, larger[0].seconds, deadline) + (spent(facts.worker_seconds, deadline) or 0.0)
    return f"; in time it takes {_workers(larger[0].workers)} and {total:.2f} $"


def _outcome(size: SizeEstimate, facts: DeadlineFacts, deadline: DeadlineSpec, now: datetime) -> str:
    words = f"ends at {_clock(now + timedelta(seconds=size.seconds), now, deadline)} at this pace"
    dollars = spent(facts.worker_seconds, deadline)
    if dollars is None:
        return words
    return f"{words} and costs {dollars + _cost(size.workers, size.seconds, deadline):.2f} $"


def _cost(workers: int, seconds: float, deadline: DeadlineSpec) -> float:
    """Dollars to the end, the last step being so far away."""
    return spent(workers * (seconds + ENDING), deadline) or 0.0


def _workers(number: int) -> str:
    return f"{number} worker{'' if number == 1 else 's'}"


def _clock(moment: datetime, now: datetime, deadline: DeadlineSpec) -> str:
    """A time of day in the deadline's zone, with the date unless that is today's."""
    zone = _zone(deadline.time_zone)
    local, today = moment.astimezone(zone), now.astimezone(zone).date()
    return f"{local:%H:%M}" if local.date() == today else f"{local:%Y-%m-%d %H:%M}"


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC  # There is no tzdata here.
