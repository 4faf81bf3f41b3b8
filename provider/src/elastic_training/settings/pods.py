"""User settings of a run's pods, for clusters that run pods.

:class:`Pods` has what all pods share, and a :class:`PodShape` each for the launcher's pod and the workers'. Number,
GPUs, shared memory and spot capacity of workers are in :class:`~elastic_training.settings.workers.Workers`, because
they are about the training. A pod template has everything else that the Kubernetes API offers.

Invalid values are refused when a :class:`Pods` is created, under the field's full name (``pods.volumes[0].mount``).
:meth:`Pods.of_run` checks templates once they are rendered. With all settings but a template, the pods comply with Pod
Security "restricted".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from os import PathLike
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.runobjects import TLS_FOLDER
from elastic_training import kubernetes_syntax as syntax
from elastic_training.settings import pod_rules as rules
from elastic_training.settings.machines import Machine, machine
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import BoolOrTemplate, IntOrTemplate, parse_bool, settings_of, whole_number
from elastic_training.settings.workers import Workers

LAUNCHER_ACCOUNT = "elastic-training-launcher"
"""The service account that ``deploy/rbac.yaml`` makes."""
SHM_FOLDER = "/dev/shm"  # noqa: S108  # the standard's place for shared memory, a volume of the pod's own
_SOURCES = ("claim", "secret", "config_map", "empty_dir", "raw")


@dataclass(frozen=True, slots=True)
class SecretRef(Settings):
    """Secret of the namespace that workers get as environment or as files.

    ``SecretRef("s3")`` makes each key a variable of its name. ``SecretRef("s3", key="id", env="S3_ID")`` makes one
    key that variable. ``SecretRef("gcp", mount="/var/gcp")`` makes each key a file.
    """

    name: str
    """Name of the Secret."""
    key: str | None = None
    """Key of the Secret. None: all keys."""
    env: str | None = None
    """Variable that gets the value of ``key``. Without it and ``mount``, every key becomes a variable of its name."""
    mount: str | None = None
    """Folder in which each key, or only ``key``, is a file."""

    def check(self, at: str) -> None:
        """Check all known values, as the field ``at``. Raise InvalidSettings."""
        rules.known(f"{at}.name", self.name, syntax.object_name)
        rules.known(f"{at}.key", self.key, syntax.data_key)
        rules.known(f"{at}.env", self.env, rules.free_variable)
        rules.known(f"{at}.mount", self.mount, syntax.absolute_path)
        if self.env and self.mount:
            raise InvalidSettings(at, "both env and mount are given", "Write two SecretRefs, one for each")
        if bool(self.key) != bool(self.env) and not self.mount:
            raise InvalidSettings(at, "of key and env only one is given", "Write both, or neither for all keys")


@dataclass(frozen=True, slots=True)
class Volume(Settings):
    """Volume of the workers, with one source: ``claim``, ``secret``, ``config_map``, ``empty_dir`` or ``raw``."""

    mount: str
    """Absolute path in the container."""
    claim: str | None = None
    """Name of a PersistentVolumeClaim. All workers share it, so it must be ReadWriteMany or ReadOnlyMany."""
    secret: str | None = None
    """Name of a Secret."""
    config_map: str | None = None
    """Name of a ConfigMap."""
    empty_dir: BoolOrTemplate = False
    """Scratch space that is deleted with the pod: True, or a limit such as ``"10Gi"``."""
    raw: Mapping[str, Any] | None = None
    """Any other source that Pod Security "restricted" admits, as in a pod's ``volumes``: ``{"csi": {"driver": …}}``."""
    sub_path: str | None = None
    """Folder within the volume. Works with each source, as ``read_only`` does."""
    read_only: BoolOrTemplate = False

    def settled(self) -> Volume:
        """Return the volume with flags that are only True or False, after rendering."""
        read_only = parse_bool("pods.volumes.read_only", self.read_only)
        return replace(self, empty_dir=scratch(self.empty_dir), read_only=read_only)

    def check(self, at: str) -> None:
        """Check all known values, as the field ``at``. Raise InvalidSettings."""
        rules.known(f"{at}.mount", self.mount, syntax.absolute_path)
        given = [name for name in _SOURCES if scratch(getattr(self, name))]
        if len(given) != 1:
            problem = f"{' and '.join(given)} are given" if given else "it has no source"
            raise InvalidSettings(at, problem, f"Write one of {', '.join(_SOURCES)}")
        for name in ("claim", "secret", "config_map"):
            rules.known(f"{at}.{name}", getattr(self, name), syntax.object_name)
        if not isinstance(scratch(self.empty_dir), bool):
            rules.known(f"{at}.empty_dir", self.empty_dir, syntax.quantity)
        rules.known(f"{at}.read_only", self.read_only, parse_bool)
        rules.known(f"{at}.raw", self.raw, rules.volume_source)
        rules.known(f"{at}.sub_path", self.sub_path, rules.relative_path)


