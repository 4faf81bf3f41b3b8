"""Kubernetes' meeting place: the objects of a run, how they are named, and what they carry.

The counterpart of :mod:`elastic_runtime.run.rundir`. Airflow's side and the launcher share nothing else; both sides
import this module, neither imports the other. No Kubernetes client in here: names and keys only.

==============  ====================  ==========================  ==================================================
kind            name                  written by                  meaning
==============  ====================  ==========================  ==================================================
ConfigMap       ``RUN``               creator                     the **root**: owns all below; data ``spec.json``;
                                                                  the annotations below say who owns and who waits
ConfigMap       ``RUN-status``        creator (empty), launcher   data ``status.json``; annotations TERM, HEADLINE
Secret          ``RUN-tls``           creator, once               the run's certificates, and for the launcher the
                                                                  files that came with the run, and the authority's
                                                                  key if machines may join by hand
Secret          ``RUN-store``         creator, once, where        credentials of the checkpoint store, from an Airflow
                                      they were given             connection: environment of the workers
Service         ``RUN-launcher``      creator, once               the address that agents dial, LAUNCHER_PORT
Job             ``RUN-launcher``      creator, once               one launcher pod at a time, replaced when lost
ReplicaSet      ``RUN-worker``        creator; its ``scale``:     as many worker pods as wanted: ``kubectl scale``,
                                      anybody                     HPA and the sensor all use the same door
NetworkPolicy   ``RUN``               creator, once               only pods of the run talk to pods of the run
NetworkPolicy   ``RUN-join``          creator, once, where        machines of these networks talk to launcher and
                                      machines may join           workers
Service and     ``RUN-jupyter``       creator, once, where        Jupyter beside the workers, for whoever has its token;
ReplicaSet                            it was asked for            the launcher ends it with the run
PodDisruption-  ``RUN-worker``        creator, once, where        drains take one worker at a time
Budget                                policy/v1 is served
==============  ====================  ==========================  ==================================================

The root is created first, and is complete when it carries COMPLETE: a root without it, and not young, is one whose
creator has died half way. Deleting the root, with its uid as precondition, deletes all (ownerReferences).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from elastic_runtime.marks import SPARSE

PREFIX = "elastic-training"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""On every object, with the value :data:`PREFIX`: what a watch of all runs selects."""
RUN_LABEL = f"{PREFIX}/run"
"""On every object and pod: the run's name."""
UID_LABEL = f"{PREFIX}/uid"
"""On every object and pod: the uid of the :class:`~elastic_runtime.run.spec.RunSpec`, which tells incarnations
apart."""
PART_LABEL = f"{PREFIX}/part"
"""On every object and pod: a :class:`Part`."""
DEPLOYMENT_LABEL = f"{PREFIX}/deployment"
"""On every object and pod, where it is known: which deployment of Airflow has created the run."""

# Annotations of the root. The launcher reads LEASE, WATCHED, CANCEL, SIZE, STACKS, REQUESTS and JOIN_TOKENS.
OWNER = f"{PREFIX}/owner"
"""Opaque text: the try of the task that the run works for."""
PODS = f"{PREFIX}/pods"
"""Opaque text that is the same for the same settings of the pods."""
LOG_LEASE = f"{PREFIX}/log-lease"
"""JSON: who streams the log, and how far it has come."""
LEASE = f"{PREFIX}/lease"
"""RFC 3339, renewed while somebody waits. The launcher measures the time since it last saw it change, by its own
clock: two machines' clocks need not agree."""
WATCHED = f"{PREFIX}/watched"
"""Present once somebody has begun to watch the run, until somebody else claims it."""
CANCEL = f"{PREFIX}/cancel"
"""Present once somebody asked for the end; holds the reason."""
SIZE = f"{PREFIX}/size"
"""Workers that are asked for, of a run whose workers are a pool's: it has no worker set that could say so."""
STACKS = f"{PREFIX}/stacks"
"""Another text whenever somebody has asked where the ranks stand."""
COLLECTED = f"{PREFIX}/collected"
"""Present once the result has been taken."""
REQUESTS = f"{PREFIX}/requests"
"""JSON list: the wishes for a size, by name, with the size that each came to; the newest :data:`MAX_REQUESTS`."""
JOIN_TOKENS = f"{PREFIX}/join-tokens"
"""JSON of :class:`~elastic_runtime.run.join.OfferedTokens`: digests of those with which machines may join."""
COMPLETE = f"{PREFIX}/complete"
"""Present once every object of the run was created."""
MAX_REQUESTS = 100
_DIGITS = 10
"""That no size has."""

TERM = f"{PREFIX}/term"
"""Annotation of the status: JSON of a :class:`Term`, the fence between two launchers of one run."""
HEADLINE = f"{PREFIX}/headline"
"""Annotation of the status: JSON of its :class:`~elastic_runtime.run.headline.Headline`."""

SPEC_KEY = "spec.json"
STATUS_KEY = "status.json"
SCRIPTS_KEY = "scripts"
"""Key of the Secret, and so a file beside the launcher's certificates, of which the root's spec has a slip. Not in
the root, which is sent to every watcher whenever one of its annotations changes."""

