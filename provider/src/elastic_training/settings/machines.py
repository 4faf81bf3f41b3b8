"""Machine types of clouds: one word for what a worker's pod needs to come to such a machine and to have all of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import printable
from elastic_training import kubernetes_syntax as syntax
from elastic_training.airflow.sdk import conf
from elastic_training.identity.naming import similar

SHIPPED = Path(__file__).resolve().parent / "machines.toml"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
"""Label of every node in a cloud (https://kubernetes.io/docs/reference/labels-annotations-taints/)."""
LARGEST_FILE = 1024 * 1024
"""Bytes."""
MOST_GPUS = 64
_SECTION, _OPTION = "elastic_training", "machines"
_FIELDS = ("gpus", "gpu", "memory", "gpu_resource", "labels", "tolerations")


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine type of a cloud, with the hardware and scheduling rules of a worker that fills it."""

    name: str
    cloud: str
    gpus: int = 0
    memory: int | None = None
    """GiB; None: not known, and ``/dev/shm`` stays as it is."""
    gpu_resource: str = "nvidia.com/gpu"
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of its nodes, beside the instance type."""
    tolerations: tuple[str, ...] = ()
    """Keys of taints that keep others off such nodes, beside ``gpu_resource``."""

    @property
    def shm(self) -> str | None:
        """Size of ``/dev/shm``: a quarter of the memory, which data loaders and NCCL do not fill."""
        return f"{max(1, self.memory // 4)}Gi" if self.memory else None

    @property
    def selector(self) -> dict[str, str]:
        """Labels that a node has to have."""
        return {INSTANCE_TYPE: self.name, **dict(self.labels)}


def machine(name: object) -> Machine:
    """The type of that name.

    Raises:
        InvalidSettings: there is none, in what ships and in the deployment's own file; or that cannot be read.
    """
    known = catalogue()
    if found := known.get(str(name)):
        return found
    problem = f"{printable(name, 80)!r} is not a known machine type"
    remedy = f"Add another one to [{_SECTION}] {_OPTION}. {similar(str(name), known)}"
    raise InvalidSettings("workers.machine", problem, remedy)


def catalogue() -> Mapping[str, Machine]:
    """All known types by name, the deployment's own before those that ship. Raises InvalidSettings."""
    own = str(conf.get(_SECTION, _OPTION, fallback="") or "").strip()
    return {**_read(SHIPPED, 0), **(_read(Path(own), _changed(Path(own))) if own else {})}


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns if path.is_file() else 0
    except OSError:
        return 0


@lru_cache(maxsize=4)
def _read(path: Path, _changed: int) -> Mapping[str, Machine]:
    try:
        if not path.is_file():  # A pipe would be waited for.
            raise ValueError("the file does not exist")
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
        if len(raw) > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE} bytes")
        clouds = tomllib.loads(raw.decode())
        tables = [(cloud, table) for cloud, table in clouds.items()]
        return {name: _machine(cloud, name, entry) for cloud, table in tables for name, entry in _table(table).items()}
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{printable(path)}: {printable(error)}"
        raise InvalidSettings(
            f"[{_SECTION}] {_OPTION}", problem, 'Write tables of types, as in [aws] "g5.xlarge" = { gpus = 1 }'
        ) from None


def _machine(cloud: str, name: str, entry: object) -> Machine:
    given = _table(entry)
    where = f"workers.machine {printable(name, 80)}"
    if wrong := sorted(set(given) - set(_FIELDS)):
        raise ValueError(f"{printable(name, 80)} has {printable(wrong[0], 80)!r}; known are {', '.join(_FIELDS)}")
    gpus, memory = given.get("gpus", 0), given.get("memory")
    if type(gpus) is not int or not 0 <= gpus <= MOST_GPUS:
        raise ValueError(f"{printable(name, 80)}: gpus is not a whole number from 0 to {MOST_GPUS}")
    if memory is not None and (type(memory) is not int or not 0 < memory < 1 << 20):
        raise ValueError(f"{printable(name, 80)}: memory is not a whole number of GiB")
    tolerations = given.get("tolerations", [])
    if not isinstance(tolerations, list):
        raise ValueError(f"{printable(name, 80)}: tolerations is not a list of keys")
    labels = _table(given.get("labels", {}))
    return Machine(
        name=syntax.label_value(where, name),
        cloud=cloud,
        gpus=gpus,
        memory=memory,
        gpu_resource=syntax.extended_resource(where, given.get("gpu_resource", "nvidia.com/gpu")),
        labels=tuple((syntax.label_key(where, key), syntax.label_value(where, value)) for key, value in labels.items()),
        tolerations=tuple(syntax.label_key(where, key) for key in tolerations),
    )


def _table(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{printable(value, 80)!r} is not a table")
    return value
