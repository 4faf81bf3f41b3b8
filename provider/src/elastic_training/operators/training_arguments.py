"""What an operator that trains is told, from the DAG file to the run's spec."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import uuid4

from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.spec import PLAN_VERSION, RunSpec
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import check_cluster, get_cluster, has_pods
from elastic_training.kubernetes_syntax import image as image_name
from elastic_training.naming import TaskIdentity
from elastic_training.operators.arguments import (
    check_checkpoint_uri,
    check_command,
    check_environment,
    check_foreign,
    check_text,
    command_words,
)
from elastic_training.pods import Hardware, Pods
from elastic_training.redaction import remember_secrets
from elastic_training.settings import Checkpoints, Recovery, Workers, parse_bool, settings_of
from elastic_training.size_plan import SizePlan
from elastic_training.templating import all_known, as_environment, is_template, plain


class OnFinish(StrEnum):
    """What becomes of the run's documents and log, never of its checkpoints, once the task has its result."""

    KEEP = "keep"
    """They stay until the next run of that name."""
    DELETE = "delete"
    DELETE_IF_SUCCEEDED = "delete_if_succeeded"


class TrainingArguments:
    """Mix-in for operators: checks their arguments at parse, and makes a spec of them once they are rendered."""

    command: Any
    workers: Any
    checkpoint_uri: Any
    checkpoints: Any
    recovery: Any
    size_plan: Any
    cluster: Any
    image: Any
    pods: Any
    environment: Any
    working_directory: Any
    fresh: Any
    warm: bool
    log_limit: int
    on_finish: str
    wait_for_completion: bool

    @classmethod
    def partial(cls, **arguments: Any) -> Any:
        """As Airflow's, for mapped tasks; Airflow keeps and shows what it is given as it is."""
        check_foreign(cls.__name__, arguments)
        if "environment" in arguments:
            arguments["environment"] = as_environment(arguments["environment"])
        return super().partial(**arguments)  # type: ignore[misc]  # the Airflow base that this is mixed into has it

    def check_what_is_known(self) -> None:
        """Raises InvalidSettings for what cannot work, whatever templates and other tasks yield."""
        check_cluster(self.cluster)
        self._check_pods()
        if not is_template(self.command):
            check_command(self.command)
        if not is_template(self.environment):
            check_environment(self.environment)
        if not is_template(self.workers):
            self.workers = self._workers()
        if not is_template(self.recovery):
            self.recovery = self._recovery()
        if not is_template(self.checkpoints):
            self.checkpoints = self._checkpoints()
        self._check_plan()
        check_checkpoint_uri(self.checkpoint_uri)
        check_text("image", self.image, '"registry/trainer:1"')
        check_text("working_directory", self.working_directory, '"/srv/model"')
        if not is_template(self.fresh):
            parse_bool("fresh", self.fresh)
        if self.on_finish not in tuple(OnFinish):
            choices = ", ".join(repr(choice.value) for choice in OnFinish)
            raise InvalidSettings(
                "on_finish", f"{self.on_finish!r} is not one of its values", f"Write one of {choices}"
            )
        if not self.wait_for_completion and self.on_finish != OnFinish.KEEP:
            problem = f"{self.on_finish!r} needs a task that waits for the end"
            raise InvalidSettings("on_finish", problem, "Delete the run with a DeleteTrainingOperator")

    def _workers(self) -> Workers:
        return settings_of(Workers, "workers", self.workers, "Workers(min=1, start=2, max=4)")

    def _recovery(self) -> Recovery:
        return settings_of(Recovery, "recovery", self.recovery, 'Recovery(mode="elastic")')

    def _checkpoints(self) -> Checkpoints:
        example = 'Checkpoints(every=60, keep=2); where they go is checkpoint_uri="s3://bucket/runs"'
        return settings_of(Checkpoints, "checkpoints", self.checkpoints, example)

    def _plan(self) -> SizePlan:
        example = 'SizePlan(windows=[SizeWindow(8, "22:00", "06:00")], otherwise=2, timezone="Asia/Shanghai")'
        return settings_of(SizePlan, "size_plan", self.size_plan, example)

    def _check_plan(self) -> None:
        if self.size_plan is None or is_template(self.size_plan):
            return
        self.size_plan = plan = self._plan()
        if isinstance(self.workers, Workers):
            plan.check_known(self.workers)

    def _check_pods(self) -> None:
        if not isinstance(self.pods, Pods):
            problem, remedy = f"a {type(self.pods).__name__} is not a Pods", "Write Pods(volumes=[...])"
            raise InvalidSettings("pods", problem, remedy)
        if self.pods.hardware != Hardware():
            raise InvalidSettings(
                "pods.hardware", "it follows from workers", "Write Workers(gpus=..., shm=..., spot=...)"
            )
        if self.image and isinstance(self.image, str) and not is_template(self.image):
            image_name("image", self.image)
        if not (self.image or self.pods.image or is_template(self.cluster)) and has_pods(self.cluster):
            remedy = 'Write image="registry/trainer:1"'
            raise InvalidSettings("image", f"there is none for the pods of cluster {self.cluster!r}", remedy)

    @all_known()
    def spec(self, name: str, folder: str | None = None) -> RunSpec:
        """A new run of this task, from rendered fields.

        Args:
            name: of the run.
            folder: of its checkpoints, under the prefix; None: as the run is called.

        Raises:
            InvalidSettings: what only rendering has shown.
        """
        uid, fence = uuid4().hex, int(time.time())
        checkpoint, recovery = None, self._recovery()
        timing = recovery.timing()
        if not self.wait_for_completion:
            timing = replace(timing, lease=0.0)  # Nobody will renew it.
        check_checkpoint_uri(self.checkpoint_uri)
        check_text("working_directory", self.working_directory, '"/srv/model"')
        if self.checkpoint_uri:
            # A run that starts over must not see what others have left, and has a place of its own.
            folder = f"{name}-{uid[:8]}" if parse_bool("fresh", self.fresh) else folder or name
            checkpoint = self._checkpoints().spec(f"{self.checkpoint_uri.rstrip('/')}/{folder}", fence)
        return RunSpec(
            name=name,
            uid=uid,
            command=command_words(self.command),
            workers=self._workers().spec(),
            recovery=recovery.spec(),
            checkpoint=checkpoint,
            environment=check_environment(self.environment),
            working_directory=self.working_directory or None,
            warm=self.warm,
            log_limit=self.log_limit,
            timing=timing,
            size_plan=None if self.size_plan is None else self._plan().spec(),
            version=PLAN_VERSION if self.size_plan is not None else 1,
        )

    def former_folder(self, task: TaskIdentity) -> str | None:
        """The checkpoints' folder of a run from before names told deployments apart, if it alone has any.

        Best effort: a store that this process cannot reach has none.
        """
        if not self.checkpoint_uri or task.former_name is None or parse_bool("fresh", self.fresh):
            return None
        from elastic_runtime.checkpoint.store import open_store

        prefix = self.checkpoint_uri.rstrip("/")
        try:
            for name in (task.name, task.former_name):
                store = open_store(f"{prefix}/{name}")
                try:
                    if store.names():
                        return None if name == task.name else name
                finally:
                    store.close()
        except ElasticError:
            return None
        return None

    def remember_secrets(self) -> None:
        """Have Airflow mask what looks secret in this task's environment, in all that this process logs."""
        remember_secrets([plain(self.command), plain(self.environment), plain(self.pods)])

    @all_known()
    def creating_cluster(self) -> Cluster:
        """The cluster with all that it needs to create this task's run. Raises InvalidSettings."""
        check_cluster(self.cluster)
        return get_cluster(
            self.cluster, self.pods.of_run(self._workers(), self.image) if has_pods(self.cluster) else None
        )
