"""Settings of a launcher's pod: its environment, by the names of :mod:`elastic_runtime.run.runobjects`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.pool.access import PoolAccess
from elastic_runtime.net.sockets import host_and_port, split_host_and_port
from elastic_runtime.pool.pods import objects
from elastic_runtime.run import runobjects

TERMINATION_LOG = Path("/dev/termination-log")


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """Values that a launcher's pod gets in its environment."""

    run: str
    """Name of the run."""
    uid: str
    """Uid of the run, as in its spec."""
    namespace: str
    pod: str
    """Name of this pod."""
    pod_uid: str
    address: str
    """Address of this pod, on which the launcher listens."""
    tls: Path
    """Folder with ``ca.crt``, ``launcher.crt`` and ``launcher.key``."""
    kubeconfig: Path | None = None
    """How to reach the API server; None: as this pod's service account."""
    termination_log: Path = TERMINATION_LOG
    """Where Kubernetes looks for the reason of a container's end."""
    port: int = runobjects.LAUNCHER_PORT
    own_image: bool = False
    """Whether the workers have another image than this pod."""
    pool: PoolAccess | None = None
    """To the pool that the workers are of; None: they are the run's own."""


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> LauncherSettings:
    """From command line and environment.

    Raises:
        InvalidSettings: a variable is missing.
    """
    parser = argparse.ArgumentParser(
        prog="elastic_runtime.launcher.kubernetes", description="Launcher of a run, in a pod."
    )
    parser.add_argument("--kubeconfig", type=Path, help="how to reach the API server, outside of a pod")
    parser.add_argument("--tls", type=Path, default=Path(runobjects.TLS_FOLDER), help="folder of the certificates")
    parser.add_argument("--termination-log", type=Path, default=TERMINATION_LOG, help="termination message")
    parser.add_argument("--port", type=int, default=runobjects.LAUNCHER_PORT, help="for agents; 0 for any")
    found = parser.parse_args(arguments)

    def variable(name: str) -> str:
        if value := environment.get(name):
            return value
        raise InvalidSettings(name, "this environment variable is not set", "Use the Job that the operator makes")

    def access() -> PoolAccess | None:
        if not (keeper := environment.get(objects.KEEPER_VARIABLE)):
            return None
        return PoolAccess(
            uid=variable(objects.POOL_UID_VARIABLE),
            keeper=split_host_and_port(keeper),
            tls=Path(objects.TLS_FOLDER),
            launcher=host_and_port(variable(runobjects.POD_ADDRESS_VARIABLE), found.port),
            certificates=found.tls,
            credentials=read_credentials(Path(runobjects.STORE_FOLDER)),
        )

    return LauncherSettings(
        run=variable(runobjects.RUN_VARIABLE),
        uid=variable(runobjects.RUN_UID_VARIABLE),
        namespace=variable(runobjects.NAMESPACE_VARIABLE),
        pod=variable(runobjects.POD_NAME_VARIABLE),
        pod_uid=variable(runobjects.POD_UID_VARIABLE),
        address=variable(runobjects.POD_ADDRESS_VARIABLE),
        tls=found.tls,
        kubeconfig=found.kubeconfig,
        termination_log=found.termination_log,
        port=found.port,
        own_image=bool(environment.get(runobjects.OWN_IMAGE_VARIABLE)),
        pool=access(),
    )


def read_credentials(folder: Path) -> dict[str, str]:
    """Return the variables of the checkpoint store that a Secret holds, a file each; none where there is no folder.

    Raises:
        InvalidSettings: they cannot be read.
    """
    try:
        # Kubernetes' own links there begin with two dots.
        return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith("..")}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(
            "checkpoints", f"{folder} cannot be read: {error}", "Mount it as the operator does"
        ) from error
