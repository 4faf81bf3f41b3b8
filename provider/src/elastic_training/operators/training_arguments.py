"""Arguments of an operator that trains, from the DAG file to the run's spec."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from elastic_runtime.agent.devices import most_devices, pools
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.ray.jobs import RaySpec
from elastic_runtime.run.deadline import DeadlineSpec
from elastic_runtime.run.join import JoinSpec
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.shipment import pack
from elastic_runtime.run.spec import RunSpec, check_hostfile, check_join, check_one_of, has_fixed_size
from elastic_runtime.slurm.jobs import SlurmSpec
from elastic_runtime.spark.jobs import SparkSpec
from elastic_training.airflow.versions import folder_of
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import LOCAL, RAY, SLURM, SPARK, Location, SparkName
from elastic_training.clusters.place import JOINABLE
from elastic_training.clusters.registry import (
    check_cluster,
    cluster_called,
    has_pods,
    is_jobs,
    is_local,
    is_pool,
    is_ray,
    local_settings,
    location,
    place_of,
)
from elastic_training.concurrency.bridge import run
from elastic_training.cost.price_book import check_price_book, read_book, worker_price
from elastic_training.identity.naming import run_name
from elastic_training.kubernetes_syntax import image as image_name
from elastic_training.lifecycle.clearing import OnClear
from elastic_training.links import LinksOfTask
from elastic_training.operators.checks import (
    FOREIGN,
    as_cluster,
    check_checkpoint_uri,
    check_command,
    check_environment,
    check_foreign,
    check_text,
    command_words,
)
from elastic_training.operators.lineage import ReportsLineage
from elastic_training.operators.mapped import check_partial
from elastic_training.redaction.values import masked, parts_known, remember_secrets, secrets_in
from elastic_training.settings.deadline import Deadline
from elastic_training.settings.jupyter import jupyter_of
from elastic_training.settings.observe import Observe
from elastic_training.settings.pods import Pods, pods_of
from elastic_training.settings.ray import Ray, ray_of
from elastic_training.settings.recovery import Checkpoints, Recovery, check_growth
from elastic_training.settings.scripts import check_scripts, read_scripts
from elastic_training.settings.size_plan import SizePlan
from elastic_training.settings.slurm import Slurm, slurm_of
from elastic_training.settings.spark import Spark, spark_of
from elastic_training.settings.store_credentials import StoreCredentials, check_store_connection, store_credentials
from elastic_training.settings.templating import all_known, as_environment, is_template, plain
from elastic_training.settings.training_pool import PodPool, PoolName, TrainingPool, check_greedy
from elastic_training.settings.values import member_of, parse_bool, settings_of
from elastic_training.settings.workers import Workers

_SYSTEMS = {
    SLURM: ("jobs of Slurm", "slurm:/FOLDER"),
    RAY: ("actors of Ray", "ray:HOST:PORT/FOLDER"),
    SPARK: ("tasks of Spark", "spark://HOST:PORT/FOLDER"),
}
"""By the name of their settings: what these are about, and the name of such a cluster."""


class OnFinish(StrEnum):
    """Choice of what happens to the run's documents and log once the task has its result. Checkpoints stay."""

    KEEP = "keep"
    """They stay until the next run of that name, and as ``[elastic_training] keep_days`` and ``keep_runs`` say."""
    DELETE = "delete"
    DELETE_IF_SUCCEEDED = "delete_if_succeeded"


