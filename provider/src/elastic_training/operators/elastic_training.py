"""Base of the operators that train, for any engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_plain
from elastic_runtime.engines.exits import describe
from elastic_runtime.errors import ElasticError, FailureKind, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import LOG_LIMIT
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.run.status_failure import MAX_TRACEBACK, FirstFailure
from elastic_training.airflow.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    AirflowTaskTimeout,
    BaseOperator,
    conf,
)
from elastic_training.airflow.versions import is_in_loop, policies_are_asked, times_out_deferred_tasks
from elastic_training.assets import report_to_outlets
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.registry import get_cluster, own_name
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.cost.price_book import cost_of
from elastic_training.following.follow import Ending, Followed, Follower, ranks_shown
from elastic_training.identity.deployment import deployment
from elastic_training.identity.ownership import Owner
from elastic_training.lifecycle.clearing import OnClear, Start, last_try_before_clear
from elastic_training.lifecycle.task_memory import TaskMemory, name_of_run
from elastic_training.links import addresses
from elastic_training.listeners import listeners_of, report_claim
from elastic_training.listeners.callbacks import TrainingCallback, check_callbacks, path_of
from elastic_training.operators.checks import as_cluster, check_foreign, exit_codes
from elastic_training.operators.ending import EndsRuns
from elastic_training.operators.mapped import unmapping
from elastic_training.operators.starting import StartsRuns
from elastic_training.operators.training_arguments import OnFinish, TrainingArguments
from elastic_training.outcome.result import result_document
from elastic_training.redaction.free_text import without_secrets
from elastic_training.redaction.values import masked
from elastic_training.settings.deadline import Deadline
from elastic_training.settings.jupyter import Jupyter
from elastic_training.settings.observe import Observe
from elastic_training.settings.pods import Pods
from elastic_training.settings.ray import Ray
from elastic_training.settings.recovery import Checkpoints, Recovery
from elastic_training.settings.size_plan import SizePlan
from elastic_training.settings.slurm import Slurm
from elastic_training.settings.spark import Spark
from elastic_training.settings.templating import RendersSettings, as_environment
from elastic_training.settings.values import parse_bool, whole_number
from elastic_training.settings.workers import Workers
from elastic_training.triggers.training_run import TrainingRunTrigger

FAILURE_KEY = "failure"
"""XCom key of the result document of a run that failed."""
RUN_NAME_KEY, CLUSTER_KEY = "run_name", "cluster"
"""XCom keys under which the run can be found from the moment in which it is claimed."""
DEFAULT_POOL = "default_pool"
EARLIER = timedelta(minutes=2)
"""Where Airflow itself ends deferred tasks at their ``execution_timeout``: time before it for the run's end, a worker
slot, and the task's last method. Of a short timeout, a quarter, or :data:`LEAST_EARLIER`."""
LEAST_EARLIER = timedelta(seconds=40)
"""The same at least, or half of a timeout that is shorter than twice that."""
IN_LOOP = (
    "A training cannot be in a loop of Airflow: its iterations have the same ids, so they would share one run and its "
    "checkpoints. Map it over the values instead: .expand(command=[...])"
)
UNBOUNDED = (
    "The pool %s counts this task while it is deferred only if 'Include deferred' is set for the pool. Otherwise any "
    "number of trainings of it run at once: airflow pools set %s SLOTS DESCRIPTION --include-deferred"
)
_TRIGGER_FAILED = "__fail__"
"""Airflow's ``next_method`` when the trigger itself failed or timed out, in 2.x and 3.x alike."""


