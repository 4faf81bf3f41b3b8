"""Counts the steps of a script. While the file ``hold`` exists, every rank waits after ``HELD_AFTER`` of them.

The wait ends, too, if a signal comes for which the script has a handler.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

_PLACE = {
    "WORLD_SIZE": ("HOROVOD_SIZE", "1"),
    "RANK": ("HOROVOD_RANK", "0"),
    "TORCHELASTIC_RESTART_COUNT": ("ELASTIC_RUNTIME_RESTARTS", "0"),
}
"""torchrun's variable, Horovod's, and the value for a script that is alone."""
_steps = 0
_signals: list[int] = []
"""A descriptor that can be read once a signal has come, for which the script has a handler."""


def count_and_hold() -> None:
    """Note the step, then wait while the test wants it."""
    global _steps
    _steps += 1
    folder = Path(os.environ["STEERED"])
    size, rank, restarts = (os.environ.get(name) or os.environ.get(*others) for name, others in _PLACE.items())
    with (folder / "steps").open("a") as file:
        file.write(f"{os.getpid()} {size} {rank} {_steps} {restarts}\n")
    if not _signals:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        _signals.append(reading)
    while _steps >= int(os.environ["HELD_AFTER"]) and (folder / "hold").exists():
        if select.select(_signals, (), (), 0.02)[0]:
            break
