"""``python -m elastic_runtime.pool FOLDER``: the keeper of a pool on this machine, until it is taken down."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from elastic_runtime.errors import ElasticError
from elastic_runtime.pool.folder import PoolDir
from elastic_runtime.pool.keeper import Keeper
from elastic_runtime.pool.machine import MachineKeeperPlace
from elastic_runtime.pool.processes import start_log
from elastic_runtime.run.locking import take


async def keep(folder: PoolDir) -> None:
    """Keep the pool. Raises ElasticError or OSError."""
    settings = folder.settings()
    await Keeper(MachineKeeperPlace(folder, settings), settings).run()


def main() -> None:
    """Exit status 0 at the end, or if another keeper is there; 1 when the pool cannot be kept."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m elastic_runtime.pool FOLDER")
    start_log("keeper")
    folder = PoolDir(Path(sys.argv[1]).resolve())
    try:
        with folder.lock.open("a") as lock:
            if not take(lock.fileno()):
                return
            os.set_inheritable(lock.fileno(), False)
            asyncio.run(keep(folder))
    except (ElasticError, OSError) as error:
        sys.exit(f"keeper: {error}")


if __name__ == "__main__":
    main()
