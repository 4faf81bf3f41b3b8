"""An elastic Horovod training as one task."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    BaseOperator,
    conf,
)

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_plain
from elastic_runtime.errors import InvalidSettings, OwnershipLost, RetryableError, RunNotFound
from elastic_runtime.spec import LOG_LIMIT
from elastic_runtime.status import Phase, Status
from elastic_training.bridge import run
from elastic_training.clusters.base import ClaimOutcome, RunRef
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import LOCAL, get_cluster
from elastic_training.deployment import deployment
from elastic_training.exceptions import failure_of
from elastic_training.follow import Ending, Followed, Follower
from elastic_training.naming import run_name
from elastic_training.operators.arguments import check_foreign, exit_codes
from elastic_training.operators.training_arguments import OnFinish, TrainingArguments
from elastic_training.ownership import Owner, read_owner
from elastic_training.pods import Pods
from elastic_training.rank_lines import ranks_shown
from elastic_training.redaction import masked
from elastic_training.result import result_document
from elastic_training.settings import Checkpoints, Recovery, Workers, parse_bool, whole_number
from elastic_training.size_plan import SizePlan
from elastic_training.templating import RendersSettings, as_environment
from elastic_training.training_task import present_name
from elastic_training.triggers.training_run import TrainingRunTrigger

FAILURE_KEY = "failure"
"""XCom key of the result document of a run that failed."""
RUN_NAME_KEY, CLUSTER_KEY = "run_name", "cluster"
"""XCom keys under which the run can be found from the moment in which it is claimed."""
_TRIGGER_FAILED = "__fail__"
"""Airflow's ``next_method`` when the trigger itself failed or timed out, in 2.x and 3.x alike."""


