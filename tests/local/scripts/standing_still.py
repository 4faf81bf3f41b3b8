"""Ways in which a rank keeps the others waiting though its process lives, and ways to take long that are none.

``Pace.stand`` names the way, the step after which a rank stands, and the rank. It stands once in a run. ``Pace.uneven``
has steps of uneven length, with evaluations and compilations between them that the script names.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING

from elastic_runtime import busy
from elastic_runtime.world import current_world

if TYPE_CHECKING:
    from pace import Pace

FOREVER = 3600.0
"""Seconds."""
SLOW_STORE = 30.0
"""Seconds after which a checkpoint store answers."""
EVALUATION, EVERY = 9.0, 50
"""Seconds of an evaluation, longer than the limit that a test sets, and steps from one to the next."""
COMPILATION = 8.0
"""Seconds of a compilation, before the first step of a process."""
MOST_UNEVEN = 1.5
"""Seconds that a step takes at most besides."""


def hold(pace: Pace, step: int) -> None:
    """After this step: stand, or take long, as it says."""
    if pace.uneven:
        _take_long(step)
    if pace.stand is None:
        return
    way, after, rank = pace.stand
    if way in TOGETHER:
        _torch().SIDE.enter()
    if step != after:
        return
    stood = Path(pace.folder, "at", "stood")
    mine = current_world().rank == rank and not stood.exists()
    anybody = _torch().SIDE.maximum(mine) if way in TOGETHER else mine
    if mine:
        stood.touch()
        world = current_world()
        pace.note(stood=time.monotonic(), after=step, rank=world.rank, name=world.name)
    if anybody and way in TOGETHER and mine != (way == "skip"):
        _torch().SIDE.maximum(mine)
    if mine and way in ALONE:
        ALONE[way](Path(pace.folder))


def _torch() -> ModuleType:
    """What only a script for torch can do: there may be no torch."""
    import standing_torch

    return standing_torch


TOGETHER = ("skip", "more")
"""Ranks do not call the same collectives: one leaves one out, or calls one more."""

# What one rank does alone.


def stop(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def lock(_: Path) -> None:
    held = threading.Lock()
    held.acquire()
    held.acquire()


def loop(_: Path) -> None:
    while True:
        pass


def sleep(_: Path) -> None:
    time.sleep(FOREVER)


def fifo(folder: Path) -> None:
    """Read a file that nobody writes."""
    os.mkfifo(folder / "fifo")
    (folder / "fifo").read_bytes()


def loader(_: Path) -> None:
    """A worker process of its DataLoader hangs."""
    _torch().load(lambda: time.sleep(FOREVER))


def dead_loader(_: Path) -> None:
    """A worker process of its DataLoader is killed."""
    _torch().load(lambda: os.kill(os.getpid(), signal.SIGKILL))


def debugger(_: Path) -> None:
    breakpoint()  # left in a script


def store(_: Path) -> None:
    """What writes checkpoints, in a thread of its own, gets no answer for a while."""
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            os.fsync = fsync
            time.sleep(SLOW_STORE)
        fsync(descriptor)

    os.fsync = slow


ALONE: dict[str, Callable[[Path], None]] = {
    "stop": stop,
    "loader": loader,
    "dead-loader": dead_loader,
    "lock": lock,
    "loop": loop,
    "store": store,
    "breakpoint": debugger,
    "sleep": sleep,
    "fifo": fifo,
}

# What takes long, and is no standstill.

_compiled = False


def _take_long(step: int) -> None:
    global _compiled
    world, chance = current_world(), Random(step)  # Not for secrets.
    if not _compiled:
        _compiled = True
        with busy("compilation", at_most=10 * COMPILATION):
            time.sleep(COMPILATION)
    if step and step % EVERY == 0:
        with busy("evaluation", at_most=10 * EVALUATION):
            time.sleep(EVALUATION if world.rank == 0 or step % (2 * EVERY) else 0.0)
    if chance.random() < 0.1:
        time.sleep(chance.uniform(0.0, MOST_UNEVEN) if world.rank == step % world.size else 0.0)
