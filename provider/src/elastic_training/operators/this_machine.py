"""What means nothing, or cannot be had, where workers are processes of this machine: ``cluster="local"``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from elastic_runtime.agent.devices import pools
from elastic_runtime.errors import InvalidSettings
from elastic_training.settings.pods import Pods
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import parse_bool
from elastic_training.settings.workers import Workers


def only_in_pods(image: Any, pods: Any, workers: Any, hostfile: Any) -> Iterator[str]:
    """Names of arguments that are given, and are about pods alone; templates are not looked into.

    The arguments are the operator's.
    """
    if image and not is_template(image):
        yield "image"
    if pods != Pods() and not is_template(pods):
        yield "pods"
    if hostfile:
        yield "hostfile"
    if not isinstance(workers, Workers):
        return
    if not is_template(workers.spot) and parse_bool("workers.spot", workers.spot):
        yield "workers.spot"
    if workers.shm and not is_template(workers.shm):
        yield "workers.shm"


def check_only_in_pods(image: Any, pods: Any, workers: Any, hostfile: Any) -> None:
    """For a cluster that is ``"local"`` in the DAG file. Raises InvalidSettings."""
    for name in only_in_pods(image, pods, workers, hostfile):
        raise InvalidSettings(
            name,
            'it is about pods, and with cluster="local" workers are processes of this machine',
            'Write cluster="CONNECTION", of a connection of type kubernetes or elastic_training, or leave it out',
        )


def check_gpus(workers: Workers, environment: Mapping[str, str]) -> None:
    """Whether this machine has the GPUs of a worker. A ``machine`` only gives the slots here.

    Args:
        workers: the operator's, rendered.
        environment: of the ranks; it may name the visible devices.

    Raises:
        InvalidSettings: it has fewer, so that ranks would train on its CPUs.
    """
    wanted = int(workers.gpus or 0)
    here = max(map(len, pools({**environment, **os.environ}).values()), default=0)
    if wanted > here:
        found = "no GPU that is visible" if here == 0 else f"{here} visible GPU{'' if here == 1 else 's'}"
        remedy = f"Write slots={workers.slots or wanted} alone for so many ranks on its CPUs, or name another cluster"
        raise InvalidSettings("workers.gpus", f"a worker is to have {wanted}, and this machine has {found}", remedy)
