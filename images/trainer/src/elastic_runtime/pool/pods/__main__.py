"""``python -m elastic_runtime.pool.pods keeper`` and ``… host``: the two kinds of pods of a pool."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastic_runtime.agent.devices import WorkerShares
from elastic_runtime.errors import ElasticError, InvalidSettings, RunNotFound
from elastic_runtime.net.descriptors import raise_descriptor_limit
from elastic_runtime.net.sockets import split_host_and_port
from elastic_runtime.pool.host import Host
from elastic_runtime.pool.pods import objects
from elastic_runtime.pool.pods.host_place import HostSettings, PodHostPlace
from elastic_runtime.pool.pods.keeper_place import KeeperSettings, PodsKeeperPlace
from elastic_runtime.pool.processes import start_log
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run import runobjects


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """What the container's command says."""
    parser = argparse.ArgumentParser(prog="elastic_runtime.pool.pods", description="A pod of a pool.")
    parser.add_argument("part", choices=("keeper", "host"))
    parser.add_argument("--tls", type=Path, default=Path(objects.TLS_FOLDER), help="folder of the certificates")
    parser.add_argument("--port", type=int, default=objects.KEEPER_PORT, help="of the keeper")
    parser.add_argument("--kubeconfig", type=Path, help="how the keeper reaches the API server, outside of a pod")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds from SIGTERM to the end of a host's pod")
    return parser.parse_args(arguments)


def keeper_settings(found: argparse.Namespace, environment: Mapping[str, str]) -> KeeperSettings:
    """Return the settings of a keeper. Raise InvalidSettings: a variable is missing."""
    return KeeperSettings(
        pool=_variable(environment, objects.POOL_VARIABLE),
        uid=_variable(environment, objects.POOL_UID_VARIABLE),
        root=_variable(environment, objects.ROOT_VARIABLE),
        namespace=_variable(environment, runobjects.NAMESPACE_VARIABLE),
        address=_variable(environment, runobjects.POD_ADDRESS_VARIABLE),
        port=found.port,
        tls=found.tls,
        kubeconfig=found.kubeconfig,
    )


def host_settings(found: argparse.Namespace, environment: Mapping[str, str]) -> HostSettings:
    """Return the settings of a host. Raise InvalidSettings: a variable is missing."""
    return HostSettings(
        pod=_variable(environment, runobjects.POD_NAME_VARIABLE),
        address=_variable(environment, runobjects.POD_ADDRESS_VARIABLE),
        node=environment.get(runobjects.NODE_VARIABLE, ""),
        keeper=split_host_and_port(_variable(environment, objects.KEEPER_VARIABLE)),
        tls=found.tls,
        identity=Path(environment.get(runobjects.IDENTITY_VARIABLE, runobjects.IDENTITY_TOKEN)),
        agents=Path(tempfile.mkdtemp(prefix="elastic-pool-"), "agents"),
        grace=found.grace,
    )


def _variable(environment: Mapping[str, str], name: str) -> str:
    if value := environment.get(name):
        return value
    raise InvalidSettings(name, "this environment variable is not set", "Use the pods that the pool is made of")


async def keep(settings: KeeperSettings) -> None:
    """Be the keeper. Raises ElasticError or OSError."""
    from elastic_runtime.kubernetes.connect import connect
    from elastic_runtime.pool.keeper import Keeper

    async with connect(settings.namespace, settings.kubeconfig, "elastic-training-keeper") as client:
        place = PodsKeeperPlace(client, settings)
        await place.fill()
        found = place.settings()
        if found is None:
            raise RunNotFound(f"pool {settings.pool} is not up in namespace {settings.namespace}")
        await Keeper(place, found).run()


async def stand(settings: HostSettings) -> None:
    """Be a host. Raises OSError."""
    await Host(PodHostPlace(settings), 1, WorkerShares({}, 1, 1), settings.grace).run()


def main() -> None:
    """Exit status 0 at the end; 1 when it cannot be what it is to be: the kubelet starts it again."""
    found = parse_arguments(sys.argv[1:])
    start_log(found.part)
    raise_descriptor_limit()
    try:
        if found.part == "keeper":
            asyncio.run(keep(keeper_settings(found, os.environ)))
        else:
            asyncio.run(stand(host_settings(found, os.environ)))
    except (ElasticError, OSError) as error:
        sys.exit(f"{found.part}: {printable(error, LONG)}")


if __name__ == "__main__":
    main()
