"""Files that a rank writes for its agent to save, on request: torch's profile, TensorBoard's events.

Nothing here changes what is trained: what goes wrong is a warning, once, and this is off from then on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from elastic_runtime.at_exit import AtExit
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.run.observe import PROFILE, TENSORBOARD, TRACES
from elastic_runtime.training.family import Family, Profiling
from elastic_runtime.world import current_world

MOST_POINTS = 1_000_000
"""Values that are written as events: some fifty megabytes."""
FLUSH = 1
"""Seconds after which events are on the disk, for the agent to see."""
_log = script_logger(__name__)


class Events:
    """Reported values as TensorBoard's event files, one for each range of ascending steps.

    A file begins with the step from which on earlier files do not count any more (TensorBoard's ``purge_step``): steps
    that were undone, by this process or by the one that was rank 0 before.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._step = 0
        self._files = self._points = 0
        self._at_exit = AtExit(self.end)

    def reported(self, values: Mapping[str, float], step: int) -> None:
        """In the background: the library has a thread and a queue."""
        self._points += len(values)
        if self._points > MOST_POINTS:
            return
        if self._writer is None or step < self._step:
            self._begin(step)
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step=step)

    def _begin(self, step: int) -> None:
        import tensorboardX

        self.end()
        self._files += 1
        suffix = f".{current_world().name or os.getpid()}.{self._files}"
        self._writer = tensorboardX.SummaryWriter(
            str(self._folder), purge_step=step, flush_secs=FLUSH, filename_suffix=suffix
        )
        self._at_exit.ask()

    def end(self) -> None:
        """Write what is queued to the disk."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Observing:
    """Observing of this process.

    Args:
        environ: what its agent has told it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        folder, asked = environ.get(TRACES), environ.get(PROFILE)
        self._asked = (Path(folder), asked) if folder and asked else None
        self._profiling: Profiling | None = None
        self._events = Events(Path(folder)) if folder and environ.get(TENSORBOARD) else None
        self.step: int | None = None
        """That this rank has committed last; None: none yet."""

    def committed(self, step: int, family: Family) -> None:
        """Record the step, on every rank."""
        self.step = step
        if self._asked:
            try:
                self._profiling = self._profiling or family.profiling(*self._asked)
                if self._profiling is None:
                    raise NotImplementedError("there is a profiler for torch alone")
                self._profiling.committed(step)
            except Exception as error:  # noqa: BLE001  # whatever a profiler raises, training goes on
                self._asked = self._profiling = None
                _log.warning("nothing is profiled any more: %s", printable(error))

    def reported(self, values: Mapping[str, float], step: int | None) -> None:
        """On rank 0; None: before there was a step."""
        if self._events:
            try:
                self._events.reported(values, step or 0)
            except Exception as error:  # noqa: BLE001  # a full disk, or the library: training goes on
                self._events = None
                _log.warning("nothing is written for TensorBoard any more: %s", printable(error))


@cache
def observing() -> Observing:
    """Return the one of this process."""
    return Observing(os.environ)
