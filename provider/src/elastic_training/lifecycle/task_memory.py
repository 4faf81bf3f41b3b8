"""Memory of a training task over its tries, in Airflow's task state store (3.3), where users see it, too.

Without a store, or while it does not answer, a task remembers nothing, and its tries find their run by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.errors import ElasticError, InvalidDocument, RunNotFound
from elastic_runtime.printable import printable
from elastic_runtime.run.status import Checkpoint, Phase, Status
from elastic_training.airflow.versions import remember, task_state_store
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import cluster_called
from elastic_training.clusters.types import RunRef
from elastic_training.exceptions import TrainingFailed
from elastic_training.following.follow import Log
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import read_owner
from elastic_training.lifecycle.clearing import is_folder_of
from elastic_training.lifecycle.remembered import Choice, Found, RememberedRun
from elastic_training.outcome.retrying import MAX_FAILURES, Failure, remembered_failures
from elastic_training.retry_policy import failed_try

RUN_KEY, CHECKPOINT_KEY, FAILURES_KEY = "training_run", "training_checkpoint", "training_failures"
"""Keys in the task state store."""

T = TypeVar("T")


class TaskMemory:
    """Memory of the task whose context it is. It raises nothing for failures of the store."""

    def __init__(self, context: Mapping[str, Any], log: Log, failures: object = None) -> None:
        self._store = task_state_store(context)
        self._log = log
        self._carried = failures

    def run(self) -> RememberedRun | None:
        """The last that this task has claimed; None also where what is there cannot be one."""
        run = self._parsed(RUN_KEY, RememberedRun, self._get(RUN_KEY))
        if run is not None and not run.plausible:
            self._log.warning("%s names no run: %s", RUN_KEY, printable(run.name, 80))
            return None
        return run

    @property
    def emptied(self) -> bool:
        """Whether there is a store that answers, and no run is noted in it."""
        missing = object()
        try:
            return self._store is not None and self._store.get(RUN_KEY, missing) is missing
        except Exception as error:  # noqa: BLE001  # as below
            self._log.warning("Cannot read %s from the task state store: %s", RUN_KEY, printable(error))
            return False

    def folder(self, name: str) -> str | None:
        """Return the noted checkpoint folder of a run of that name that started over. None: none is noted."""
        noted = self._get(CHECKPOINT_KEY)
        uri = noted.get("folder") if isinstance(noted, Mapping) else None
        folder = uri.rpartition("/")[2] if isinstance(uri, str) else ""
        return folder if is_folder_of(name, folder) else None

    def failures(self) -> tuple[Failure, ...]:
        """Return the failures of earlier tries, the oldest first."""
        plain = self._carried if self._store is None else self._get(FAILURES_KEY)
        return remembered_failures(self._parsed(FAILURES_KEY, tuple[Failure, ...], plain) or ())

    async def look_back(self, cluster: Cluster, name: str) -> None:
        """Where there is no store, remember how the run has failed that this try is about to replace. Best effort."""
        if self._store is not None:
            return
        with suppress(ElasticError):
            status = await cluster.status(await cluster.find(name))
            if status.phase is Phase.FAILED:
                self._carried = [to_plain(Failure.of(status))]

    @property
    def deferral_kwargs(self) -> dict[str, Any] | None:
        """Arguments that a deferred task passes to its next method, if there is no store."""
        return {"failures": self._carried} if self._carried else None

    def claimed(self, ref: RunRef, cluster: str, deployment: str, checkpoints: str | None) -> None:
        """The task has a run; ``checkpoints``: the folder of its checkpoints."""
        self._write(RUN_KEY, to_plain(RememberedRun(ref.name, ref.uid, cluster, deployment)))
        if checkpoints is not None:
            known = self._get(CHECKPOINT_KEY)
            newest = known if isinstance(known, Mapping) and known.get("folder") == checkpoints else {}
            self._write(CHECKPOINT_KEY, {**newest, "folder": checkpoints})

    def succeeded(self, status: Status) -> None:
        """The run has, with that final status."""
        self._ended(status, ())

    def failed(self, status: Status, task_instance: Any, policy: object, *, hopeless: bool) -> TrainingFailed:
        """The run has; see :func:`~elastic_training.retry_policy.failed_try`. Returns what ends the try."""
        left = task_instance.try_number <= task_instance.max_tries
        raised = failed_try(status, self.failures(), policy, tries_left=left, hopeless=hopeless)
        self._ended(status, raised.failures)
        return raised

    def _ended(self, status: Status, failures: Sequence[Failure]) -> None:
        if status.checkpoint is not None:
            self._write(CHECKPOINT_KEY, _newest(status.checkpoint))
        if failures or self._get(FAILURES_KEY):
            self._write(FAILURES_KEY, [to_plain(each) for each in failures[-MAX_FAILURES:]])

    def _parsed(self, key: str, kind: type[T], plain: object) -> T | None:
        try:
            return None if plain is None else from_plain(kind, plain)
        except InvalidDocument as error:
            self._log.warning("%s is not used: %s", key, error)
            return None

    def _get(self, key: str) -> Any:
        if self._store is None:
            return None
        try:
            return self._store.get(key)
        except Exception as error:  # noqa: BLE001  # a database's, a network's, Airflow's: none of them stops a training
            self._log.warning("Cannot read %s from the task state store: %s", key, printable(error))
            return None

    def _write(self, key: str, value: Any) -> None:
        if self._store is None:
            return
        try:
            remember(self._store, key, value)
        except Exception as error:  # noqa: BLE001  # as above
            self._log.warning("The task state store does not take %s: %s", key, printable(error))


def _newest(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"folder": checkpoint.uri.rpartition("/")[0], **to_plain(checkpoint)}


async def name_of_run(
    cluster: Cluster, where: str, task: TaskIdentity, remembered: RememberedRun | None, log: Log
) -> str:
    """Under which name a try claims its run; a run that the task has left in another place is asked to end.

    Args:
        cluster: where the try trains.
        where: its name.
        task: whose try it is.
        remembered: the run that the task has claimed before.
        log: of the task.

    Raises:
        ClusterUnavailable: the place does not answer.
    """
    present = task.name
    if remembered is None:
        return present
    here = remembered.cluster == where or await _is_in(cluster, remembered)  # It may only be written in another way.
    if not here:
        await _leave(remembered, task, log)
    if remembered.name == present:
        return present
    old = await _found(cluster, remembered.name) if here else None
    choice = Choice.of(task, present, remembered, old, await _found(cluster, present))
    log.warning("%s", printable(choice.warning))
    return choice.name


async def _found(cluster: Cluster, name: str) -> Found | None:
    try:
        ref = await cluster.find(name)
        return Found(read_owner(await cluster.owner(ref)), not (await cluster.status(ref)).phase.final)
    except RunNotFound:
        return None


async def _is_in(cluster: Cluster, remembered: RememberedRun) -> bool:
    try:
        return (await cluster.find(remembered.name)).uid == remembered.uid
    except RunNotFound:
        return False


async def _leave(remembered: RememberedRun, task: TaskIdentity, log: Log) -> None:
    """Best effort: a run in a place that cannot be asked ends when its lease has run out."""
    where = printable(remembered.cluster, 80)
    try:
        cluster = cluster_called(remembered.cluster)
        ref = await cluster.find(remembered.name)
        owner = await cluster.owner(ref)
        living = not (await cluster.status(ref)).phase.final
        if living and Found(read_owner(owner), living).belongs_to(task):
            await cluster.cancel(ref, "its task trains in another place now", owner)
            log.warning("The run %s in %s is asked to end", ref.name, where)
    except RunNotFound:
        return
    except ElasticError as error:
        log.warning("The run %s in %s was not asked to end: %s", remembered.name, where, error)
