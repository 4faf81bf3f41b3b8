"""A launcher that writes its status into a run's folder and has workers that somebody plays; ended by SIGTERM.

The curves of a launcher before it fill their bound, so that the status is as large as it gets with 16 workers.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from benchmarks.workers.launcher import Anybody
from elastic_runtime.clock import utc_now
from elastic_runtime.launcher.local.platform import LocalPlatform
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.record.hardware import MAX_WORKERS, HardwareRecord
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.net import certificates
from elastic_runtime.protocol.wire import Heartbeat
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.run.status_figures import GpuFigures

GPUS = tuple(GpuFigures(index, "NVIDIA H100 80GB HBM3", 97.0, 70 * 2**30, 80 * 2**30) for index in range(8))
BEAT = Heartbeat(799.9, 7 * 10**10, 123456789.0, 987654321.0, GPUS)
"""Of a worker with eight GPUs."""


class Place(LocalPlatform):
    """The folder's; workers come by themselves."""

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        super().__init__(folder, spec)
        self.workers = Anybody(folder, spec)

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        """Tell the port."""
        self._on_change = on_change
        print(port, flush=True)


def _previous(folder: RunDir) -> Status:
    """With as many workers that are gone as may have curves, each full."""
    record, begin = HardwareRecord(None), utc_now() - timedelta(hours=1)
    names = [f"gone-{number}" for number in range(MAX_WORKERS)]
    for second in range(0, 3600, 30):
        for name in names:
            record.heard(name, BEAT, begin + timedelta(seconds=second))
    spec = folder.read_spec()
    return Status(spec.name, spec.uid, Phase.RUNNING, "", utc_now(), started=begin, hardware=record.told(names))


async def _serve(folder: RunDir) -> None:
    spec = folder.read_spec()
    certificates.create(folder.tls)
    with folder.log.open("w") as log:
        place = Place(folder, spec)
        launcher = Launcher(spec, place, OutputLog(log), folder.tls, "127.0.0.1", previous=_previous(folder))
        running = asyncio.create_task(launcher.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_serve(RunDir(Path(sys.argv[1]))))
