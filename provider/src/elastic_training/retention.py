"""How long runs that are over are kept, by age and count, where tasks say ``on_finish="keep"``.

Only documents and logs go, never checkpoints, nor reports in the archive.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import OwnershipLost, RunNotFound
from elastic_runtime.printable import printable
from elastic_training.airflow_sdk import conf
from elastic_training.clusters.base import RunSummary
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import SECTION
from elastic_training.ownership import Owner, read_owner
from elastic_training.settings import real_number

SAFE = timedelta(days=1)
"""A younger run is never removed for the number of runs: its task may not have taken its result yet."""
MOST, PATIENCE = 20, 20.0
"""Runs that are removed at the end of a task, and seconds for that; those that are left go at the end of the next."""
_DAYS, _RUNS = 30.0, 100.0
_LONGEST = 36_500.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept."""

    age: timedelta | None = timedelta(days=_DAYS)
    """Longest time since the end of a run; None: any."""
    count: int | None = int(_RUNS)
    """DAG runs of each task whose runs are kept, the newest; None: all."""

    @classmethod
    def of(cls, days: object, runs: object) -> Retention:
        """From numbers, 0 for no limit. Raises InvalidSettings."""
        age = real_number(f"[{SECTION}] keep_days", days, least=0, most=_LONGEST)
        count = int(real_number(f"[{SECTION}] keep_runs", runs, least=0, most=1e9))
        return cls(timedelta(days=age) if age else None, count or None)


def configured(days: object = None, runs: object = None) -> Retention:
    """As ``[elastic_training] keep_days`` and ``keep_runs`` say, unless given. Raises InvalidSettings."""
    return Retention.of(
        conf.get(SECTION, "keep_days", fallback=str(_DAYS)) if days is None else days,
        conf.get(SECTION, "keep_runs", fallback=str(_RUNS)) if runs is None else runs,
    )


def outdated(
    runs: Iterable[RunSummary], deployment: str | None, retention: Retention, now: datetime
) -> list[RunSummary]:
    """Those of the runs that go, the oldest first. Pure.

    Args:
        runs: of one place.
        deployment: of Airflow, whose tasks' runs these are; None: of all.
        retention: what is kept.
        now: the present time.
    """
    by_task: dict[tuple[str, str, str], list[tuple[datetime, Owner, RunSummary]]] = defaultdict(list)
    for each in runs:
        owner = read_owner(each.owner)
        ended = each.headline.finished or each.headline.updated
        if owner and each.headline.phase.final and deployment in (None, owner.deployment):
            by_task[owner.deployment, owner.dag_id, owner.task_id].append((ended, owner, each))
    gone: list[tuple[datetime, RunSummary]] = []
    for ends in by_task.values():
        ends.sort(key=lambda end: end[0], reverse=True)
        kept = list(dict.fromkeys(owner.run_id for _, owner, _ in ends))[: retention.count]
        for ended, owner, each in ends:
            too_old = retention.age is not None and now - ended > retention.age
            if too_old or (owner.run_id not in kept and now - ended > SAFE):
                gone.append((ended, each))
    return [each for _, each in sorted(gone, key=lambda pair: pair[0])]


async def remove(cluster: Cluster, run: RunSummary) -> bool:
    """Remove a run that is over; False: it goes on, or somebody has taken it over, so it stays. Raises ElasticError.

    A list tells what stands in documents under labels or in folders, which others may have made. So the run itself is
    asked, before what would end it.
    """
    try:
        if not (await cluster.status(run.ref)).phase.final:
            return False
        await cluster.delete(run.ref, run.owner)
    except RunNotFound:
        return True
    except OwnershipLost:
        return False
    return True


async def sweep(cluster: Cluster, deployment: str, log: Any) -> None:
    """Remove what is not to be kept any more of this deployment, at the end of a task. Raises CancelledError alone.

    Args:
        cluster: where the task has trained.
        deployment: whose tasks' runs may be removed.
        log: of the task; it has a line where runs were removed, or could not be.
    """
    removed: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE):
            gone: Sequence[RunSummary] = outdated(await cluster.list(), deployment, configured(), utc_now())
            for each in gone[:MOST]:
                if await remove(cluster, each):
                    removed.append(each.ref.name)
    except Exception as error:  # noqa: BLE001  # a place's, a file's, a setting's: none of them fails a training
        words = printable(error) or f"it takes more than {PATIENCE:g} s"
        log.warning("Runs that are over for long were not all removed: %s", words)
    if removed:
        log.info(
            "Removed %d runs that are over ([elastic_training] keep_days, keep_runs): %s",
            len(removed),
            printable(", ".join(removed)),
        )