class ElasticTrainingOperator(StartsRuns, EndsRuns, TrainingArguments, RendersSettings, BaseOperator):
    """Train on workers that may come and go, and return the result document; the base of one class per engine.

    ``execute`` creates the run, or adopts the one that an earlier try of this task has left alive. A run that has
    ended without success is followed by a new one, which starts from the newest valid checkpoint of the old.

    Every parameter that is templated takes the output of another task as well; ``workers``, ``recovery`` and
    ``checkpoints`` then as a mapping of their fields.

    Args:
        command: Command of one rank, as a list: ``["python", "train.py"]``, without ``horovodrun`` or ``torchrun``.
            ``python script.py`` starts in a process that has imported torch; other commands start cold. Templated.
        workers: Number and kind of workers. Templated.
        checkpoint_uri: Prefix of durable checkpoints: ``file:///…``, ``s3://bucket/…``, ``gs://bucket/…`` or
            ``az://container/…``. Each run has its own folder below it. None: the connection's prefix; if that has none,
            no checkpoints are kept, and each new run starts from the beginning. ``""``: no checkpoints, whatever the
            connection has. Templated.
        checkpoint_conn_id: Airflow connection (``aws``, ``google_cloud_platform`` or ``wasb``) with the store's
            credentials, for the ranks. None: their own. Templated.
        checkpoints: How often they are written, and how many stay. Templated.
        recovery: What happens when workers are lost. Templated.
        size_plan: Number of workers by time of day; the launcher follows it. Templated.
        deadline: When the training shall be done, and what it may cost; not with a ``size_plan``. Templated.
        cluster: Place of the workers. ``"local"``: processes on this machine. ``"CONNECTION"`` or
            ``"CONNECTION/NAMESPACE"``: an Airflow connection of type elastic_training or kubernetes.
            ``"slurm:/FOLDER"``: jobs of Slurm; ``"ray:HOST:PORT/FOLDER"``: actors of Ray;
            ``"spark://HOST:PORT/FOLDER"``: tasks of Spark. Other packages can add places. Templated.
        kubernetes_conn_id: The same as ``cluster="CONNECTION"``, under KubernetesPodOperator's name for it.
        image: Image of launcher and workers, for pods. None: the connection's. Templated.
        pods: All other settings of pods; also as a mapping. Templated.
        ray: What workers want, with ``cluster="ray:…"``; also as a mapping. Templated.
        slurm: How jobs are submitted, with ``cluster="slurm:…"``; also as a mapping. Templated.
        spark: How workers are had, with ``cluster="spark:…"``; also as a mapping. Templated.
        environment: Extra variables of every rank: strings, numbers and paths. ``None``, lists and mappings are
            refused. Airflow's own variables (``AIRFLOW…``) never reach the workers. Templated.
        scripts: Files and folders of the DAG's folder that are shipped to the workers: ``["train.py", "lib/"]``. They
            are in a rank's working directory and on its PYTHONPATH. At most 256 KiB, compressed. Templated.
        observe: Traces, TensorBoard events and Prometheus figures; off but for samples of the timeline. Templated.
        jupyter: A pod with Jupyter beside the workers, for holders of its token; off. In pods only. Templated.
        working_directory: Working directory of every rank. None: that of the scripts; without scripts the run's own
            folder on this machine, and the image's in pods. Templated.
        hostfile: Path at which each worker has the hosts of the present world, in mpirun's format; in pods only.
            None: ``/etc/mpi/hostfile`` there. Ranks have the path in ELASTIC_RUNTIME_HOSTFILE, on this machine, too.
        fresh: Start over with *every* try: end a run that trains, and resume from no checkpoint.
            Templated: ``"{{ params.fresh }}"``.
        warm: Keep a process in every worker that has imported what the engine's ranks need. To import more ahead of
            time, set ``environment={"ELASTIC_RUNTIME_PRELOAD": "transformers,sklearn"}``.
        log_limit: Bytes of the ranks' output that are kept, 1 GiB. Of more, only the last lines are kept.
        log_ranks: Ranks whose lines are in the task's log: ``[0]``, ``[]`` for none, None for all. The launcher's lines
            always are.
        on_finish: See :class:`OnFinish`.
        on_clear: Whether a cleared task trains from the beginning or resumes: see
            :class:`~elastic_training.lifecycle.clearing.OnClear`.
        wait_for_completion: False: the task succeeds as soon as its run is created or adopted. The run then has no
            lease: it ends by itself, at a limit, or by a CancelTrainingOperator, and no task takes its result.
        skip_on_exit_code: One code or several: the task is skipped if the script failed with one of them. Negative:
            a signal.
        fail_on_exit_code: One code or several: the task is not retried if the script failed with one of them.
        callbacks: :class:`~elastic_training.listeners.callbacks.TrainingCallback` classes, or their dotted paths.
        continues: Id of a training task in the same DAG run, not a mapped one, whose checkpoints this one resumes from
            and adds to, at the same ``checkpoint_uri``. Templated.
        price_book: Path of a price book, or ``"example"``, for the cost in the result document. None:
            ``[elastic_training] price_book``. Templated.
        retry_policy: Airflow's, since 3.3; a TrainingRetryPolicy works in older versions, too.
        deferrable: Wait in the triggerer. Default: Airflow's ``[operators] default_deferrable``.
        kwargs: Parameters of every operator. ``execution_timeout`` counts from the start of the try and continues
            while the task is deferred. With Airflow 2, a deferred training ends two minutes earlier, or a quarter of a
            timeout below eight minutes, but 40 s at least, or half of it.

    Raises:
        InvalidSettings: at parse, for what is known then.
        TrainingFailed: from ``execute``; the task is retried and resumes.
        TrainingCancelled: from ``execute``, if the run was cancelled; the task is not retried.
        TrainingTimedOut: from ``execute``, once ``execution_timeout`` has passed; the task is retried and resumes.
        TrainingHopeless: from ``execute``, for a code of ``fail_on_exit_code``; the task is not retried.
        AirflowSkipException: from ``execute``, for a code of ``skip_on_exit_code``.
    """

    template_fields: Sequence[str] = (
        "command",
        "workers",
        "checkpoint_uri",
        "checkpoint_conn_id",
        "checkpoints",
        "recovery",
        "size_plan",
        "deadline",
        "cluster",
        "image",
        "pods",
        "ray",
        "slurm",
        "spark",
        "environment",
        "scripts",
        "observe",
        "jupyter",
        "working_directory",
        "fresh",
        "continues",
        "price_book",
    )
    template_ext: Sequence[str] = ()  # A word of a command that ends with ".sh" is a word, not a file to be read.
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "command": "bash",
        **dict.fromkeys(
            (
                *("workers", "checkpoints", "recovery", "size_plan", "deadline", "pods", "ray", "slurm", "spark"),
                *("environment", "scripts", "observe", "jupyter"),
            ),
            "json",
        ),
    }
    mappings: ClassVar[Collection[str]] = ("environment", "pods")
    ui_color = "#dbe9f6"
    log_ranks: Any
    skip_on_exit_code: Any
    fail_on_exit_code: Any
    callbacks: Any

    def __init__(
        self,
        *,
        command: Sequence[Any],
        workers: Workers | Mapping[str, Any] | Any,
        checkpoint_uri: str | Any | None = None,
        checkpoint_conn_id: str | Any | None = None,
        checkpoints: Checkpoints | Mapping[str, Any] | Any | None = None,
        recovery: Recovery | Mapping[str, Any] | Any | None = None,
        size_plan: SizePlan | Any | None = None,
        deadline: Deadline | Mapping[str, Any] | Any | None = None,
        cluster: str | Any = LOCAL,
        kubernetes_conn_id: str | Any | None = None,
        image: str | Any | None = None,
        pods: Pods | Mapping[str, Any] | None = None,
        ray: Ray | Mapping[str, Any] | Any | None = None,
        slurm: Slurm | Mapping[str, Any] | Any | None = None,
        spark: Spark | Mapping[str, Any] | Any | None = None,
        environment: Mapping[str, Any] | Any | None = None,
        scripts: Sequence[Any] | Any | None = None,
        observe: Observe | Mapping[str, Any] | Any | None = None,
        jupyter: Jupyter | Mapping[str, Any] | Any | None = None,
        working_directory: str | Any | None = None,
        hostfile: str | None = None,
        fresh: bool | str | Any = False,
        warm: bool = True,
        log_limit: int = LOG_LIMIT,
        log_ranks: int | Collection[int] | None = None,
        on_finish: str = OnFinish.KEEP.value,
        on_clear: str = OnClear.START_OVER.value,
        wait_for_completion: bool = True,
        skip_on_exit_code: int | Collection[int] | None = None,
        fail_on_exit_code: int | Collection[int] | None = None,
        callbacks: type[TrainingCallback] | str | Collection[type[TrainingCallback] | str] | None = None,
        continues: str | Any | None = None,
        price_book: str | Any | None = None,
        retry_policy: Any | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        check_foreign(type(self).__name__, kwargs, self.foreign)
        if kubernetes_conn_id is not None:
            cluster = as_cluster(cluster, kubernetes_conn_id)
        if policies_are_asked():
            kwargs["retry_policy"] = retry_policy
        super().__init__(**kwargs)
        self.command = command
        self.workers = workers
        self.checkpoint_uri = checkpoint_uri
        self.checkpoint_conn_id = checkpoint_conn_id
        self.checkpoints = checkpoints
        self.recovery = recovery
        self.size_plan, self.deadline = size_plan, deadline
        self.cluster = cluster
        self.image = image
        self.pods, self.ray, self.slurm, self.spark = pods, ray, slurm, spark
        self.environment = environment
        self.scripts = scripts
        self.observe = observe
        self.jupyter = jupyter
        self.working_directory = working_directory
        self.hostfile = hostfile
        self.fresh = fresh
        self.warm = warm
        self.log_limit = log_limit
        self.log_ranks = log_ranks
        self.on_finish = on_finish
        self.on_clear = on_clear
        self.wait_for_completion = wait_for_completion
        self.skip_on_exit_code = skip_on_exit_code
        self.fail_on_exit_code = fail_on_exit_code
        self.continues = continues
        self.price_book = price_book
        self.retry_policy = retry_policy
        self.deferrable = deferrable
        self.callbacks = callbacks
        self._claimed: tuple[Cluster, RunRef, str] | None = None
        self._killed = False
        with unmapping(self):
            self.settle()

    def settle(self) -> None:
        """Put defaults and parsed values in the place of what was given. Raises InvalidSettings."""
        self.checkpoints = Checkpoints() if self.checkpoints is None else self.checkpoints
        self.recovery = Recovery() if self.recovery is None else self.recovery
        self.pods = Pods() if self.pods is None else self.pods
        self.environment = as_environment({} if self.environment is None else self.environment)
        self.observe = Observe() if self.observe is None else self.observe
        self.warm = parse_bool("warm", self.warm)
        self.log_limit = whole_number("log_limit", self.log_limit, least=0)
        self.log_ranks = ranks_shown("log_ranks", self.log_ranks)
        self.wait_for_completion = parse_bool("wait_for_completion", self.wait_for_completion)
        self.skip_on_exit_code = exit_codes("skip_on_exit_code", self.skip_on_exit_code)
        self.fail_on_exit_code = exit_codes("fail_on_exit_code", self.fail_on_exit_code)
        self.deferrable = parse_bool("deferrable", self.deferrable)
        self.callbacks = check_callbacks(self.callbacks, deferrable=self.deferrable)
        self.check_what_is_known()

    def execute(self, context: Any) -> dict[str, Any] | None:
        """Create or adopt the run, then wait for it: here, or deferred, or not at all."""
        if is_in_loop(context):
            raise AirflowFailException(IN_LOOP)
        task_instance = context["ti"]
        self.remember_secrets()
        owner = self._owner(task_instance)
        memory = TaskMemory(context, self.log)
        cleared_after = last_try_before_clear(task_instance.max_tries, self.retries or 0)
        cluster, ref = self._claim(owner, memory, cleared_after)
        if self.retries and not self.checkpoint_uri and owner.try_number == 1:
            self.log.warning(
                "The task has retries and no checkpoint_uri: a new try of a run that failed begins at the beginning. "
                'Write checkpoint_uri="s3://bucket/runs"'
            )
        if self.do_xcom_push:
            links = addresses(cluster, own_name(self.cluster), ref, owner, self.checkpoint_uri, self.checkpoint_conn_id)
            for key, value in {RUN_NAME_KEY: ref.name, CLUSTER_KEY: self.cluster, **links}.items():
                task_instance.xcom_push(key=key, value=value)
        if not self.wait_for_completion:
            return None
        if self.deferrable:
            deadline = self._wait_until(task_instance)
            if self.pool != DEFAULT_POOL and owner.try_number == 1:
                self.log.warning(UNBOUNDED, self.pool, self.pool)
            until = deadline.isoformat() if deadline else None
            where = (own_name(self.cluster), ref.name, ref.uid)
            callbacks = [path_of(each) for each in self.callbacks]
            keeping = {
                "checkpoints": self.checkpoint_uri,
                "conn_id": self.checkpoint_conn_id,
                "price_book": self.price_book,
            }
            trigger = TrainingRunTrigger(*where, owner.text(), until, self.log_ranks, callbacks, keeping)
            self.defer(trigger=trigger, method_name="execute_complete", kwargs=memory.deferral_kwargs)
        # Here Airflow itself keeps execution_timeout, and calls on_kill.
        listeners = listeners_of(owner.text(), self.callbacks)
        follower = Follower(cluster, ref, owner.text(), self.log, ranks=self.log_ranks, listeners=listeners)
        try:
            followed = run(follower.follow())
        except AirflowTaskTimeout:
            followed = Followed(Ending.DEADLINE, follower.status)
        return self._conclude(context, cluster, ref, owner.text(), followed, memory)

    def _wait_until(self, task_instance: Any) -> datetime | None:
        """When the trigger ends its wait, so that there is time for :meth:`execute_complete`."""
        if self.execution_timeout is None:
            return None
        if not times_out_deferred_tasks():
            return utc_now() + self.execution_timeout
        began = task_instance.start_date or utc_now()
        least = min(LEAST_EARLIER, self.execution_timeout / 2)
        deadline: datetime = began + self.execution_timeout - min(EARLIER, max(self.execution_timeout / 4, least))
        return deadline

    @staticmethod
    def _owner(task_instance: Any) -> Owner:
        try:
            return Owner.of(task_instance, deployment())
        except InvalidSettings as error:
            raise AirflowFailException(str(error)) from error

    def _claim(self, owner: Owner, memory: TaskMemory, cleared_after: int = 0) -> tuple[Cluster, RunRef]:
        try:
            cluster, place = self.creating_cluster(), own_name(self.cluster)
            name = run(name_of_run(cluster, place, owner.task, memory.run(), self.log))
            run(memory.look_back(cluster, name))
            start, folder = self.starting(cluster, place, name, owner, cleared_after, memory)
            spec = self.spec(name, folder, start_over=start is Start.START_OVER)
            self.log.debug("Wanted run %s:\n%s", name, masked(run(cluster.plan(spec))))
            fresh, keep = start is not Start.ADOPT, self.keeper(cluster, place).keep_before
            claim = run(cluster.claim(spec, owner.text(), fresh=fresh, before_takeover=keep))
        except InvalidSettings as error:
            # Of a value that the API server refuses, its words quote the value.
            raise AirflowFailException(masked(str(error))) from None
        self._claimed, self._place = (cluster, claim.ref, owner.text()), place
        memory.claimed(claim.ref, place, owner.deployment, spec.checkpoint.uri if spec.checkpoint else None)
        self.log.info("Run %s (uid %s) is %s: %s", name, claim.ref.uid, claim.outcome, claim.note)
        if claim.warning:
            self.log.warning("%s", claim.warning)
        if self._killed:
            self.on_kill()
        run(report_claim(claim, listeners_of(owner.text(), self.callbacks), self.log))
        return cluster, claim.ref

    def execute_complete(self, context: Any, event: Mapping[str, Any], failures: Any = None) -> dict[str, Any]:
        """Take the result after the trigger has fired."""
        status = None if event["status"] is None else from_plain(Status, event["status"])
        followed = Followed(Ending(event["ending"]), status, event["detail"])
        ref = RunRef(event["name"], event["uid"])
        memory = TaskMemory(context, self.log, failures)
        return self._conclude(context, get_cluster(self.cluster), ref, event["owner"], followed, memory)

    def _conclude(
        self, context: Any, cluster: Cluster, ref: RunRef, owner: str, followed: Followed, memory: TaskMemory
    ) -> dict[str, Any]:
        status = followed.status
        match followed.ending:
            case Ending.DEADLINE:
                raise self._timed_out(context, cluster, ref, owner, status, memory)
            case Ending.VANISHED | Ending.SUPERSEDED:
                raise AirflowException(f"training run {ref.name} is out of this try's hands: {followed.detail}")
        assert status is not None
        self.remember_secrets()
        # The reason of a failure has a rank's last words, and who knows what these are.
        cost = cost_of(status, self.price_book, self.log)
        keeper = self.keeper(cluster, own_name(self.cluster))
        self._written, self._written_under = status.checkpoint, (keeper.checkpoints, keeper.conn_id)
        report = run(keeper.keep(ref, status, cost))
        # Before anything is cut into lines, or indented: Airflow's masker finds a secret only as it is.
        shown = without_secrets(status, masked)
        document = result_document(shown, cost, report and masked(report))
        if status.phase is Phase.SUCCEEDED:
            memory.succeeded(status)
            report_to_outlets(context, self.outlets, status)
            self.clear_up(cluster, ref, owner, status)
            return document
        task_instance = context["ti"]
        # Pushed, not returned: a task behind this one, with a trigger rule for it, can branch on the kind.
        task_instance.xcom_push(key=FAILURE_KEY, value=document)
        if first := shown.first_failure:
            block = failure_block(first, cluster.worker_log(ref.name, first.worker))
            self.log.error("%s", masked(block))
        hopeless = status.exit_code in self.fail_on_exit_code
        told = replace(status, reason=masked(status.reason))
        raised = memory.failed(told, task_instance, self.retry_policy, hopeless=hopeless)
        self.clear_up(cluster, ref, owner, status)
        if status.exit_code in self.skip_on_exit_code:
            raise AirflowSkipException(f"training run {ref.name} ended with code {status.exit_code}")
        raise raised

    def _timed_out(
        self, context: Any, cluster: Cluster, ref: RunRef, owner: str, last: Status | None, memory: TaskMemory
    ) -> BaseException:
        """End the run and leave its failure as XCom. Returns what ends the try."""
        self._claimed = None  # Airflow calls on_kill next, and there is nothing more to do.
        passed = f"execution_timeout of {self.execution_timeout} has passed"
        report = self.cancel(cluster, own_name(self.cluster), ref, passed, owner)
        status = last
        with suppress(ElasticError):
            status = run(cluster.status(ref))
        if status is None:
            return AirflowTaskTimeout(f"training run {ref.name}: {passed}, and nothing is known of it")
        self.remember_secrets()
        was = f"{last.phase}: {last.reason}" if last else "not watched yet"
        there = f". Another try goes on from step {status.checkpoint.step}" if status.checkpoint else ""
        reason = f"{passed}; it was {was}{there}"
        told = without_secrets(
            replace(status, phase=Phase.FAILED, failure=FailureKind.EXECUTION_TIMEOUT, reason=reason), masked
        )
        cost = cost_of(status, self.price_book, self.log)
        task_instance = context["ti"]
        task_instance.xcom_push(key=FAILURE_KEY, value=result_document(told, cost, report and masked(report)))
        if status.phase.final:
            self.clear_up(cluster, ref, owner, told)
        return memory.failed(replace(told, reason=masked(reason)), task_instance, self.retry_policy, hopeless=False)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Resume as Airflow does. If the trigger has failed for good, cancel the run: no task waits for it."""
        if next_method == _TRIGGER_FAILED:
            task_instance = context["ti"]
            timed_out = "timeout" in str((next_kwargs or {}).get("error", "")).lower()
            if timed_out or task_instance.try_number > task_instance.max_tries:
                reason = "its trigger timed out" if timed_out else "its trigger failed"
                self.cancel_of_try(context, own_name(self.cluster), self._owner(task_instance), reason)
        return super().resume_execution(next_method, next_kwargs, context)


def failure_block(first: FirstFailure, more: str) -> str:
    """What the task says in its log of the rank that failed first: who, when, what, and where there is more.

    Args:
        first: of the run's final status.
        more: how its worker's own log is read.
    """
    who = printable(first.who)
    step = "" if first.step is None else f" at step {first.step}"
    ended = printable(describe(first.exit_code))
    time = f"{first.time:%Y-%m-%d %H:%M:%S} UTC"
    lines = [f"{who[:1].upper()}{who[1:]} failed first{step}, with {ended}, {time}:", printable(first.message)]
    # The whole is bounded, and so is each line.
    lines += [f"    {printable(line)}" for line in first.traceback[:MAX_TRACEBACK].split("\n") if line.strip()]
    return "\n".join([*lines, f"The log of its worker: {printable(more)}"])