LAUNCHER_PORT = 7077
"""At which the launcher listens for agents, on its pod's address."""
TLS_FOLDER = "/run/elastic-training/tls"
"""Where the pods find their part of the certificates."""
STORE_FOLDER = "/run/elastic-training/store"
"""Where the launcher finds the credentials of the checkpoint store, a file each, if its workers are a pool's."""
PROMETHEUS_FOLDER = "/run/elastic-training/prometheus"
PROMETHEUS_TOKEN = f"{PROMETHEUS_FOLDER}/token"
"""File with the token that a scraper of the launcher has to show."""
JUPYTER_FOLDER = "/run/elastic-training/jupyter"
JUPYTER_TOKEN = f"{JUPYTER_FOLDER}/token"
"""File with the token that whoever uses the run's Jupyter has to show."""
IDENTITY_VOLUME = f"{PREFIX}-identity"
"""Volume of a worker's pod with the service account's token, bound to this pod and for the run's launcher."""
IDENTITY_FOLDER = "/run/elastic-training/identity"
IDENTITY_TOKEN = f"{IDENTITY_FOLDER}/token"
"""File with that token, which the kubelet renews."""
LAUNCHER_COMMAND = ("python", "-m", "elastic_runtime.launcher.kubernetes")
AGENT_COMMAND = ("python", "-m", "elastic_runtime.agent")
JUPYTER_COMMAND = ("python", "-m", "elastic_runtime.launcher.notebook")
LAUNCHER_CONTAINER = "launcher"
WORKER_CONTAINER = "worker"
JUPYTER_CONTAINER = "jupyter"

IDENTITY_VARIABLE = "ELASTIC_TRAINING_IDENTITY"
"""Environment of the worker's container: where :data:`IDENTITY_TOKEN` is. Agents that do not know it ignore it."""

# Environment of the launcher's container.
RUN_VARIABLE = "ELASTIC_TRAINING_RUN"
RUN_UID_VARIABLE = "ELASTIC_TRAINING_RUN_UID"
NAMESPACE_VARIABLE = "ELASTIC_TRAINING_NAMESPACE"
"""By the downward API; so are the next three."""
POD_NAME_VARIABLE = "ELASTIC_TRAINING_POD_NAME"
POD_UID_VARIABLE = "ELASTIC_TRAINING_POD_UID"
POD_ADDRESS_VARIABLE = "ELASTIC_TRAINING_POD_ADDRESS"
NODE_VARIABLE = "ELASTIC_TRAINING_NODE"
"""Environment of the worker's container, by the downward API, too."""
OWN_IMAGE_VARIABLE = "ELASTIC_TRAINING_OWN_IMAGE"
"""Set where the launcher has another image than the workers."""

COULD_NOT_RUN = 2
"""Exit code of a launcher that could not run the run at all: trying again is of no use. Its last words are the
container's termination message."""
REPLACED = 3
"""Exit code of a launcher that has been replaced, or whose pod is being taken: another one goes on."""


class Part(StrEnum):
    """Part of an object in its run."""

    ROOT = "root"
    STATUS = "status"
    TLS = "tls"
    STORE = "store"
    LAUNCHER = "launcher"
    WORKER = "worker"
    NETWORK = "network"
    MACHINES = "machines"
    """What lets machines in that join by hand."""
    JUPYTER = "jupyter"


@dataclass(frozen=True, slots=True)
class Term:
    """One launcher's time in leadership."""

    number: int
    """Counts the launchers of a run, from 1."""
    holder: str
    """Uid of the launcher's pod."""
    fence: int
    """Its token at the checkpoint store: larger than that of every launcher before it."""
    since: datetime
    address: str = field(default="", metadata=SPARSE)
    """Of its pod, where machines may join by hand."""
    pin: str = field(default="", metadata=SPARSE)
    """SHA-256 of its certificate, hexadecimal, by which they recognize it."""


class ObjectNames:
    """Names of a run's objects.

    Args:
        run: the run's own name, as :func:`elastic_training.identity.naming.run_name` makes it.
    """

    def __init__(self, run: str) -> None:
        self.root = run
        """Name of the root ConfigMap."""
        self.status = f"{run}-status"
        """Name of the status ConfigMap."""
        self.tls = f"{run}-tls"
        """Name of the Secret with certificates."""
        self.store = f"{run}-store"
        """Name of the Secret with credentials."""
        self.launcher = f"{run}-launcher"
        """Name of the launcher's Job and Service."""
        self.worker = f"{run}-worker"
        """Name of the workers' ReplicaSet and PodDisruptionBudget."""
        self.jupyter = f"{run}-jupyter"
        """Name of Jupyter's Service and ReplicaSet."""
        self.network = run
        """Name of the NetworkPolicy."""
        self.machines = f"{run}-join"
        """Name of the NetworkPolicy for machines that join by hand."""


def size_of(annotations: Mapping[str, str], first: int) -> int | str:
    """Return the workers that are asked for, as a root says: :data:`SIZE`; the text that stands there, if it is none.

    Args:
        annotations: of the root.
        first: workers until somebody asks for another number.
    """
    text = annotations.get(SIZE, str(first))
    return int(text) if text.isdecimal() and len(text) < _DIGITS else text


def audience(run: str, uid: str) -> str:
    """For whom the tokens of a run's worker pods are: this incarnation of the run, and nobody else."""
    return f"{PREFIX}/{run}/{uid}"


def labels(run: str, uid: str, part: Part) -> dict[str, str]:
    """Return the labels of an object or pod of a run."""
    return {MANAGED_BY_LABEL: PREFIX, RUN_LABEL: run, UID_LABEL: uid, PART_LABEL: part.value}


def selector(*, run: str | None = None, uid: str | None = None, part: Part | None = None) -> str:
    """A label selector for objects of this package, narrowed by what is given."""
    wanted = {MANAGED_BY_LABEL: PREFIX, RUN_LABEL: run, UID_LABEL: uid, PART_LABEL: part.value if part else None}
    return ",".join(f"{key}={value}" for key, value in wanted.items() if value is not None)