@dataclass(frozen=True, slots=True)
class PodShape(Settings):
    """Settings that differ between the launcher's pod and the workers' pods."""

    resources: Mapping[str, Mapping[str, Any]] | None = None
    """``{"requests": {"cpu": 2, "memory": "8Gi"}, "limits": {…}}``. GPUs are set in ``Workers(gpus=…)``.

    Default of the launcher: requests of 250m CPU and 256Mi, a limit of 1Gi. Workers have no default.
    """
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the pods' nodes must have."""
    affinity: Mapping[str, Any] | Any = None
    """Affinity as the API writes it, or the Kubernetes client's ``V1Affinity``."""
    tolerations: Sequence[Mapping[str, Any] | Any] = ()
    """Tolerations as the API writes them, or ``V1Toleration``. They are added to those that this package needs."""
    template: Mapping[str, Any] | str | PathLike[str] | Any = None
    """Pod to build upon: the path of a YAML file, a dict, or a ``V1Pod``. Settings win over it."""

    def check(self, at: str) -> None:
        """Check all known values, as the field ``at``. Raise InvalidSettings."""
        rules.known(f"{at}.resources", self.resources, rules.resources)
        for key, value in rules.mapping(f"{at}.node_selector", self.node_selector, '{"pool": "gpu"}').items():
            syntax.label_key(f"{at}.node_selector", key)
            rules.known(f"{at}.node_selector[{key!r}]", value, syntax.label_value)
        example = '[{"key": "dedicated", "operator": "Exists"}]'
        tolerations = rules.sequence(f"{at}.tolerations", self.tolerations, object, example)
        for name, value, rule in (
            ("affinity", self.affinity, rules.affinity),
            ("template", self.template or None, rules.template),
            *((f"tolerations[{index}]", each, rules.toleration) for index, each in enumerate(tolerations)),
        ):
            if not rules.is_model(value):
                rules.known(f"{at}.{name}", value, rule)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware of each worker, from :class:`~elastic_training.settings.workers.Workers`: checked, without templates."""

    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    shm: str | None = None
    spot: bool = False
    machine: Machine | None = None

    @classmethod
    def of(cls, workers: Workers) -> Hardware:
        """Return the hardware of these workers. Raise InvalidSettings."""
        found, workers = machine(workers.machine) if workers.machine else None, workers.equipped()
        return cls(
            machine=found,
            gpus=whole_number("workers.gpus", workers.gpus, least=0),
            gpu_resource=syntax.extended_resource("workers.gpu_resource", workers.gpu_resource),
            shm=syntax.quantity("workers.shm", workers.shm) if workers.shm else None,
            spot=parse_bool("workers.spot", workers.spot),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods(Settings):
    """Settings of a run's pods. Every field may be a template, also within lists and as values of mappings."""

    image: str | None = None
    """Image of launcher and workers, if the operator has no ``image``."""
    launcher_image: str | None = None
    """Image of the launcher only, with the runtime of the same version. None: ``image``.

    The launcher's pod can change objects of the namespace, so use an image that the authors of ``image`` cannot change.
    """
    image_pull_policy: str | None = None
    """``Always``, ``IfNotPresent`` or ``Never``; None: the cluster's default."""
    image_pull_secrets: Sequence[str] = ()
    """Names of Secrets with the registry's credentials."""
    command: Sequence[str] | None = None
    """Command that replaces the entrypoint of ``image``. A ``launcher_image`` keeps its own.

    It must run its arguments (``exec "$@"``) and forward SIGTERM to them.
    """
    service_account: str = LAUNCHER_ACCOUNT
    """Service account of the launcher, with the rights that ``deploy/rbac.yaml`` lists."""
    worker_service_account: str | None = None
    """Service account of the workers, for clouds that tie access to storage to it. None: the namespace's default.

    No token for the API server is mounted.
    """
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of launcher and workers, and so of every rank. They are visible in plain text: use no secrets.

    The operator's ``environment`` is for ranks only, on every kind of cluster.
    """
    secrets: Sequence[SecretRef] = ()
    """Secrets that the workers get."""
    volumes: Sequence[Volume] = ()
    """Volumes that the workers mount."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of all objects and pods, beside those of the task (``dag_id``, ``task_id`` …)."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the pods."""
    priority_class: str | None = None
    """PriorityClass of all pods. None: the cluster's default."""
    scheduler_name: str | None = None
    """Scheduler of all pods. None: the cluster's default."""
    queue: str | None = None
    """Kueue's LocalQueue in which the launcher's Job and each worker pod wait.

    It needs Kueue's integrations ``batch/job`` and ``pod``. Each worker is admitted separately, so training begins with
    ``workers.min`` of them.
    """
    run_as_user: IntOrTemplate | None = 1000
    """User id of the containers. None: the cluster chooses, as OpenShift does."""
    run_as_group: IntOrTemplate | None = 1000
    """Group id of the containers. None: the cluster chooses."""
    fs_group: IntOrTemplate | None = 1000
    """Group of the volumes' files. None: the cluster chooses. Without a group, only root can read secret files."""
    launcher: PodShape = field(default_factory=PodShape)
    """Settings of the launcher's pod only."""
    worker: PodShape = field(default_factory=PodShape)
    """Settings of the workers' pods only."""
    hardware: Hardware = field(default_factory=Hardware)
    """Hardware of each worker. The operator sets it from its ``workers``."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check all known values. Raise InvalidSettings."""
        self._check_image()
        self._check_names()
        for name, least in (("run_as_user", 1), ("run_as_group", 0), ("fs_group", 0)):
            rules.known(f"pods.{name}", getattr(self, name), whole_number, least=least)
        for name, kind in (("secrets", SecretRef), ("volumes", Volume)):
            given = rules.sequence(f"pods.{name}", getattr(self, name), kind, f"[{kind.__name__}(...)]")
            for index, each in enumerate(given):
                each.check(f"pods.{name}[{index}]")
        for name in ("launcher", "worker"):
            if not isinstance(shape := getattr(self, name), PodShape):
                raise InvalidSettings(f"pods.{name}", f"{shape!r} is not a PodShape", "Write PodShape(resources={...})")
            shape.check(f"pods.{name}")
        self._check_mounts()
        self._check_gpus()

    def _check_image(self) -> None:
        rules.known("pods.image", self.image or None, syntax.image)
        rules.known("pods.launcher_image", self.launcher_image or None, syntax.image)
        policies = ("Always", "IfNotPresent", "Never")
        rules.known("pods.image_pull_policy", self.image_pull_policy or None, rules.one_of, choices=policies)
        pull_secrets = rules.sequence("pods.image_pull_secrets", self.image_pull_secrets, str, '["registry"]')
        for index, name in enumerate(pull_secrets):
            rules.known(f"pods.image_pull_secrets[{index}]", name, syntax.object_name)
        if self.command is not None:
            rules.sequence("pods.command", self.command, str, '["tini", "--"]')

    def _check_names(self) -> None:
        for name in ("service_account", "worker_service_account", "priority_class", "scheduler_name", "queue"):
            rules.known(f"pods.{name}", getattr(self, name) or None, syntax.object_name)
        rules.known("pods.queue", self.queue or None, syntax.label_value)
        for name, value in rules.mapping("pods.env", self.env, '{"NAME": "value"}').items():
            rules.free_variable("pods.env", name)
            rules.text(f"pods.env[{name!r}]", value)
        for key, value in rules.mapping("pods.labels", self.labels, '{"team": "vision"}').items():
            rules.free_key("pods.labels", key)
            rules.known(f"pods.labels[{key!r}]", value, syntax.label_value)
        for key, value in rules.mapping("pods.annotations", self.annotations, '{"example.com/note": "text"}').items():
            rules.free_key("pods.annotations", key)
            rules.string(f"pods.annotations[{key!r}]", value)

    def _check_mounts(self) -> None:
        taken = {TLS_FOLDER: "this package's certificates"}
        if self.hardware.shm:
            taken[SHM_FOLDER] = "workers.shm"
        for name in ("secrets", "volumes"):
            given = getattr(self, name)
            for index, each in enumerate(() if is_template(given) else given):
                mount = "" if is_template(each.mount) else each.mount or ""
                place, at = mount.rstrip("/"), f"pods.{name}[{index}].mount"
                if place in taken:
                    raise InvalidSettings(at, f"{place} is the place of {taken[place]}", "Write another path")
                if place:
                    taken[place] = at

    def _check_gpus(self) -> None:
        resource = self.hardware.gpu_resource
        resources = {} if is_template(self.worker.resources) else self.worker.resources or {}
        for side, amounts in resources.items():
            if self.hardware.gpus and resource in amounts:
                raise InvalidSettings(
                    f"pods.worker.resources.{side}",
                    f"{resource} stands here and in workers.gpus",
                    "Write it in workers.gpus alone",
                )

    @all_known()
    def of_run(self, workers: Workers, image: str | None = None) -> Pods:
        """Return the settings with the operator's own workers and image. Raise InvalidSettings."""
        self.check()
        volumes = [volume.settled() for volume in self.volumes]
        return replace(self, image=image or self.image or None, volumes=volumes, hardware=Hardware.of(workers))


