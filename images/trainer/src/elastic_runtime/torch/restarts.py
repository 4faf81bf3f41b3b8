"""For scripts that are restarted at each change of the workers: asked to write a checkpoint and end, and where it is.

With ``restart=Restart(...)`` of an operator, every rank's process gets a signal, at whatever step it is; what
they do then has to be agreed by all, or a collective waits for a rank that has ended. All of it for their frameworks do
``elastic_runtime.torch.accelerate``, ``….lightning`` and ``….transformers``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist

from elastic_runtime.errors import InvalidSettings, StatesDiffer
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import RESTART_SIGNAL
from elastic_runtime.torch import whole
from elastic_runtime.world import World, current_world

KEPT = 2
"""Checkpoints that stay."""
_NAME = re.compile(r"step-(\d{1,18})(\.[a-z]+)?")
_PART = re.compile(r"part-\d{1,18}(\.[a-z]+)?")
_received: set[int] = set()
"""Signals of requests that this process has received."""
_log = script_logger(__name__)


class RestartRequest:
    """Whether the ranks of this world are asked to write a checkpoint and end. Made in the main thread.

    Args:
        signal_name: that asks; None: what the operator's ``Restart`` says, and SIGTERM elsewhere.
        every: ask the others only at each so many calls of :meth:`agreed`, at least 1.

    Raises:
        InvalidSettings: there is no such signal, or ``every`` is less than 1.
    """

    def __init__(self, signal_name: str | None = None, every: int = 1) -> None:
        name = signal_name or os.environ.get(RESTART_SIGNAL, "SIGTERM")
        if name not in signal.Signals.__members__:
            raise InvalidSettings(
                "RestartRequest.signal_name", f"{name!r} is not a signal", "Write one such as SIGUSR1"
            )
        if every < 1:
            raise InvalidSettings("RestartRequest.every", f"{every} is less than 1", "Write 1 or more")
        self._every, self._calls, self._warned = every, 0, False
        self._signal = signal.Signals[name]
        _received.discard(self._signal)
        self.listen()

    def listen(self) -> None:
        """Install the handler of the signal, in the place of whatever handles it now. In the main thread."""
        signal.signal(self._signal, _receive)

    @property
    def asked(self) -> bool:
        """Whether this rank has received the signal to restart."""
        return self._signal in _received

    def agreed(self) -> bool:
        """Whether any rank was asked: the same answer on all, of one number sent among them; a collective.

        To be called by all ranks after each optimizer step. If something else has taken over the signal since, the
        handler is installed again, and a warning names what had it.
        """
        self._take_back()
        self._calls += 1
        if self._calls % self._every:
            return False
        if not dist.is_initialized():
            world = _horovods_world()
            return world.maximum([self.asked]) == [True] if world else self.asked
        flag = torch.tensor(float(self.asked), device=_device())
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)

    def _take_back(self) -> None:
        other = signal.getsignal(self._signal)
        if other is _receive:
            return
        is_main = threading.current_thread() is threading.main_thread()
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s was handled by %s since training began: %s",
                self._signal.name,
                _described(other),
                "the request to restart handles it again"
                if is_main
                else "a restart may lose the steps since the last checkpoint. Call agreed() in the main thread",
            )
        if is_main:
            self.listen()


def _receive(number: int, _frame: object) -> None:
    _received.add(number)


def _described(handler: object) -> str:
    if isinstance(handler, signal.Handlers):
        return handler.name
    named = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}"


class SaveEvery:
    """When the next checkpoint is due that nobody has asked for: the same on all ranks, of the steps alone.

    Args:
        steps: optimizer steps from one checkpoint to the next; None: none is due, ever.

    Raises:
        InvalidSettings: ``steps`` is less than 1.
    """

    def __init__(self, steps: int | None) -> None:
        if steps is not None and steps < 1:
            raise InvalidSettings("save_every", f"{steps} is less than 1", "Write 1 or more, or leave it out")
        self._steps, self._newest = steps, 0

    def is_at(self, step: int) -> None:
        """There is a checkpoint of that step, or the training begins there."""
        self._newest = step

    def due(self, step: int) -> bool:
        """Whether one is, once so many steps are done."""
        return self._steps is not None and step - self._newest >= self._steps


def _horovods_world() -> World | None:
    """Return the world of a script that has no process group. None: the script is alone."""
    world = current_world()
    return world if world.connected and world.size > 1 else None


def _device() -> torch.device:
    """On which the ranks can talk."""
    accelerator = torch.accelerator.current_accelerator()
    return torch.device("cpu") if accelerator is None or "gloo" in str(dist.get_backend()) else accelerator


def newest_checkpoint(folder: Path | str) -> tuple[Path, int] | None:
    """The newest whole one of :func:`write_checkpoint`, and its step; None: there is none.

    Newer ones that are torn are passed over, with a warning of rank 0.
    """
    return newest_whole([(step, path) for path in _entries(folder) if (step := _step(path)) >= 0], whole.difference)


def newest_whole(
    found: Iterable[tuple[int, Path]], problem_of: Callable[[Path], str | None]
) -> tuple[Path, int] | None:
    """Return the newest of these checkpoints that has no problem. Rank 0 logs a warning for each that is skipped."""
    torn: list[str] = []
    taken: tuple[Path, int] | None = None
    for step, path in sorted(found, reverse=True):
        problem = problem_of(path)
        if problem is None:
            taken = path, step
            break
        torn.append(f"{path} ({problem})")
    if torn and os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")) == "0":
        instead = f"{taken[0].name} is taken instead" if taken else "there is no other, so the training starts over"
        _log.warning("not whole: %s. %s", ", ".join(torn), instead[0].upper() + instead[1:])
    return taken


def check_same_step(step: int) -> None:
    """Have all ranks begin at the same step; a collective.

    Raises:
        StatesDiffer: they do not, as where each machine has a folder of its own.
    """
    if not dist.is_initialized():
        return
    mine = torch.tensor(step, device=_device())
    each = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(each, mine)
    steps = [int(other) for other in each]
    if len(set(steps)) > 1:
        told = ", ".join(f"rank {rank} at {other}" for rank, other in enumerate(steps))
        raise StatesDiffer(
            f"the ranks begin at different steps: {told}. Keep the checkpoints in a folder that every worker sees"
        )


def write_checkpoint(folder: Path | str, step: int, write: Callable[[Path], object], suffix: str = "") -> Path:
    """Have one written under a name that it gets when it is whole and on the disk; older ones go but for :data:`KEPT`.

    What other worlds have left half-written goes before, and what is torn afterwards. A collective of all ranks, on
    whichever machines, of a folder that all see, and that is this run's alone.

    Args:
        folder: where; made if it is missing.
        step: optimizer steps that it holds.
        write: called on every rank, with the path of a file or a folder to be made.
        suffix: of its name, such as ``.ckpt``.
    """
    folder = Path(folder)
    final, part = folder / f"step-{step:09d}{suffix}", folder / f"part-{step:09d}{suffix}"
    world = _horovods_world()
    is_first = dist.get_rank() == 0 if dist.is_initialized() else world is None or world.rank == 0
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        for left in _entries(folder):
            if _PART.fullmatch(left.name) and left != part:
                # A rank of a lost machine may write there still; another time, then.
                with contextlib.suppress(OSError):
                    _remove(left)
        _remove(part)
    _barrier()
    write(part)
    _barrier()
    if is_first:
        _publish(part, final)
    _barrier()
    return final


def _publish(part: Path, final: Path) -> None:
    """Give it its name, and remove what is not kept."""
    folder = final.parent
    whole.flush(part)
    replaced = folder / f"part-{_step(final):09d}.replaced"
    if final.exists():  # A folder cannot be replaced by another.
        _remove(replaced)
        final.rename(replaced)
    whole.record(part, folder, final.name)
    part.rename(final)
    whole.flush(folder)
    _remove(replaced)
    named = sorted((each for each in _entries(folder) if _step(each) >= 0), key=_step)
    kept = [each for each in named if whole.difference(each) is None][-KEPT:]
    for old in named:
        if old not in kept:
            _remove(old)


def _entries(folder: Path | str) -> list[Path]:
    try:
        return list(Path(folder).iterdir())
    except FileNotFoundError:
        return []


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _barrier() -> None:
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1, device=_device()))
    elif world := _horovods_world():
        world.barrier()
