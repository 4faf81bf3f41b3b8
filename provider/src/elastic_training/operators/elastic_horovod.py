"""An elastic Horovod training as one task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any
from uuid import uuid4

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    BaseOperator,
    conf,
)

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_plain
from elastic_runtime.errors import InvalidSettings, OwnershipLost, RetryableError, RunNotFound
from elastic_runtime.spec import RunSpec
from elastic_runtime.status import Phase, Status
from elastic_training.bridge import run
from elastic_training.clusters.base import ClaimOutcome, RunRef
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import LOCAL, check_cluster, get_cluster, has_pods
from elastic_training.exceptions import failure_of
from elastic_training.follow import Ending, Followed, Follower
from elastic_training.kubernetes_syntax import image as image_name
from elastic_training.naming import run_name
from elastic_training.ownership import Owner, read_owner
from elastic_training.pods import Hardware, Pods
from elastic_training.result import result_document
from elastic_training.settings import (
    Checkpoints,
    Recovery,
    Workers,
    check_command,
    check_environment,
    check_store,
    command_words,
    is_template,
    parse_bool,
)
from elastic_training.templating import RendersSettings
from elastic_training.triggers.training_run import TrainingRunTrigger

FAILURE_KEY = "failure"
"""XCom key of the result document of a run that failed."""
RUN_NAME_KEY, CLUSTER_KEY = "run_name", "cluster"
"""XCom keys under which the run can be found from the moment in which it is claimed."""
_TRIGGER_FAILED = "__fail__"
"""Airflow's ``next_method`` when the trigger itself failed or timed out, in 2.x and 3.x alike."""


class OnFinish(StrEnum):
    """What becomes of the run's documents and log, never of its checkpoints, once the task has its result."""

    KEEP = "keep"
    """They stay until the next run of that name."""
    DELETE = "delete"
    DELETE_IF_SUCCEEDED = "delete_if_succeeded"