def pods_of(value: object) -> Pods:
    """Return pod settings, from an object or nested mappings. Raise InvalidSettings."""
    example = "Pods(volumes=[...])"
    if isinstance(value, Mapping):
        value = {**value}
        for name, kind, of_one in (("secrets", SecretRef, 'SecretRef("name")'), ("volumes", Volume, 'Volume("/data")')):
            given = value.get(name)
            if isinstance(given, list | tuple):
                value[name] = [_settings_in(kind, f"pods.{name}[{at}]", each, of_one) for at, each in enumerate(given)]
        for name in ("launcher", "worker"):
            if name in value:
                value[name] = _settings_in(PodShape, f"pods.{name}", value[name], "PodShape(resources={...})")
    made = settings_of(Pods, "pods", value, example)
    if made.hardware != Hardware():
        raise InvalidSettings("pods.hardware", "it follows from workers", "Write Workers(gpus=..., shm=..., spot=...)")
    return made


def _settings_in(kind: type[Any], at: str, value: object, example: str) -> Any:
    """Return the settings that a nested mapping describes. Any other value is returned for a later check."""
    required = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    if not isinstance(value, Mapping):
        return value
    if lacking := sorted(required - value.keys()):
        raise InvalidSettings(f"{at}.{lacking[0]}", "it is missing", f"Write it, as in {example}")
    return settings_of(kind, at, value, example)


def scratch(value: Any) -> Any:
    """Return True or False for their rendered words, and any other value unchanged."""
    word = value.strip().lower() if isinstance(value, str) else value
    return {"true": True, "false": False, "none": False}.get(word, value) if isinstance(word, str) else value
