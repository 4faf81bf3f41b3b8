"""Where this rank stands, for a launcher that asks because its world has stopped to commit; and what may take long.

A script says that it evaluates, loads or compiles by :func:`busy`. The rank's answer is sent by the thread that reads
the link, so a rank that waits inside a collective answers, too. One whose process is stopped, or that holds Python's
lock, does not, which is an answer as well.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pace import Pace
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import MAX_PLACE, Busy, RankLink, Standing, shared_link
from elastic_runtime.run.waits import LONGEST_BUSY
from elastic_runtime.script.frames import frame_of
from elastic_runtime.script.stacks import write_stacks
from elastic_runtime.script.tally import Counts, Stride

_BLOCKING = ("torch.distributed", "horovod", "elastic_runtime.engines")
"""Modules whose functions do nothing themselves while they wait for the others' part in a collective."""
WAITING = (*_BLOCKING, "torch.autograd", "tensorflow.python")
"""Modules in which a rank is while it waits for that."""
_COMMITTING = ("elastic_runtime.training.state",)
"""Modules in which a rank is while it commits."""
_FOREIGN = frozenset({"elastic_runtime", "horovod", "keras", "tensorflow", "torch", *sys.stdlib_module_names})
"""Packages whose lines are not the script's own. Other libraries count as the script's: they do not wait for ranks."""
_DEEPEST = 1000
"""Frames that are looked at."""
_LINES = 3
"""Lines of the script that are told: a collective may be in a function that is called from several places."""
_TOLD, _TOLD_AT_ONCE = 1.0, 20.0
"""Words about :func:`busy` that a rank sends in a second, and at once; the rest is told when the launcher asks."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a rank is in its training."""

    world: int
    """Count of the worlds that it was in."""
    thread: int
    """Identifier of the thread that trains, for Python."""
    native: int
    """The same, for the system: Python's own is wrong after a fork."""
    trains: bool
    """It has committed in this world, and is not :func:`busy`."""
    done: int
    """Global step of the newest commit; commits, if the state does not count steps."""


class _Place(NamedTuple):
    """Where a thread stands, as :class:`.Standing` has it."""

    waits: bool
    place: str
    in_commit: bool
    blocked: bool


