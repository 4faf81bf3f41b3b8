"""What a user sets about the pods of a run, where the cluster runs pods.

Grouped: what both kinds of pods share stands in :class:`Pods`, what differs between the launcher's pod and the
workers' in a :class:`PodShape` each. How many workers, their GPUs, shared memory and spot capacity stand in
:class:`~elastic_training.settings.workers.Workers`, because they are about the training. Whatever else the Kubernetes
API offers goes through a pod template.

What cannot work is refused when a :class:`Pods` is made, under the full name of the field
(``pods.volumes[0].mount``); templates, once they are rendered, by :meth:`Pods.of_run`. All of it but a template keeps
the pods within Pod Security "restricted".
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
    """A Secret of the namespace, for the workers: as environment, or as files."""

    name: str
    """Of the Secret."""
    key: str | None = None
    """One key of it; None: all."""
    env: str | None = None
    """Variable that holds the value of ``key``. Without it and ``mount``: every key becomes a variable of its name."""
    mount: str | None = None
    """Folder in which each key, or only ``key``, is a file."""

    def check(self, at: str) -> None:
        """What is known, as the field ``at``. Raises InvalidSettings."""
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
    """A volume of the workers. Exactly one of the sources is given."""

    mount: str
    """Absolute path in the container."""
    claim: str | None = None
    """Name of a PersistentVolumeClaim; shared by all workers, so it has to allow that (ReadWriteMany, ReadOnlyMany)."""
    secret: str | None = None
    """Name of a Secret."""
    config_map: str | None = None
    """Name of a ConfigMap."""
    empty_dir: BoolOrTemplate = False
    """True, or its greatest size as in ``"10Gi"``: scratch space that goes with the pod."""
    raw: Mapping[str, Any] | None = None
    """Any other source, as in a pod's ``volumes``: ``{"csi": {"driver": …}}``."""
    sub_path: str | None = None
    """Folder within the volume."""
    read_only: BoolOrTemplate = False

    def settled(self) -> Volume:
        """With flags that are none but True and False, after rendering."""
        read_only = parse_bool("pods.volumes.read_only", self.read_only)
        return replace(self, empty_dir=scratch(self.empty_dir), read_only=read_only)

    def check(self, at: str) -> None:
        """What is known, as the field ``at``. Raises InvalidSettings."""
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
    """In which the launcher's pod and the workers' differ."""

    resources: Mapping[str, Mapping[str, Any]] | None = None
    """``{"requests": {"cpu": 2, "memory": "8Gi"}, "limits": {…}}``. GPUs stand in ``Workers(gpus=…)``."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] | Any = None
    """As the API writes it, or a ``V1Affinity``."""
    tolerations: Sequence[Mapping[str, Any] | Any] = ()
    """As the API writes them, or ``V1Toleration``; added to those that this package needs."""
    template: Mapping[str, Any] | str | PathLike[str] | Any = None
    """A pod to build upon: path of a YAML file, the same as a dict, or a ``V1Pod``. Settings win over it."""

    def check(self, at: str) -> None:
        """What is known, as the field ``at``. Raises InvalidSettings."""
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
    """Of each worker, from :class:`~elastic_training.settings.workers.Workers`; checked, no template any more."""

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
    """The pods of a run. Everything may be a template, also within lists and as values of mappings."""

    image: str | None = None
    """Of launcher and workers. The operator's own ``image`` goes before it."""
    launcher_image: str | None = None
    """Of the launcher alone, with the runtime of the same version; None: ``image``. Its pod can change objects of the
    namespace: name one that is not made by those who make ``image``."""
    image_pull_policy: str | None = None
    """``Always``, ``IfNotPresent`` or ``Never``; None: the cluster's default."""
    image_pull_secrets: Sequence[str] = ()
    """Names of Secrets."""
    command: Sequence[str] | None = None
    """In place of ``image``'s entrypoint; it must run its arguments (``exec "$@"``), and forward SIGTERM to them."""
    service_account: str = LAUNCHER_ACCOUNT
    """Of the launcher, with the rights that ``deploy/rbac.yaml`` lists."""
    worker_service_account: str | None = None
    """Of the workers, for clouds that tie access to storage to it; None: the namespace's default. No token of it is
    mounted."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the containers of launcher and workers, and so of every rank. Written into the manifests: nothing secret."""
    secrets: Sequence[SecretRef] = ()
    """For the workers."""
    volumes: Sequence[Volume] = ()
    """For the workers."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of all objects and pods."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the pods."""
    priority_class: str | None = None
    scheduler_name: str | None = None
    queue: str | None = None
    """Kueue's LocalQueue that the launcher's Job and each worker pod wait in; needs Kueue's integrations ``batch/job``
    and ``pod``. Every worker is admitted for itself, so training begins with ``workers.min`` of them."""
    run_as_user: IntOrTemplate | None = 1000
    """None: the cluster chooses, as OpenShift does."""
    run_as_group: IntOrTemplate | None = 1000
    fs_group: IntOrTemplate | None = 1000
    """Group of the volumes' files."""
    launcher: PodShape = field(default_factory=PodShape)
    worker: PodShape = field(default_factory=PodShape)
    hardware: Hardware = field(default_factory=Hardware)
    """Of each worker. The operator takes it from its ``workers``."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """What is known. Raises InvalidSettings."""
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
        """With what the operator itself knows. Raises InvalidSettings."""
        self.check()
        volumes = [volume.settled() for volume in self.volumes]
        return replace(self, image=image or self.image or None, volumes=volumes, hardware=Hardware.of(workers))


def pods_of(value: object) -> Pods:
    """Settings, or the same as a mapping, with mappings within. Raises InvalidSettings."""
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
    """Within a mapping; what is no mapping, whoever is given it refuses."""
    required = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    if not isinstance(value, Mapping):
        return value
    if lacking := sorted(required - value.keys()):
        raise InvalidSettings(f"{at}.{lacking[0]}", "it is missing", f"Write it, as in {example}")
    return settings_of(kind, at, value, example)


def scratch(value: Any) -> Any:
    """Rendered words for True and False as those; a size, or whatever else it is, as it is."""
    word = value.strip().lower() if isinstance(value, str) else value
    return {"true": True, "false": False, "none": False}.get(word, value) if isinstance(word, str) else value
