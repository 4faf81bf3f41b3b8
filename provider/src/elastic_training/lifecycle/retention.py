"""How long runs that are over are kept, by age and count, where tasks say ``on_finish="keep"``.

Only documents and logs go, never checkpoints, nor reports in the archive.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import OwnershipLost, RunNotFound
from elastic_runtime.printable import printable
from elastic_training.airflow.sdk import conf
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import SECTION
from elastic_training.clusters.types import RunSummary
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.settings.values import real_number

SAFE = timedelta(days=1)
"""A younger run is never removed for the number of runs: its task may not have taken its result yet."""
MOST, REMOVAL_TIMEOUT = 20, 20.0
"""Runs that are removed at the end of a task, and seconds for that; those that are left go at the end of the next."""
_DAYS, _RUNS = 30.0, 100.0
_LONGEST = 36_500.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for finished runs: age in days, and number for each task."""

    age: timedelta | None = timedelta(days=_DAYS)
    """Longest time since the end of a run; None: any."""
    count: int | None = int(_RUNS)
    """DAG runs of each task whose runs are kept, the newest; None: all."""

    @classmethod
    def of(cls, days: object, runs: object) -> Retention:
        """Parse the limits. 0 means no limit. Raise InvalidSettings."""
        age = real_number(f"[{SECTION}] keep_days", days, least=0, most=_LONGEST)
        count = int(real_number(f"[{SECTION}] keep_runs", runs, least=0, most=1e9))
        return cls(timedelta(days=age) if age else None, count or None)


def configured(days: object = None, runs: object = None) -> Retention:
    """Return the given limits, or ``[elastic_training] keep_days`` and ``keep_runs``. Raise InvalidSettings."""
    return Retention.of(
        conf.get(SECTION, "keep_days", fallback=str(_DAYS)) if days is None else days,
        conf.get(SECTION, "keep_runs", fallback=str(_RUNS)) if runs is None else runs,
    )


class Removal(StrEnum):
    """Outcome of removing a run, as text behind its name."""

    REMOVED = "is removed"
    STAYS = "goes on, or has been taken over, and stays"
    NOT_THERE = "is not there: it was removed meanwhile, or what stands for it belongs to no run"


def outdated(
    runs: Iterable[RunSummary], deployment: str | None, retention: Retention, now: datetime
) -> list[RunSummary]:
    """Those of the runs that go, the oldest first. Pure.

    Owners stand in documents that others may have written. A run whose name is not that of its owner's task does not
    count as one of the task's last runs. Its age alone decides, as the deployment may have had another name.

    Args:
        runs: of one place.
        deployment: of Airflow, whose tasks' runs these are; None: of all.
        retention: what is kept.
        now: the present time.
    """
    by_task: dict[tuple[str, str, str], list[tuple[datetime, Owner, RunSummary]]] = defaultdict(list)
    for each in runs:
        owner = read_owner(each.owner)
        ended = _ended(each)
        if owner and each.headline.phase.final and deployment in (None, owner.deployment):
            by_task[owner.deployment, owner.dag_id, owner.task_id].append((ended, owner, each))
    gone: list[tuple[datetime, RunSummary]] = []
    for ends in by_task.values():
        ends.sort(key=lambda end: end[0], reverse=True)
        counted = dict.fromkeys(owner.run_id for _, owner, each in ends if _is_named_for(each, owner))
        beyond = set(list(counted)[retention.count :]) if retention.count else set()
        for ended, owner, each in ends:
            too_old = retention.age is not None and now - ended > retention.age
            too_many = owner.run_id in beyond and _is_named_for(each, owner) and now - ended > SAFE
            if too_old or too_many:
                gone.append((ended, each))
    return [each for _, each in sorted(gone, key=lambda pair: pair[0])]


def _ended(run: RunSummary) -> datetime:
    return run.headline.finished or run.headline.updated


def _is_named_for(run: RunSummary, owner: Owner) -> bool:
    return run.ref.name == owner.task.name


async def remove(cluster: Cluster, run: RunSummary) -> Removal:
    """Remove a run if it is over, and has been for as long as the list tells. Raises ElasticError.

    A list tells what stands in documents under labels or in folders, which others may have made. So the run itself is
    asked, before what would end it.
    """
    try:
        status = await cluster.status(run.ref)
        if not status.phase.final or (status.finished or status.updated) > _ended(run):
            return Removal.STAYS
        await cluster.delete(run.ref, run.owner)
    except RunNotFound:
        return Removal.NOT_THERE
    except OwnershipLost:
        return Removal.STAYS
    return Removal.REMOVED


async def sweep(cluster: Cluster, deployment: str, log: Any) -> None:
    """Remove what is not to be kept any more of this deployment, at the end of a task. Raises CancelledError alone.

    Args:
        cluster: where the task has trained.
        deployment: whose tasks' runs may be removed.
        log: of the task; it has a line where runs were removed, or could not be.
    """
    became: dict[Removal, list[str]] = defaultdict(list)
    removed = became[Removal.REMOVED]
    try:
        async with asyncio.timeout(REMOVAL_TIMEOUT):
            gone: Sequence[RunSummary] = outdated(await cluster.list(), deployment, configured(), utc_now())
            for each in gone:
                became[await remove(cluster, each)].append(each.ref.name)
                if len(removed) == MOST:
                    break
    except Exception as error:  # noqa: BLE001  # a place's, a file's, a setting's: none of them fails a training
        words = printable(error) or f"it takes more than {REMOVAL_TIMEOUT:g} s"
        log.warning("Runs that are over for long were not all removed: %s", words)
    if removed:
        log.info(
            "Removed %d runs that are over ([elastic_training] keep_days, keep_runs): %s",
            len(removed),
            printable(", ".join(removed)),
        )
    if strays := became[Removal.NOT_THERE]:
        names = printable(", ".join(strays[:MOST]))
        log.info("Of runs that are over, %d were not there: removed meanwhile, or no run's: %s", len(strays), names)