class Ledger:
    """What this process has begun in its world, and what it is busy with.

    Args:
        link: to the agent.
        clock: monotonic seconds.
    """

    def __init__(self, link: RankLink, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._clock = link, clock
        self._world, self._thread, self._native = 0, threading.main_thread().ident, 0
        self._commits, self._last = 0, clock()
        self._step: int | None = None
        self._lock, self._tokens = threading.Lock(), itertools.count()
        self._open: dict[int, tuple[str, float]] = {}
        self._pace = Pace(_TOLD, _TOLD_AT_ONCE, clock)
        self.collectives: Callable[[], int | None] = lambda: None
        """Returns how many collectives this rank has begun in its world, if its engine counts them."""
        self.counts = Counts()
        self._stride = Stride(clock)
        link.on_asked = self._asked

    def in_world(self) -> None:
        """This thread trains in another world from now on."""
        self._thread, self._native = threading.get_ident(), threading.get_native_id()
        self._commits, self._last = 0, self._clock()
        self._world += 1
        self._stride = Stride(self._clock)

    @property
    def begun(self) -> int:
        """Commits that this process has begun in its world."""
        return self._commits

    def commits(self, step: int | None = None, kept: Callable[[], Iterable[object]] = tuple) -> None:
        """A commit has begun.

        Args:
            step: the global step. None: the state does not count steps.
            kept: returns what the state keeps.
        """
        self._commits, self._step, self._last = self._commits + 1, step, self._clock()
        if self._stride.due(self._commits):
            self._link.send(self.counts.tally(self._commits, step, kept()))
        self.counts.committed()

    def position(self) -> Position:
        """Return how far this rank is, in any thread."""
        done = self._commits if self._step is None else self._step
        trains = bool(self._commits) and not self._open
        return Position(self._world, self._thread or 0, self._native, trains, done)

    @contextlib.contextmanager
    def busy(self, what: str, at_most: float) -> Iterator[None]:
        """Have the launcher know; see :func:`busy`."""
        token = next(self._tokens)
        with self._lock:
            self._open[token] = what, self._clock() + at_most
        told = self._pace.take()
        if told:
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                del self._open[token]
            if told:
                self._tell()

    def answer(self) -> None:
        """Tell the launcher where this rank stands; in any thread."""
        self._tell()
        with frame_of(self._thread) as frame:
            where = _place(frame)
        idle = max(0.0, self._clock() - self._last)
        self._link.send(
            Standing(
                self._commits,
                _known(self.collectives),
                self._step,
                idle,
                *where,
                _known(self.counts.total),
                _known(self.counts.beside) or 0,
            )
        )

    def _asked(self, quiet: bool) -> None:
        if not quiet:
            write_stacks()
        self.answer()

    def _tell(self) -> None:
        with self._lock:
            last = max(self._open.values(), key=lambda each: each[1], default=("", 0.0))
        self._link.send(Busy(last[0], max(0.0, last[1] - self._clock()) if last[0] else 0.0))


def _known(count: Callable[[], int | None]) -> int | None:
    with contextlib.suppress(Exception):  # Of a framework whose world may be ending.
        return count()
    return None


def _place(frame: FrameType | None) -> _Place:
    lines, in_commit = list[str](), False
    blocked = _is_of(str(frame.f_globals.get("__name__", "")), _BLOCKING) if frame is not None else False
    for each, module in _frames(frame):
        if len(lines) == _LINES:
            break
        if module.partition(".")[0] not in _FOREIGN:
            lines.append(f"{Path(each.f_code.co_filename).name}:{each.f_lineno}")
        elif not lines:
            in_commit = in_commit or _is_of(module, _COMMITTING)
    return _Place(bool(waits_in(frame)), printable(" < ".join(lines), MAX_PLACE), in_commit, blocked)


def script_place() -> str:
    """Return the lines of the script from which this is called, the innermost first."""
    return _place(sys._getframe()).place


def waits_in(frame: FrameType | None) -> str:
    """Return in which of :data:`WAITING` a thread is that was called by the script; empty: in none."""
    for _, module in _frames(frame):
        if module.partition(".")[0] not in _FOREIGN:
            break
        for each in WAITING:
            if _is_of(module, (each,)):
                return each
    return ""


def _frames(frame: FrameType | None) -> Iterator[tuple[FrameType, str]]:
    """Frames of a thread with their modules, the innermost first."""
    for _ in range(_DEEPEST):
        if frame is None:
            return
        yield frame, str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back


def _is_of(module: str, packages: Sequence[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in packages)


@contextlib.contextmanager
def busy(what: str, *, at_most: timedelta | float) -> Iterator[None]:
    """Say that this rank commits nothing for a while, and that this is right: an evaluation, a load, a compilation.

    While the block runs, a run without commits does not count as standing still (``recovery.standstill``); the time
    counts from its end, or from ``at_most`` if that is earlier. Blocks may be nested and in any thread: the latest of
    their limits counts. One rank that says so is enough: the others may wait for it. Nothing is interrupted when the
    time is over. Without an agent, nothing happens.

    Args:
        what: what it does, as in ``"evaluation"``; up to 100 characters are told.
        at_most: longest time that it takes: a timedelta, or seconds. More than 0, and a day at most.

    Raises:
        InvalidSettings: one of them is something else.
    """
    seconds: object = at_most.total_seconds() if isinstance(at_most, timedelta) else at_most
    named: object = what
    if not isinstance(named, str) or not named.strip():
        raise InvalidSettings("busy.what", f"{what!r} is not a text", 'Name it, as in busy("evaluation", at_most=900)')
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_BUSY:
        problem = f"{at_most!r} is not a time of more than 0 s, and of a day at most"
        raise InvalidSettings("busy.at_most", problem, "Write a timedelta or seconds, as in at_most=900")
    with ledger().busy(printable(what, MAX_PLACE), float(seconds)):
        yield


@cache
def ledger() -> Ledger:
    """Return that of this process."""
    return Ledger(shared_link())