class TrainingArguments(ReportsLineage):
    """Mix-in for operators: checks their arguments at parse, and makes a spec of them once they are rendered."""

    engine: ClassVar[str]
    """Engine of the runs: a name of :mod:`elastic_runtime.engines.registry`."""
    foreign: ClassVar[Mapping[str, str]] = FOREIGN
    """Arguments that are refused, and what says the same here."""
    dag_id: str
    task_id: str
    operator_extra_links = LinksOfTask()
    command: Any
    workers: Any
    checkpoint_uri: Any
    checkpoint_conn_id: Any
    checkpoints: Any
    recovery: Any
    size_plan: Any
    deadline: Any
    cluster: Any
    training_pool: TrainingPool | None = None
    """With which the first run brings its pool up."""
    priority_weight: int
    image: Any
    pods: Any
    ray: Any
    slurm: Any
    spark: Any
    environment: Any
    scripts: Any
    observe: Any
    jupyter: Any
    working_directory: Any
    hostfile: str | None
    fresh: Any
    continues: Any
    price_book: Any
    warm: bool
    log_limit: int
    on_finish: str
    on_clear: str
    wait_for_completion: bool
    log: Any
    _parts_known: frozenset[str] = frozenset()
    """Parts of the settings that Airflow's masker knew at first."""

    @classmethod
    def partial(cls, **arguments: Any) -> Any:
        """Set arguments of mapped tasks, as in Airflow, which keeps and shows them unchanged."""
        check_foreign(cls.__name__, arguments, cls.foreign)
        if isinstance(pool := arguments.get("cluster"), TrainingPool):  # Airflow would store its repr as the cluster.
            remedy = f'Write cluster="{pool.cluster}", and bring it up by the command or by another task'
            raise InvalidSettings("cluster", "mapped tasks cannot bring a pool up", remedy)
        if "kubernetes_conn_id" in arguments:
            arguments["cluster"] = as_cluster(arguments.get("cluster", LOCAL), arguments.pop("kubernetes_conn_id"))
        if isinstance(arguments.get("pods"), Mapping):
            arguments["pods"] = pods_of(arguments["pods"])  # Which is shown without secrets.
        if "environment" in arguments:
            arguments["environment"] = as_environment(arguments["environment"])
        check_partial(cls, arguments)
        return super().partial(**arguments)  # type: ignore[misc]  # the Airflow base that this is mixed into has it

    def check_what_is_known(self) -> None:
        """Raises InvalidSettings for what cannot work, whatever templates and other tasks yield."""
        if isinstance(self.cluster, TrainingPool):
            self.training_pool, self.cluster = self.cluster, self.cluster.cluster
        check_cluster(self.cluster)
        if not is_template(self.command):
            check_command(self.command)
        if not is_template(self.environment):
            check_environment(self.environment)
        if not is_template(self.workers):
            self.workers = self._workers()
        if not is_template(self.recovery):
            self.recovery = self._recovery()
        if isinstance(self.workers, Workers):
            self._check_workers(self.workers)
        self._check_pods()
        if not is_template(self.checkpoints):
            self.checkpoints = self._checkpoints()
        self._check_plan()
        self._check_deadline()
        self._check_observe()
        self._check_texts()
        check_scripts(self.scripts, self._script_roots())
        if not is_template(self.fresh):
            parse_bool("fresh", self.fresh)
        # A connection may name the checkpoints; it is read in `execute`.
        self._check_continues(store_known=not is_template(self.cluster) and not has_pods(self.cluster))
        check_price_book(self.price_book)
        member_of("on_finish", self.on_finish, OnFinish)
        member_of("on_clear", self.on_clear, OnClear)
        if not self.wait_for_completion and self.on_finish != OnFinish.KEEP:
            problem = f"{self.on_finish!r} needs a task that waits for the end"
            raise InvalidSettings("on_finish", problem, "Delete the run with a DeleteTrainingOperator")

    def _check_workers(self, workers: Workers) -> None:
        """What they can be in this place, as far as it is known."""
        if isinstance(self.recovery, Recovery) and not is_template(workers.join):
            check_join(workers.join or None, self.recovery.mode)
        if is_template(self.cluster):
            return
        if not is_template(workers.greedy):
            check_greedy(self.cluster, greedy=parse_bool("workers.greedy", workers.greedy))
        if is_local(self.cluster) or is_jobs(self.cluster):  # A connection may lead anywhere.
            check_joinable(workers, self.cluster)

    def _check_texts(self) -> None:
        check_checkpoint_uri(self.checkpoint_uri)
        check_store_connection(self.checkpoint_uri, self.checkpoint_conn_id)
        check_text("image", self.image, '"registry/trainer:1"')
        check_text("working_directory", self.working_directory, '"/srv/model"')

    def _workers(self) -> Workers:
        return settings_of(Workers, "workers", self.workers, "Workers(min=1, start=2, max=4)")

    def _recovery(self) -> Recovery:
        return settings_of(Recovery, "recovery", self.recovery, 'Recovery(mode="elastic")')

    def _check_growth(self, recovery: Recovery) -> None:
        shape = None if is_template(self.pods) else self.pods.worker
        if shape and shape.template is None and not is_template(shape.resources):
            check_growth(recovery.known_spec(), shape.resources)

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

    def _deadline(self) -> Deadline:
        example = 'Deadline(by="06:00", time_zone="Europe/Berlin", budget=40.0)'
        return settings_of(Deadline, "deadline", self.deadline, example)

    def _check_deadline(self) -> None:
        if self.deadline is None or is_template(self.deadline):
            return
        self.deadline = found = self._deadline()
        if not is_template(self.size_plan):
            check_one_of(self.size_plan, found)
        if isinstance(self.workers, Workers):
            found.check_known(self.workers)

    def _deadline_spec(self) -> DeadlineSpec | None:
        if self.deadline is None:
            return None
        workers = self._workers()
        spot = parse_bool("workers.spot", workers.spot)
        return self._deadline().spec(utc_now(), worker_price(self.price_book, workers.machine, spot=spot))

    def _observe(self) -> Observe:
        return settings_of(Observe, "observe", self.observe, "Observe(timeline=True)")

    def _check_observe(self) -> None:
        if not is_template(self.observe):
            self.observe = self._observe()
            if self.observe.needs_store and not self.checkpoint_uri and location(self.cluster) is None:
                problem = "its files are kept beside the checkpoints, and checkpoint_uri is not set"
                raise InvalidSettings("observe", problem, 'Write checkpoint_uri="s3://bucket/runs"')

    def _check_continues(self, *, store_known: bool) -> None:
        check_text("continues", self.continues, '"train", the id of the other training task')
        if self.continues and store_known and not self.checkpoint_uri:
            remedy = "Write the checkpoint_uri of the other training"
            raise InvalidSettings("continues", "it resumes from checkpoints, and checkpoint_uri is not set", remedy)
        if self.continues and not is_template(self.fresh) and parse_bool("fresh", self.fresh):
            raise InvalidSettings("continues", "fresh=True starts over", "Write one of the two")

    def _check_pods(self) -> None:
        if not is_template(self.pods):
            self.pods = pods_of(self.pods)
        self.slurm, self.ray, self.spark = slurm_of(self.slurm), ray_of(self.ray), spark_of(self.spark)
        if self.image and isinstance(self.image, str) and not is_template(self.image):
            image_name("image", self.image)
        if self.hostfile:
            check_hostfile(self.hostfile)
        in_jobs = isinstance(self.cluster, str) and is_jobs(self.cluster)
        on_this_machine = isinstance(self.cluster, str) and is_local(self.cluster)
        if isinstance(self.cluster, str) and is_pool(self.cluster) and not on_this_machine:
            self._check_pods_of_pool()
        if on_this_machine or in_jobs:
            for name in self._only_in_pods():
                problem = f"it is about pods, and with cluster={self.cluster!r} there are none"
                remedy = 'Write cluster="CONNECTION", of a connection of type kubernetes or elastic_training'
                raise InvalidSettings(name, problem, f"{remedy}, or leave it out")
        if on_this_machine or in_jobs:
            self._check_systems(self.cluster)
        if isinstance(self.recovery, Recovery):
            self._check_growth(self.recovery)
        self.jupyter = jupyter_of(self.jupyter, pods=is_template(self.cluster) or has_pods(self.cluster))

    def _check_pods_of_pool(self) -> None:
        """Refuse what would have to be the pool's: its pods are there before this training."""
        workers = self.workers if isinstance(self.workers, Workers) else Workers(1, 1, 1)
        given = {"workers.gpus": workers.gpus, "workers.machine": workers.machine, "jupyter": self.jupyter}
        for name in (*self._only_in_pods(), *(name for name, value in given.items() if value)):
            problem = f"the pods of {self.cluster} are there before this training"
            remedy = "Leave it out, or write it in the TrainingPool"
            raise InvalidSettings(name, problem, f"{remedy}: TrainingPool(..., pods=Pods(...), gpus=..., spot=...)")
        if workers.join:
            problem = f"machines cannot join a training whose workers are pods of {self.cluster}"
            raise InvalidSettings("workers.join", problem, "Leave it out, or train in pods of its own")

    @all_known()
    def spec(self, name: str, folder: str | None = None, *, start_over: bool = False) -> RunSpec:
        """A new run of this task, from rendered fields.

        Args:
            name: of the run.
            folder: of its checkpoints, under the prefix; None: as the run is called.
            start_over: use a new folder, whatever ``folder`` says.

        Raises:
            InvalidSettings: what only rendering has shown.
        """
        uid, fence = uuid4().hex, int(time.time())
        checkpoint, recovery = None, self._recovery()
        timing = recovery.timing()
        if not self.wait_for_completion:
            timing = replace(timing, lease=0.0)  # Nobody will renew it.
        self._check_texts()
        self._check_continues(store_known=True)
        read_book(self.price_book)  # Now, and not after a night of training.
        if self.checkpoint_uri:
            # A run that starts over must not see what others have left, and has a place of its own.
            folder = f"{name}-{uid[:8]}" if start_over or parse_bool("fresh", self.fresh) else folder or name
            uri = f"{self.checkpoint_uri.rstrip('/')}/{folder}"
            checkpoint = self._checkpoints().spec(uri, fence, f"{name}.{uid}")
        files = self.shipped_files()
        observe = self._observe().spec(store=checkpoint is not None)
        workers, lost = self._workers().spec(), recovery.spec()
        jupyter = jupyter_of(self.jupyter, pods=True)
        fixed_size = has_fixed_size(workers, lost) and self.size_plan is None
        return RunSpec(
            name=name,
            uid=uid,
            command=command_words(self.command),
            workers=workers,
            recovery=lost,
            checkpoint=checkpoint,
            environment=self.rank_environment(fixed_size=fixed_size),
            working_directory=self.working_directory or None,
            warm=self.warm,
            log_limit=self.log_limit,
            timing=timing,
            size_plan=None if self.size_plan is None else self._plan().spec(),
            deadline=self._deadline_spec(),
            scripts=pack(files) if files else None,
            observe=observe,
            hostfile=self.hostfile or None,
            jupyter=jupyter.spec() if jupyter else None,
            join=self._workers().join_spec(),
            engine=self.engine,
            secrets=self._further_secrets(),
            pool=self._pool_spec(),
        )

    def _pool_spec(self) -> PoolSpec | None:
        if (pool := PoolName.parse(self.cluster)) is None:
            return None
        greedy = parse_bool("workers.greedy", self._workers().greedy)
        return PoolSpec(pool.name, self.priority_weight, greedy)

    def _further_secrets(self) -> tuple[str, ...]:
        """What Airflow hides in this task's log, for those who show the run's texts elsewhere."""
        of_pods = secrets_in([plain(self.pods), self._pods_of_pool()]) if has_pods(self.cluster) else ()
        return tuple(sorted({*of_pods, *self._parts_known} - {*secrets_in(plain(self.environment))}))

    def _pods_of_pool(self) -> Any:
        return plain(self.training_pool.pods) if self.training_pool and self.training_pool.pods else None

    def rank_environment(self, *, fixed_size: bool) -> dict[str, str]:  # noqa: ARG002  # some engines' depends on it
        """Extra variables of every rank, from rendered fields.

        Args:
            fixed_size: whether the run never has another size.

        Raises:
            InvalidSettings: what only rendering has shown.
        """
        return dict(check_environment(self.environment))

    def shipped_files(self) -> dict[str, bytes]:
        """Return the files that are shipped to the workers, by name. Raise InvalidSettings."""
        return read_scripts(self.scripts, self._script_roots()) if self.scripts else {}

    def _script_roots(self) -> list[Path]:
        """As Airflow looks for templates; none before the task has a DAG."""
        dag = getattr(self, "_dag", None)
        if dag is None:
            return []
        further = dag.template_searchpath or ()
        return [folder_of(dag), *map(Path, [further] if isinstance(further, str) else further)]

    def remember_secrets(self) -> None:
        """Have Airflow mask what looks secret in this task's environment, in all that this process logs."""
        values = [plain(self.command), plain(self.environment), plain(self.pods), self._pods_of_pool()]
        # Before the masker learns from us: then it finds no part of a value, but the whole.
        self._parts_known = self._parts_known or frozenset(parts_known(values))
        remember_secrets(values)

    def store_credentials(self) -> StoreCredentials | None:
        """Return the checkpoint store's credentials, if a connection has them. Raise InvalidSettings."""
        if not self.checkpoint_conn_id:
            return None
        return store_credentials(self.checkpoint_uri, self.checkpoint_conn_id)

    @all_known()
    def creating_cluster(self) -> Cluster:
        """The cluster with all that it needs to create this task's run; takes defaults from its connection.

        Raises:
            InvalidSettings: what only rendering, or the connection, has shown.
        """
        check_cluster(self.cluster)
        self.pods = pods_of(self.pods)
        said, pool = location(self.cluster), PoolName.parse(self.cluster)
        name = said.cluster if said else place_of(self.cluster)
        if said is not None:
            self._take_defaults(said, of_pods=not (pool and pool.on))
        self.jupyter = jupyter_of(self.jupyter, pods=has_pods(name))
        check_joinable(self._workers(), name)
        self._check_systems(name)
        jobs = self._pool(pool, name, said) if pool else self._jobs(name, said) or self._own_pods(name)
        check_greedy(self.cluster, greedy=parse_bool("workers.greedy", self._workers().greedy))
        if is_local(name):
            self._check_this_machine()
        check_store_connection(self.checkpoint_uri, self.checkpoint_conn_id)
        cluster = cluster_called(name, jobs)
        if credentials := self.store_credentials():
            cluster.set_rank_credentials(credentials.variables)
            if credentials.expiring:
                self.log.warning(
                    "The credentials of the connection %s are temporary, and a run is not given new ones: once they "
                    "expire, it writes no checkpoints. For a longer training give the workers an identity",
                    self.checkpoint_conn_id,
                )
        return cluster

    def _take_defaults(self, said: Location, *, of_pods: bool) -> None:
        """Take from a connection what the operator says nothing of; a pool takes what its pods need."""
        if of_pods:
            self.image = self.image or self.pods.image or said.image
            if said.launcher_image and not self.pods.launcher_image:
                self.pods = replace(self.pods, launcher_image=said.launcher_image)
        if self.checkpoint_uri is None:  # The credentials are the connection's, too: they are for that store.
            self.checkpoint_uri = said.checkpoint_uri
            self.checkpoint_conn_id = self.checkpoint_conn_id or said.checkpoint_conn_id

    def _own_pods(self, name: str) -> Pods | None:
        """Pods of a run in the cluster of this name; None: it has none there."""
        if not has_pods(name):
            return None
        pods: Pods = self.pods.of_run(self._workers(), self.image)
        if not pods.image:
            problem = f"no container image is set for the pods of cluster {self.cluster!r}"
            remedy = 'Write image="registry/trainer:1", or set one in a connection of type elastic_training'
            raise InvalidSettings("image", problem, remedy)
        return pods

    def _pool(self, pool: PoolName, name: str, said: Location | None) -> PodPool | PoolSettings | None:
        """With which the pool is brought up, in the cluster of this name."""
        asked = self.training_pool
        if not pool.on:
            return asked.spec() if asked else None
        if not has_pods(name):
            problem = f"{pool.on!r} leads to {name}, where there are no pods"
            raise InvalidSettings("cluster", problem, "Name a connection that leads to Kubernetes, or pool:NAME alone")
        self._check_pods_of_pool()
        images = (said.image, said.launcher_image) if said else ()
        return asked.pod_pool(*images) if asked else PodPool(pool.name)

    def _jobs(self, name: str, said: Location | None) -> SlurmSpec | RaySpec | SparkSpec | None:
        """How the workers of a run in Slurm, Ray or Spark are had; None: it is elsewhere."""
        in_spark = SparkName.parse(name)
        if not is_jobs(name):
            return None
        if unused := ", ".join(self._only_in_pods()):
            self.log.warning("Workers are not pods in %s: %s, which is about pods, changes nothing", name, unused)
        if is_ray(name):
            python, gpus = (said.python if said else None) or "python", int(self._workers().equipped().gpus or 0)
            spec: RaySpec = (ray_of(self.ray) or Ray()).spec(python, gpus=gpus)
            return spec
        python = (said.python if said else None) or local_settings()[1]
        gpus = int(self._workers().equipped().gpus or 0)
        if in_spark:
            spark = spark_of(self.spark) or Spark()
            assert isinstance(spark, Spark)
            return spark.spec(in_spark.master, python, gpus=gpus, pyspark=said.pyspark if said else None)
        return (slurm_of(self.slurm) or Slurm()).spec(python, gpus=gpus)

    def _check_this_machine(self) -> None:
        """The cluster turned out to be this machine, and DAGs that go here and into pods say more than it can use."""
        workers = self._workers()
        check_gpus(workers, check_environment(self.environment))
        if unused := ", ".join(self._only_in_pods()):
            self.log.warning("Workers are processes of this machine: %s, which is about pods, changes nothing", unused)

    def _check_systems(self, name: str) -> None:
        """Refuse settings of a batch system that the cluster of this name is not in."""
        for system, (what, example) in _SYSTEMS.items():
            if getattr(self, system) is not None and not name.startswith(f"{system}:"):
                problem = f"it is about {what}, and with cluster={self.cluster!r} there are none"
                raise InvalidSettings(system, problem, f'Write cluster="{example}", or leave it out')

    def _only_in_pods(self) -> Iterator[str]:
        """Names of arguments that are given, and are about pods alone; templates are not looked into."""
        if self.image and not is_template(self.image):
            yield "image"
        if self.pods != Pods() and not is_template(self.pods):
            yield "pods"
        if self.hostfile:
            yield "hostfile"
        if isinstance(self.recovery, Recovery) and self.recovery.grow_memory is not None:
            yield "recovery.grow_memory"
        if not isinstance(self.workers, Workers):
            return
        if not is_template(self.workers.spot) and parse_bool("workers.spot", self.workers.spot):
            yield "workers.spot"
        if self.workers.shm and not is_template(self.workers.shm):
            yield "workers.shm"

    def dry_run(self) -> None:
        """Print what ``execute`` would create, from the fields as they are rendered by now; creates nothing.

        Raises:
            InvalidSettings: as ``execute`` would fail.
        """
        name = run_name(self.dag_id, "dry_run", self.task_id)
        self.remember_secrets()
        print(masked(run(self.creating_cluster().plan(self.spec(name)))))  # noqa: T201  # what Airflow's dry_run is for


