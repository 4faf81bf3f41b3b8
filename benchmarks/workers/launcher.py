"""A launcher whose workers somebody plays: ``python -m benchmarks.workers.launcher RUN PORT``.

It prints its port; looks for another size at SIGUSR1; is ended by SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from elastic_runtime.errors import RunNotFound
from elastic_runtime.launcher.local.platform import LocalPlatform
from elastic_runtime.launcher.local.workers import LocalWorkers
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec


class Anybody(LocalWorkers):
    """Workers come by themselves, and stay."""

    @override
    def expects(self, _worker: str, /) -> bool:
        return True


class Place(LocalPlatform):
    """The run's folder, and workers that nobody starts."""

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        super().__init__(folder, spec)
        self.workers = Anybody(folder, spec)

    @override
    def open(self, port: int, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._look)
        print(port, flush=True)

    def _look(self) -> None:
        self._asked = self._folder.read_size()
        self._on_change()


async def _serve(folder: RunDir, port: int) -> None:
    spec = folder.read_spec()
    try:
        previous = folder.read_status()
    except RunNotFound:
        previous = None
    with folder.log.open("a") as log:
        launcher = Launcher(
            spec, Place(folder, spec), OutputLog(log), folder.tls, "127.0.0.1", port, previous=previous, own_image=True
        )
        running = asyncio.create_task(launcher.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_serve(RunDir(Path(sys.argv[1])), int(sys.argv[2])))