class ElasticHorovodOperator(RendersSettings, BaseOperator):
    """Trains with Elastic Horovod, on workers that may come and go, and returns the result document.

    ``execute`` creates the run, or adopts the one that an earlier try of this task has left alive. A run that has
    ended without success is followed by a new one, which starts from the newest valid checkpoint of the old.

    Args:
        command: of one rank, as a list: ``["python", "train.py"]``. Templated.
        workers: how many. Templated.
        checkpoint: where durable checkpoints go, ``file:///…``; each run has a folder of its own under it. None:
            nowhere, and every new run starts from the beginning. Templated.
        checkpoints: how often.
        recovery: what happens when workers are lost. Templated.
        cluster: where the workers run: ``"local"``, or in pods: ``"CONNECTION"`` or ``"CONNECTION/NAMESPACE"``, an
            Airflow connection of type kubernetes, or a place that another package brings. Templated.
        image: of launcher and workers, where they are pods. Templated.
        pods: all else about pods. Templated.
        environment: extra variables of every rank. Templated.
        working_directory: of every rank; None: the run's own folder on this machine. Templated.
        fresh: start over: adopt no living run (it is ended) and resume from no checkpoint, with *every* try of the
            task. Templated: ``"{{ params.fresh }}"``.
        warm: keep a process with torch and horovod imported in every worker.
        on_finish: see :class:`OnFinish`.
        deferrable: wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
        kwargs: of every operator. ``execution_timeout`` counts from the start of the try and is kept while deferred.

    Raises:
        InvalidSettings: at parse, for what is known then.
        TrainingFailed: from ``execute``; the task is retried and resumes.
        TrainingCancelled: from ``execute``, when somebody ended the run; the task is not retried.
    """

    template_fields: Sequence[str] = (
        "command",
        "workers",
        "checkpoint",
        "checkpoints",
        "recovery",
        "cluster",
        "image",
        "pods",
        "environment",
        "working_directory",
        "fresh",
    )
    ui_color = "#dbe9f6"

    def __init__(
        self,
        *,
        command: Sequence[Any],
        workers: Workers,
        checkpoint: str | None = None,
        checkpoints: Checkpoints | None = None,
        recovery: Recovery | None = None,
        cluster: str = LOCAL,
        image: str | None = None,
        pods: Pods | None = None,
        environment: Mapping[str, str] | None = None,
        working_directory: str | None = None,
        fresh: bool | str = False,
        warm: bool = True,
        on_finish: str = OnFinish.KEEP.value,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.command = command
        self.workers = workers
        self.checkpoint = checkpoint
        self.checkpoints = checkpoints or Checkpoints()
        self.recovery = recovery or Recovery()
        self.cluster = cluster
        self.image: Any = image  # Or the output of another task.
        self.pods = pods or Pods()
        self.environment = environment or {}
        self.working_directory = working_directory
        self.fresh = fresh
        self.warm = warm
        self.on_finish = on_finish
        self.deferrable = deferrable
        self._claimed: tuple[RunRef, str] | None = None
        self._killed = False
        self._check_what_is_known()

    def _check_what_is_known(self) -> None:
        check_cluster(self.cluster)
        self._check_pods()
        if isinstance(self.command, str | list | tuple):
            check_command(self.command)
        check_environment(self.environment)
        if not isinstance(self.workers, Workers):
            raise InvalidSettings(
                "workers", f"{self.workers!r} is not a Workers", "Write Workers(min=1, start=2, max=4)"
            )
        if not isinstance(self.recovery, Recovery):
            raise InvalidSettings("recovery", f"{self.recovery!r} is not a Recovery", 'Write Recovery(mode="elastic")')
        if isinstance(self.checkpoint, str) and not is_template(self.checkpoint):
            check_store(self.checkpoint)
        if not is_template(self.fresh) and isinstance(self.fresh, str):
            parse_bool("fresh", self.fresh)
        if self.on_finish not in tuple(OnFinish):
            choices = ", ".join(repr(choice.value) for choice in OnFinish)
            raise InvalidSettings(
                "on_finish", f"{self.on_finish!r} is not one of its values", f"Write one of {choices}"
            )

    def _check_pods(self) -> None:
        if not isinstance(self.pods, Pods):
            raise InvalidSettings("pods", f"{self.pods!r} is not a Pods", "Write Pods(volumes=[...])")
        if self.pods.hardware != Hardware():
            raise InvalidSettings(
                "pods.hardware", "it follows from workers", "Write Workers(gpus=..., shm=..., spot=...)"
            )
        if self.image and isinstance(self.image, str) and not is_template(self.image):
            image_name("image", self.image)
        if not (self.image or self.pods.image or is_template(self.cluster)) and has_pods(self.cluster):
            remedy = 'Write image="registry/trainer:1"'
            raise InvalidSettings("image", f"there is none for the pods of cluster {self.cluster!r}", remedy)

    def spec(self, name: str) -> RunSpec:
        """A new run of this task, from rendered fields.

        Raises:
            InvalidSettings: what only rendering has shown.
        """
        uid, fence = uuid4().hex, int(time.time())
        checkpoint = None
        if self.checkpoint:
            check_store(self.checkpoint)
            # A run that starts over must not see what others have left, and has a place of its own.
            folder = f"{name}-{uid[:8]}" if parse_bool("fresh", self.fresh) else name
            checkpoint = self.checkpoints.spec(f"{self.checkpoint.rstrip('/')}/{folder}", fence)
        return RunSpec(
            name=name,
            uid=uid,
            command=command_words(self.command),
            workers=self.workers.spec(),
            recovery=self.recovery.spec(),
            checkpoint=checkpoint,
            environment=check_environment(self.environment),
            working_directory=self.working_directory or None,
            warm=self.warm,
            timing=self.recovery.timing(),
        )

    def execute(self, context: Any) -> dict[str, Any]:
        """Create or adopt the run, then wait for it: here, or deferred."""
        task_instance = context["ti"]
        owner = Owner.of(task_instance)
        name = run_name(owner.dag_id, owner.run_id, owner.task_id, owner.map_index)
        cluster, ref = self._claim(name, owner.text())
        if self.do_xcom_push:
            task_instance.xcom_push(key=RUN_NAME_KEY, value=ref.name)
            task_instance.xcom_push(key=CLUSTER_KEY, value=self.cluster)
        deadline = utc_now() + self.execution_timeout if self.execution_timeout else None
        if self.deferrable:
            trigger = TrainingRunTrigger(
                self.cluster, ref.name, ref.uid, owner.text(), deadline.isoformat() if deadline else None
            )
            self.defer(trigger=trigger, method_name="execute_complete")
        # Here Airflow itself keeps execution_timeout, and calls on_kill.
        followed = run(Follower(cluster, ref, owner.text(), self.log).follow())
        return self._conclude(context, cluster, ref, owner.text(), followed)

    def dry_run(self) -> None:
        """Print what ``execute`` would create, from the fields as they are rendered by now; creates nothing.

        Raises:
            InvalidSettings: as ``execute`` would fail.
        """
        name = run_name(self.dag_id, "dry_run", self.task_id)
        print(run(self._creating_cluster().plan(self.spec(name))))  # noqa: T201  # what Airflow's dry_run is for

    def _creating_cluster(self) -> Cluster:
        """The cluster with all that it needs to create this task's run. Raises InvalidSettings."""
        return get_cluster(self.cluster, self.pods.of_run(self.workers, self.image) if has_pods(self.cluster) else None)

    def _claim(self, name: str, owner: str) -> tuple[Cluster, RunRef]:
        try:
            cluster, spec = self._creating_cluster(), self.spec(name)
            self.log.info("::group::Wanted run %s", name)
            self.log.info("%s", run(cluster.plan(spec)))
            self.log.info("::endgroup::")
            claim = run(cluster.claim(spec, owner, fresh=parse_bool("fresh", self.fresh)))
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error
        self._claimed = (claim.ref, owner)
        self.log.info("Run %s (uid %s) is %s: %s", name, claim.ref.uid, claim.outcome, claim.note)
        if claim.outcome is ClaimOutcome.ADOPTED and claim.differs:
            self.log.warning(
                "The adopted run goes on with the settings it was created with; these have changed since: %s. "
                "To train with the new ones, end it or set fresh=True",
                ", ".join(claim.differs),
            )
        if self._killed:
            self.on_kill()
        return cluster, claim.ref

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Take the result after the trigger has fired."""
        status = None if event["status"] is None else from_plain(Status, event["status"])
        followed = Followed(Ending(event["ending"]), status, event["detail"])
        ref = RunRef(event["name"], event["uid"])
        return self._conclude(context, get_cluster(self.cluster), ref, event["owner"], followed)

    def _conclude(self, context: Any, cluster: Cluster, ref: RunRef, owner: str, followed: Followed) -> dict[str, Any]:
        status = followed.status
        match followed.ending:
            case Ending.DEADLINE:
                self._cancel(cluster, ref, f"execution_timeout of {self.execution_timeout} has passed", owner)
                raise AirflowTaskTimeout(f"training run {ref.name} was still {followed.detail or 'going on'}")
            case Ending.VANISHED | Ending.SUPERSEDED:
                raise AirflowException(f"training run {ref.name} is out of this try's hands: {followed.detail}")
        assert status is not None
        document = result_document(status)
        if status.phase is not Phase.SUCCEEDED:
            # Pushed, not returned: a task behind this one, with a trigger rule for it, can branch on the kind.
            context["ti"].xcom_push(key=FAILURE_KEY, value=document)
        self._clear_up(cluster, ref, owner, status)
        if status.phase is not Phase.SUCCEEDED:
            raise failure_of(status)
        return document

    def _clear_up(self, cluster: Cluster, ref: RunRef, owner: str, status: Status) -> None:
        succeeded = status.phase is Phase.SUCCEEDED
        try:
            if self.on_finish == OnFinish.DELETE or (self.on_finish == OnFinish.DELETE_IF_SUCCEEDED and succeeded):
                run(cluster.delete(ref, owner))
            else:
                run(cluster.collect(ref, owner))
        except (OwnershipLost, RetryableError) as error:
            # The result is here: a training of hours is not failed for what can be swept up later.
            self.log.warning("The run %s is over and was not cleared up: %s", ref.name, error)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """As Airflow's; a run for which nobody will wait any more, as its trigger has failed for good, is cancelled."""
        if next_method == _TRIGGER_FAILED:
            task_instance = context["ti"]
            timed_out = "timeout" in str((next_kwargs or {}).get("error", "")).lower()
            if timed_out or task_instance.try_number > task_instance.max_tries:
                self._cancel_own(task_instance, "its trigger timed out" if timed_out else "its trigger failed")
        return super().resume_execution(next_method, next_kwargs, context)

    def _cancel_own(self, task_instance: Any, reason: str) -> None:
        mine = Owner.of(task_instance)
        cluster = get_cluster(self.cluster)
        try:
            ref = run(cluster.find(run_name(mine.dag_id, mine.run_id, mine.task_id, mine.map_index)))
            text = run(cluster.owner(ref))
        except RunNotFound:
            return
        owner = read_owner(text)
        if owner is not None and owner.is_try_of(task_instance):
            self._cancel(cluster, ref, reason, text)

    def _cancel(self, cluster: Cluster, ref: RunRef, reason: str, owner: str) -> None:
        try:
            run(cluster.cancel(ref, reason, owner))
        except (OwnershipLost, RetryableError) as error:
            self.log.warning("The run was not cancelled: %s", error)

    def on_kill(self) -> None:
        """Not deferred: Airflow ends this process (marked, cleared, timed out, or its worker is being evicted)."""
        self._killed = True
        if self._claimed is not None:
            ref, owner = self._claimed
            self._cancel(get_cluster(self.cluster), ref, "the task was ended", owner)