def check_joinable(workers: Workers, cluster: str) -> None:
    """Launchers of places of other packages do not have the key that signs certificates.

    Raises:
        InvalidSettings: machines cannot join runs of this cluster, and are to; or the address is missing, or needless.
    """
    if not workers.join or is_template(workers.join):
        return
    address = workers.join_address()
    if is_jobs(cluster) or has_pods(cluster):
        if address:
            problem = f"with cluster {cluster!r}, the launcher listens on the address by which the cluster reaches it"
            raise InvalidSettings("workers.join.address", problem, "Leave it out")
    elif not is_local(cluster):
        problem = f"machines cannot join runs of cluster {cluster!r}"
        raise InvalidSettings("workers.join", problem, f"Leave it out, or train {JOINABLE}")
    elif address is not None:
        JoinSpec(address).check_address()
    workers.check_networks(pods=has_pods(cluster))


def check_gpus(workers: Workers, environment: Mapping[str, str]) -> None:
    """Whether this machine has the GPUs of a worker. A ``machine`` only gives the slots here.

    Args:
        workers: the operator's, rendered.
        environment: of the ranks; it may name the visible devices.

    Raises:
        InvalidSettings: it has fewer, so that ranks would train on its CPUs.
    """
    wanted = int(workers.gpus or 0)
    here = most_devices(pools({**environment, **os.environ}))
    if wanted > here:
        found = "no GPU that is visible" if here == 0 else f"{here} visible GPU{'' if here == 1 else 's'}"
        remedy = f"Write slots={workers.slots or wanted} alone for so many ranks on its CPUs, or name another cluster"
        raise InvalidSettings("workers.gpus", f"a worker is to have {wanted}, and this machine has {found}", remedy)
