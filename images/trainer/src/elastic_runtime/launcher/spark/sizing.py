"""Which tasks of workers are started and ended next: decided from what is known, without any I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

COMING = 120.0
"""Seconds that an agent has to connect, once its task has begun."""
SHORT_LIFE = 5.0
"""A task that ran for less seconds and was not asked to end holds its replacement back."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker whose task has been started."""

    name: str
    started: float
    """Seconds of the launcher's clock, as below: when it was asked for."""
    began: float | None = None
    """When an executor took it."""
    came: bool = False
    """Its agent has connected."""
    asked_to_end: bool = False


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be done."""

    start: int = 0
    """Tasks to start."""
    leave: tuple[str, ...] = ()
    """Workers that are to leave in order, or whose tasks have not brought an agent yet."""
    late: tuple[str, ...] = ()
    """Workers whose agents have not connected in time: their tasks are ended."""


def decide(workers: Mapping[str, Worker], wanted: int, ranks: Mapping[str, int], now: float, *, held: bool) -> Steps:
    """Return the next steps.

    Args:
        workers: whose tasks are not over.
        wanted: how many there shall be.
        ranks: the lowest rank of each that has one.
        now: the present time.
        held: whether no task is started for now.
    """
    staying = [each for each in workers.values() if not each.asked_to_end]
    late = tuple(
        each.name for each in staying if not each.came and each.began is not None and now > each.began + COMING
    )
    staying = [each for each in staying if each.name not in late]
    # Of those that go, the ones without an executor first, then those outside of the world, then the highest ranks.
    staying.sort(key=lambda each: (not each.came, each.began is None, ranks.get(each.name, math.inf), each.started))
    missing = 0 if held else max(0, wanted - len(staying))
    return Steps(missing, tuple(each.name for each in staying[wanted:]), late)
