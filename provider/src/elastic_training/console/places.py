"""The runs of several places at once, however long one of them takes to answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from elastic_runtime.documents import to_plain
from elastic_runtime.errors import ClusterUnavailable, ElasticError
from elastic_runtime.run.headline import Headline
from elastic_training.airflow.sdk import conf
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.registry import SECTION, cluster_called, is_local, own_name, place_of
from elastic_training.clusters.types import RunRef, RunSummary
from elastic_training.concurrency.bridge import run
from elastic_training.console import asking
from elastic_training.console.pools import FoundPool, pools_in
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.settings.training_pool import PoolName

MOST_PLACES = 50
"""That are asked."""
FRESH = 1.0
"""Seconds for which one answer of all places is everybody's: pages ask every two."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run in its place."""

    place: str
    """Place, as a task names it: a pool for runs of one, though they are listed with the machine or the namespace."""
    ref: RunRef
    owner: Owner | None
    """The try that it works for; None: nobody's that Airflow knows."""
    headline: Headline


def ids_of(owner: Owner | None) -> dict[str, Any]:
    """Return the ids of a run's task as JSON; None each for a run without a task."""
    return {name: getattr(owner, name) if owner else None for name in ("dag_id", "run_id", "task_id", "map_index")}


def plain_run(each: FoundRun) -> dict[str, Any]:
    """Return a run as JSON, for the page and the command."""
    head = to_plain(each.headline)
    names = ("phase", "reason", "world_size", "target_size", "step", "progress", "started", "finished", "updated")
    return {"name": each.ref.name, "place": each.place, **{name: head[name] for name in names}, **ids_of(each.owner)}


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A place that does not tell."""

    place: str
    message: str
    """Why, for people."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The runs of all places."""

    runs: tuple[FoundRun, ...]
    """The newest first, place by place."""
    unreachable: tuple[Unreachable, ...]
    pools: tuple[FoundPool, ...] = ()


def known_places() -> tuple[str, ...]:
    """``[elastic_training] places``, by commas: names as in ``cluster="local"``. By default ``local`` alone."""
    given = str(conf.get(SECTION, "places", fallback="") or LOCAL)
    return tuple(dict.fromkeys(filter(None, (each.strip() for each in given.split(",")))))[:MOST_PLACES]


async def list_runs(places: Sequence[str], max_wait: float) -> Listing:
    """All of them at once; raises nothing that a place can cause.

    Args:
        places: names of clusters.
        max_wait: seconds for each.
    """
    asked = asyncio.gather(*(_runs_of(place, max_wait) for place in places))
    found, pools = await asyncio.gather(asked, pools_in(places, max_wait))
    runs = [one for each in found if not isinstance(each, Unreachable) for one in each]
    return Listing(
        tuple({(each.place, each.ref): each for each in runs}.values()),  # Those of a pool that is among the places.
        tuple(each for each in found if isinstance(each, Unreachable)),
        pools,
    )


async def _runs_of(place: str, max_wait: float) -> Iterable[FoundRun] | Unreachable:
    try:
        with asking.OUTAGES.asking(asking.of_place(place)):
            summaries = await _asked(place, max_wait)
    except ElasticError as error:
        return Unreachable(place, str(error))
    except Exception as error:  # noqa: BLE001  # of the database of Airflow, or where else connections are: one place's
        return Unreachable(place, f"cannot read its connection from Airflow ({type(error).__name__})")
    return [_found(place, each) for each in summaries]


def _found(place: str, each: RunSummary) -> FoundRun:
    named = str(PoolName(each.pool, "" if is_local(place) else place_of(place))) if each.pool else place
    return FoundRun(named, each.ref, read_owner(each.owner), each.headline)


async def _asked(place: str, max_wait: float) -> Sequence[RunSummary]:
    try:
        async with asyncio.timeout(max_wait):
            return await cluster_called(await asking.SLOTS.in_daemon(own_name, place)).list()
    except TimeoutError:
        raise ClusterUnavailable(f"it has not answered in {max_wait:g} s") from None


class RecentRuns:
    """The runs of all known places as they were a moment ago: however many people look, places are asked once.

    For threads. Holds one listing.

    Args:
        max_wait: seconds for each place.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait
        self._lock = threading.Lock()
        self._listing: Listing | None = None
        self._until = 0.0

    def get(self) -> Listing:
        """At most :data:`FRESH` seconds old when it is asked for; who comes meanwhile waits for the same answer."""
        with self._lock:
            if self._listing is None or monotonic() >= self._until:
                self._listing = run(list_runs(known_places(), self._max_wait))
                self._until = monotonic() + FRESH
            return self._listing
