"""How a try of a training operator starts: with which run, and from which checkpoints."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from elastic_runtime.errors import InvalidSettings, RunNotFound
from elastic_runtime.printable import printable
from elastic_training.archive import KEEPING_TIMEOUT, read_newest
from elastic_training.archive.where import Address, address_of
from elastic_training.clusters.cluster import Cluster
from elastic_training.concurrency.bridge import run
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.identity.naming import TaskIdentity, similar
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.lifecycle.clearing import EarlierRun, OnClear, Start, decide_start
from elastic_training.lifecycle.task_memory import TaskMemory
from elastic_training.listeners.audience import Log
from elastic_training.redaction.values import masked
from elastic_training.settings.values import parse_bool


async def earlier_run(
    cluster: Cluster, name: str, task: TaskIdentity, kept: Address | None, log: Log, before: int | None = None
) -> EarlierRun | None:
    """The newest run of a task; None: none is known.

    Args:
        cluster: where the task trains.
        name: of its run.
        task: whose run it is.
        kept: where its tries are kept; None: nowhere. A store that does not answer costs a warning.
        log: of the task that asks.
        before: a try: of those that are kept only earlier ones count. Later ones are of a DAG run of the same id that
            was deleted. None: all.

    Raises:
        ClusterUnavailable: the place does not answer.
    """
    try:
        ref = await cluster.find(name)
        owner = read_owner(await cluster.owner(ref))
        if owner is not None and owner.task.is_that_of(task):
            status, spec = await cluster.status(ref), await cluster.spec(ref)
            folder = spec.checkpoint.uri.rpartition("/")[2] if spec.checkpoint else None
            return EarlierRun.of(owner, status, name, folder)
    except RunNotFound:
        pass
    if kept is None:
        return None
    try:
        async with asyncio.timeout(KEEPING_TIMEOUT):
            found = await in_daemon(read_newest, kept, task, before)
    except Exception as error:  # noqa: BLE001  # a store's, a network's, Airflow's: none of them stops a training
        late = f"the store has not answered in {KEEPING_TIMEOUT:g} s"
        trouble = late if isinstance(error, TimeoutError) else str(error)
        log.warning("What was kept of earlier tries cannot be read: %s", printable(masked(trouble)))
        return None
    if found is None:
        return None
    owner = Owner(*(task.dag_id, task.run_id, task.task_id, task.map_index), found.try_number, "")
    return EarlierRun.of(owner, found.status, name, found.folder)


async def folder_of_task(cluster: Cluster, task: TaskIdentity, kept: Address | None, log: Log) -> str:
    """The folder of another task's checkpoints, under the prefix. Raises as :func:`earlier_run`."""
    found = await earlier_run(cluster, task.name, task, kept, log)
    return found.folder if found is not None and found.folder else task.name


CONTINUES = ", to which {task!r} and this task add. To begin anew, clear {task!r} with what is downstream"


class StartsRuns:
    """Mix-in for operators that train."""

    log: Any
    checkpoint_uri: Any
    checkpoint_conn_id: Any
    continues: Any
    get_dag: Any
    fresh: Any
    on_clear: str

    def starting(
        self, cluster: Cluster, place: str, name: str, owner: Owner, cleared_after: int, memory: TaskMemory
    ) -> tuple[Start, str | None]:
        """How this try starts; and the folder of the checkpoints to go on from, None: called as the run is.

        Args:
            cluster: where it trains.
            place: its own name.
            name: of the run.
            owner: this try.
            cleared_after: see :func:`~elastic_training.lifecycle.clearing.last_try_before_clear`.
            memory: what the task remembers.

        Raises:
            ClusterUnavailable: the place does not answer.
            InvalidSettings: the DAG has no such training to continue.
        """
        self._check_continued()
        if parse_bool("fresh", self.fresh):
            return Start.START_OVER, None
        again = owner.try_number > 1
        kept = self._kept(place) if again or self.continues else None
        earlier = run(earlier_run(cluster, name, owner.task, kept, self.log, owner.try_number)) if again else None
        decision = decide_start(
            earlier,
            try_number=owner.try_number,
            cleared_after=cleared_after,
            emptied=memory.emptied,
            on_clear=OnClear.RESUME if self.continues else OnClear(self.on_clear),
        )
        if decision.note:
            further = CONTINUES.format(task=self.continues) if self.continues else ""
            self.log.warning("%s%s", decision.note, further)
        if decision.start is Start.START_OVER:
            return decision.start, None
        if self.continues:
            task = replace(owner.task, task_id=self.continues, map_index=-1)
            return decision.start, run(folder_of_task(cluster, task, kept, self.log))
        return decision.start, earlier.folder if earlier is not None else memory.folder(name) if again else None

    def _check_continued(self) -> None:
        """Or its checkpoints would be looked for where there are none, and the training would begin anew."""
        if not self.continues or (dag := self.get_dag()) is None:
            return
        other = dag.task_dict.get(self.continues)
        if not isinstance(other, StartsRuns):
            trainings = [name for name, each in dag.task_dict.items() if isinstance(each, StartsRuns)]
            problem = f"the DAG has no training task {self.continues!r} that is not mapped"
            raise InvalidSettings("continues", problem, similar(self.continues, trainings))
        if other.continues:
            problem = f"{self.continues!r} adds to the checkpoints of {other.continues!r} itself"
            raise InvalidSettings("continues", problem, f"Write {other.continues!r}")

    def _kept(self, place: str) -> Address | None:
        """Where this task's tries are kept, if they have checkpoints."""
        if not self.checkpoint_uri:
            return None
        try:
            return address_of(self.checkpoint_uri, self.checkpoint_conn_id, place)
        except InvalidSettings:  # Said wherever something is kept.
            return None