class ElasticHorovodOperator(TrainingArguments, RendersSettings, BaseOperator):
    """Trains with Elastic Horovod, on workers that may come and go, and returns the result document.

    ``execute`` creates the run, or adopts the one that an earlier try of this task has left alive. A run that has
    ended without success is followed by a new one, which starts from the newest valid checkpoint of the old.

    Every parameter that is templated takes the output of another task as well; ``workers``, ``recovery`` and
    ``checkpoints`` then as a mapping of their fields.

    Args:
        command: of one rank, as a list: ``["python", "train.py"]``. Templated.
        workers: how many. Templated.
        checkpoint_uri: where durable checkpoints go, ``file:///…``; each run has a folder of its own under it. None:
            nowhere, and every new run starts from the beginning. Templated.
        checkpoints: how often, and how many stay. Templated.
        recovery: what happens when workers are lost. Templated.
        size_plan: how many workers at which times; the launcher sees to it. Templated.
        cluster: where the workers run: ``"local"``, or in pods: ``"CONNECTION"`` or ``"CONNECTION/NAMESPACE"``, an
            Airflow connection of type kubernetes, or a place that another package brings. Templated.
        image: of launcher and workers, where they are pods. Templated.
        pods: all else about pods. Templated.
        environment: extra variables of every rank. Templated.
        working_directory: of every rank; None: the run's own folder on this machine. Templated.
        fresh: start over: adopt no living run (it is ended) and resume from no checkpoint, with *every* try of the
            task. Templated: ``"{{ params.fresh }}"``.
        warm: keep a process with torch and horovod imported in every worker.
        log_limit: bytes of the ranks' output that are kept, 1 GiB; of more, only the last lines.
        log_ranks: ranks whose lines come into the task's log, ``[0]``; ``[]``: none's, None: all. The launcher's do.
        on_finish: see :class:`OnFinish`.
        wait_for_completion: False: the task succeeds as soon as its run is created or adopted. The run then has no
            lease: it ends by itself, by its limits, or by a CancelTrainingOperator, and nobody takes its result.
        skip_on_exit_code: one or several: the task is skipped when the script failed with one of them.
        fail_on_exit_code: one or several: the task is not retried when the script failed with one of them.
        deferrable: wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
        kwargs: of every operator. ``execution_timeout`` counts from the start of the try and is kept while deferred.

    Raises:
        InvalidSettings: at parse, for what is known then.
        TrainingFailed: from ``execute``; the task is retried and resumes.
        TrainingCancelled: from ``execute``, when somebody ended the run; the task is not retried.
        TrainingHopeless: from ``execute``, for a code of ``fail_on_exit_code``; the task is not retried.
        AirflowSkipException: from ``execute``, for a code of ``skip_on_exit_code``.
    """

    template_fields: Sequence[str] = (
        "command",
        "workers",
        "checkpoint_uri",
        "checkpoints",
        "recovery",
        "size_plan",
        "cluster",
        "image",
        "pods",
        "environment",
        "working_directory",
        "fresh",
    )
    template_ext: Sequence[str] = ()  # A word of a command that ends with ".sh" is a word, and no file to be read.
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "command": "bash",
        **dict.fromkeys(("workers", "checkpoints", "recovery", "size_plan", "pods", "environment"), "json"),
    }
    ui_color = "#dbe9f6"

    def __init__(
        self,
        *,
        command: Sequence[Any],
        workers: Workers | Mapping[str, Any] | Any,
        checkpoint_uri: str | Any | None = None,
        checkpoints: Checkpoints | Mapping[str, Any] | Any | None = None,
        recovery: Recovery | Mapping[str, Any] | Any | None = None,
        size_plan: SizePlan | Any | None = None,
        cluster: str | Any = LOCAL,
        image: str | Any | None = None,
        pods: Pods | None = None,
        environment: Mapping[str, Any] | Any | None = None,
        working_directory: str | Any | None = None,
        fresh: bool | str | Any = False,
        warm: bool = True,
        log_limit: int = LOG_LIMIT,
        log_ranks: int | Collection[int] | None = None,
        on_finish: str = OnFinish.KEEP.value,
        wait_for_completion: bool = True,
        skip_on_exit_code: int | Collection[int] | None = None,
        fail_on_exit_code: int | Collection[int] | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        check_foreign(type(self).__name__, kwargs)
        super().__init__(**kwargs)
        self.command = command
        self.workers = workers
        self.checkpoint_uri = checkpoint_uri
        self.checkpoints = Checkpoints() if checkpoints is None else checkpoints
        self.recovery = Recovery() if recovery is None else recovery
        self.size_plan = size_plan
        self.cluster = cluster
        self.image = image
        self.pods = Pods() if pods is None else pods
        self.environment = as_environment({} if environment is None else environment)
        self.working_directory = working_directory
        self.fresh = fresh
        self.warm = parse_bool("warm", warm)
        self.log_limit = whole_number("log_limit", log_limit, least=0)
        self.log_ranks = ranks_shown("log_ranks", log_ranks)
        self.on_finish = on_finish
        self.wait_for_completion = parse_bool("wait_for_completion", wait_for_completion)
        self.skip_on_exit_code = exit_codes("skip_on_exit_code", skip_on_exit_code)
        self.fail_on_exit_code = exit_codes("fail_on_exit_code", fail_on_exit_code)
        self.deferrable = parse_bool("deferrable", deferrable)
        self._claimed: tuple[RunRef, str] | None = None
        self._killed = False
        self.check_what_is_known()

    def execute(self, context: Any) -> dict[str, Any] | None:
        """Create or adopt the run, then wait for it: here, or deferred, or not at all."""
        task_instance = context["ti"]
        self.remember_secrets()
        owner = self._owner(task_instance)
        if self.retries and not self.checkpoint_uri and owner.try_number == 1:
            self.log.warning(
                "The task has retries and no checkpoint_uri: a new try of a run that failed begins at the beginning. "
                'Write checkpoint_uri="s3://bucket/runs"'
            )
        cluster, ref = self._claim(owner)
        if self.do_xcom_push:
            task_instance.xcom_push(key=RUN_NAME_KEY, value=ref.name)
            task_instance.xcom_push(key=CLUSTER_KEY, value=self.cluster)
        if not self.wait_for_completion:
            return None
        deadline = utc_now() + self.execution_timeout if self.execution_timeout else None
        if self.deferrable:
            until = deadline.isoformat() if deadline else None
            trigger = TrainingRunTrigger(self.cluster, ref.name, ref.uid, owner.text(), until, self.log_ranks)
            self.defer(trigger=trigger, method_name="execute_complete")
        # Here Airflow itself keeps execution_timeout, and calls on_kill.
        followed = run(Follower(cluster, ref, owner.text(), self.log, ranks=self.log_ranks).follow())
        return self._conclude(context, cluster, ref, owner.text(), followed)

    def dry_run(self) -> None:
        """Print what ``execute`` would create, from the fields as they are rendered by now; creates nothing.

        Raises:
            InvalidSettings: as ``execute`` would fail.
        """
        name = run_name(self.dag_id, "dry_run", self.task_id)
        self.remember_secrets()
        print(masked(run(self.creating_cluster().plan(self.spec(name)))))  # noqa: T201  # what Airflow's dry_run is for

    @staticmethod
    def _owner(task_instance: Any) -> Owner:
        try:
            return Owner.of(task_instance, deployment())
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error

    def _claim(self, owner: Owner) -> tuple[Cluster, RunRef]:
        try:
            cluster = self.creating_cluster()
            name = run(present_name(cluster, owner.task))
            # A first try has no checkpoints yet, so only the others look for them.
            folder = self.former_folder(owner.task) if name == owner.task.name and owner.try_number > 1 else None
            spec = self.spec(name, folder)
            self.log.debug("Wanted run %s:\n%s", name, masked(run(cluster.plan(spec))))
            claim = run(cluster.claim(spec, owner.text(), fresh=parse_bool("fresh", self.fresh)))
        except InvalidSettings as error:
            # Of a value that the API server refuses, its words quote the value.
            raise AirflowFailException(masked(str(error))) from None
        self._claimed = (claim.ref, owner.text())
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
        self.remember_secrets()
        # The reason of a failure has a rank's last words, and who knows what these are.
        document: dict[str, Any] = masked(result_document(status))
        if status.phase is not Phase.SUCCEEDED:
            # Pushed, not returned: a task behind this one, with a trigger rule for it, can branch on the kind.
            context["ti"].xcom_push(key=FAILURE_KEY, value=document)
        self._clear_up(cluster, ref, owner, status)
        if status.phase is not Phase.SUCCEEDED:
            if status.exit_code in self.skip_on_exit_code:
                raise AirflowSkipException(f"training run {ref.name} ended with code {status.exit_code}")
            hopeless = status.exit_code in self.fail_on_exit_code
            raise failure_of(replace(status, reason=masked(status.reason)), hopeless=hopeless)
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
        cluster = get_cluster(self.cluster)
        try:
            ref = run(cluster.find(run(present_name(cluster, self._owner(task_instance).task))))
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
