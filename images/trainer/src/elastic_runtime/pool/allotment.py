"""How many workers of a pool each run has, pure.

In this order:

1. A run that has workers keeps its minimum: nobody is stopped for another run.
2. Runs that have none get their minimum, by priority, then by arrival. If one cannot have it, no run behind it starts,
   or small runs could keep a large one out for ever. A run whose minimum is more than the whole pool stops nobody.
3. What is left goes to the runs that have their minimum, up to the size that they wish for: to the highest priority
   first, and among equal priorities to the run with the fewest.
4. What nobody wishes for goes to greedy runs, up to their maximum, in the same way.

A run with a higher priority so takes from one with a lower priority all but its minimum. While a run waits, the workers
that do not suffice for it train in other runs. Nothing changes unless a wish does: of equal shares that cannot be
equal, the larger stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

_MOST_NAMED = 3
"""Runs that a reason names."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How many workers a run would have."""

    run: str
    """Identifies the run among the wishes."""
    minimum: int
    """Fewest with which it trains, at least 1."""
    wanted: int
    """Asked for; 0: none, as while it is paused. Else from ``minimum`` to ``maximum``."""
    maximum: int
    priority: int = 1
    greedy: bool = False
    """It takes what nobody wishes for."""
    arrival: float = 0.0
    """When it came, in any unit."""
    has: int = 0
    """What it was allotted last; 0: it waits."""
    name: str = ""
    """For people."""

    @property
    def place(self) -> tuple[int, float, str]:
        """Its place in the order of runs, the first is the least."""
        return -self.priority, self.arrival, self.run


def allot(wishes: Iterable[Wish], workers: int) -> dict[str, int]:
    """Divide a pool.

    Args:
        wishes: of all runs, each once.
        workers: most that the pool has.

    Returns:
        Workers by run, 0 or at least the minimum. More than the pool has, if it was made smaller than the minimums of
        those that train.
    """
    queue = sorted((wish for wish in wishes if wish.wanted > 0), key=lambda wish: wish.place)
    given = dict.fromkeys((wish.run for wish in queue), 0)
    left = workers
    for wish in queue:
        if wish.has:
            given[wish.run] = wish.minimum
            left -= wish.minimum
    for wish in queue:
        if wish.has or wish.minimum > workers:
            continue
        if wish.minimum > left:
            break
        given[wish.run] = wish.minimum
        left -= wish.minimum
    started = [wish for wish in queue if given[wish.run]]
    for limit, candidates in (
        (lambda wish: wish.wanted, started),
        (lambda wish: wish.maximum, [wish for wish in started if wish.greedy]),
    ):
        for _, group in groupby(candidates, key=lambda wish: wish.priority):
            left = _level(list(group), given, left, limit)
    return given


def _level(group: Sequence[Wish], given: dict[str, int], left: int, limit: Callable[[Wish], int]) -> int:
    """Give one at a time to the run with the fewest. Returns what is left."""
    while left > 0:
        short = [wish for wish in group if given[wish.run] < limit(wish)]
        if not short:
            break
        least = min(short, key=lambda wish: (given[wish.run], wish.has <= given[wish.run], wish.place))
        given[least.run] += 1
        left -= 1
    return left


def explain(wish: Wish, wishes: Iterable[Wish], given: dict[str, int], workers: int, pool: str) -> str:
    """Why a run has fewer workers than it wishes for, for people. Empty: it has as many, or more.

    Args:
        wish: of that run.
        wishes: of all.
        given: as :func:`allot` returned it.
        workers: of the pool.
        pool: its name.
    """
    has = given.get(wish.run, 0)
    if has >= wish.wanted:
        return ""
    if not has and wish.minimum > workers:
        return f"it needs {wish.minimum} workers at least, and pool {pool} has {workers} at most"
    words = f"has {has} of {wish.wanted} workers of pool {pool}" if has else _waits(wish, pool)
    others = sorted((each for each in wishes if each.run != wish.run), key=lambda each: each.place)
    ahead = [each for each in others if given.get(each.run) or (each.wanted and not has and each.place < wish.place)]
    if not ahead:
        return f"{words}, which has {workers} at most"
    named = [f"{each.name or each.run} ({each.priority})" for each in ahead[:_MOST_NAMED]]
    if more := len(ahead) - len(named):
        named.append(f"{more} more")
    return f"{words}: priority {wish.priority} beside {', '.join(named)}"


def _waits(wish: Wish, pool: str) -> str:
    return f"waits for {wish.minimum} worker{'' if wish.minimum == 1 else 's'} of pool {pool}"
