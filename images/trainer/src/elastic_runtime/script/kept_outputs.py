"""What a training leaves besides its checkpoints: rank 0's folder of outputs, in the run's store.

``elastic_runtime.outputs()`` gives a rank its folder. What rank 0 writes there, plots, tables, an exported model, goes
to ``outputs-FENCE/`` beside the checkpoints: after each durable checkpoint, before its worker leaves, and when its
process ends. A rank that becomes the first one goes on from what is there. A folder in the store belongs to one owner
of the run, by the fence in its name, so that a rank of an earlier one cannot overwrite anything; the newest that is not
newer than one's own is gone on from. Of two runs with the same fence, the first that claims the store has
the folder. A file in a folder, ``plots/loss.png``, is called ``plots--loss.png`` there.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from elastic_runtime.at_exit import AtExit
from elastic_runtime.checkpoint.store import FILE, NAME, CheckpointStore, open_store
from elastic_runtime.documents import from_json
from elastic_runtime.errors import FenceTaken, InvalidDocument, InvalidSettings, StoreUnavailable
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import CHECKPOINT, OUTPUTS, WORKER_NAME, OutputsSaved, RankLink, shared_link
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.script import leaving
from elastic_runtime.tracing.traces import outputs_folder
from elastic_runtime.world import current_world

MOST_FILES = 200
MOST_BYTES = 1024**3
"""Of all files together."""
DEEPEST = 4
"""Folders within each other."""
_WORD = r"[A-Za-z0-9][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)*"
_PATH = re.compile(rf"{_WORD}(?:/{_WORD}){{0,{DEEPEST}}}")
_STORED = re.compile(rf"{_WORD}(?:--{_WORD}){{0,{DEEPEST}}}")
_CHUNK = 1 << 20
_log = script_logger(__name__)
_Version = tuple[int, int]


class KeptFolder:
    """The folder of a rank. Only while the rank is the first one, something of it is kept.

    Args:
        folder: that exists.
        spec: of the checkpoints beside which it is kept; None: it is not.
        link: to the agent.
    """

    def __init__(self, folder: Path, spec: CheckpointSpec | None, link: RankLink) -> None:
        self.folder = folder
        self._spec, self._link = spec, link
        self.at_exit = AtExit(self.upload)
        self._lock = threading.Lock()
        self._thread = 0
        """That has the lock. A signal's handler may come here in the same one, which cannot wait for itself."""
        self._store: CheckpointStore | None = None
        self._is_first = self._was_first = False
        self._before: dict[str, _Version] | None = None
        """Files that were here when this rank became the first one; None: what is in the store was taken over."""
        self._saved: dict[str, _Version] = {}
        self._refused: set[str] = set()

    def in_world(self, rank: int) -> None:
        """A world begins, before its ranks have synced. Who becomes the first goes on from what is in the store."""
        before, self._was_first = self._was_first, rank == 0
        if rank == 0 and not before:
            self._before = {}
            with contextlib.suppress(OSError):
                self._before = {path: _version(state) for path, state in _files(self.folder)}
        if rank == 0 and self._before is not None:
            self._in_store(self._take_over)
        self._is_first = rank == 0

    def world_ends(self, leaves: bool) -> None:
        """While the old world is connected, and no new one can begin.

        Args:
            leaves: whether this rank's worker was announced to: what it has is saved now, so that another goes on.
        """
        if leaves:
            self.upload()
        self._is_first = False

    def noticed(self, notice: leaving.Notice) -> None:
        """Save what is new before this worker is taken, unless that follows the hand-over, which comes first."""
        if notice.mine and not self._link.writes_checkpoints:
            self.upload()

    def upload(self) -> None:
        """Save what is new, on the first rank; in any thread. A store that is away is a warning, and tried again.

        Nothing is saved before what is in the store was taken over.
        """
        if self._is_first:
            self._in_store(self._upload)

    def _in_store(self, act: Callable[[CheckpointStore, int], None]) -> None:
        spec = self._spec
        if spec is None or self._thread == threading.get_ident():
            return
        with self._lock:
            self._thread = threading.get_ident()
            try:
                self._store = self._store or open_store(spec.uri)
                with closing(self._store) as store:
                    store.claim_beside(spec.fence, spec.owner)
                    act(store, spec.fence)
            except (InvalidSettings, FenceTaken) as error:
                self._spec = None
                _log.warning("outputs are not kept: %s", printable(error))
            except (StoreUnavailable, OSError) as error:
                _log.warning("outputs are not in the store now, training goes on: %s", printable(error))
            finally:
                self._thread = 0

    def _upload(self, store: CheckpointStore, fence: int) -> None:
        if self._before is not None:
            self._take_over(store, fence)
        found = self._look()
        new = {path: version for path, version in found.items() if self._saved.get(path) != version}
        gone = self._saved.keys() - found.keys()
        for path in new:
            with _opened(self.folder / path) as source, store.write_file(_stored(fence, path)) as target:
                _copy(source, target, found[path][0])
            self._saved[path] = found[path]
        for path in gone:
            store.delete_file(_stored(fence, path))
            del self._saved[path]
        if new or gone:
            self._link.send(OutputsSaved(len(self._saved), sum(size for size, _ in self._saved.values())))

    def _look(self) -> dict[str, _Version]:
        """Size and time of change of the files that are kept."""
        found: dict[str, _Version] = {}
        total = 0
        for path, state in _files(self.folder):
            problem = ""
            if not _PATH.fullmatch(path) or not FILE.fullmatch(_stored(10**17, path)):
                problem = "its name has other characters than letters, digits, dots, - and _, or is too long"
            elif len(found) == MOST_FILES:
                problem = f"there are {MOST_FILES} already"
            elif total + state.st_size > MOST_BYTES:
                problem = f"all together would have more than {MOST_BYTES >> 20} MiB"
            if not problem:
                found[path] = _version(state)
                total += state.st_size
            elif path not in self._refused and len(self._refused) < MOST_FILES:
                self._refused.add(path)
                _log.warning("the output %s is not kept: %s", printable(path, 200), problem)
        return found

    def _take_over(self, store: CheckpointStore, fence: int) -> None:
        fences = {fence, *(int(match[1]) for name in store.names() if (match := NAME.fullmatch(name)))}
        for owner in sorted((each for each in fences if each <= fence), reverse=True):
            if names := sorted(store.ages(outputs_folder(owner)))[:MOST_FILES]:
                self._fetch(store, names, is_own=owner == fence)
                break
        self._before = None

    def _fetch(self, store: CheckpointStore, names: list[str], *, is_own: bool) -> None:
        left = MOST_BYTES
        for name in names:
            stored = name.partition("/")[2]
            if not _STORED.fullmatch(stored):
                continue
            path = stored.replace("--", "/")
            target = self.folder / path
            new = target.with_name(f".{target.name}")
            if self._is_written(path):
                _log.warning("the output %s was written before the store's could be gone on from", printable(path))
                continue
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with store.open_beside(name, left) as source, new.open("wb") as copy:
                    left -= _copy(source, copy, left)
                new.replace(target)
            except InvalidDocument as error:
                _log.warning("the output %s is not gone on from: %s", printable(path), printable(error))
                continue
            version = _version(target.stat())
            if self._before is not None:  # Should another one fail, this one is not taken for the script's.
                self._before[path] = version
            if is_own:
                self._saved[path] = version

    def _is_written(self, path: str) -> bool:
        """Whether something of that name is here since this rank became the first one."""
        try:
            state = os.lstat(self.folder / path)
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return True
        return not stat.S_ISREG(state.st_mode) or _version(state) != (self._before or {}).get(path)


def _version(state: os.stat_result) -> _Version:
    return state.st_size, state.st_mtime_ns


def _stored(fence: int, path: str) -> str:
    return f"{outputs_folder(fence)}/{path.replace('/', '--')}"


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Plain files with their paths below it, in order; no links, and nothing hidden."""
    for place, folders, files in os.walk(folder):
        below = Path(place).relative_to(folder)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if len(below.parts) < DEEPEST else []
        for name in sorted(files)[: 10 * MOST_FILES]:
            with contextlib.suppress(FileNotFoundError):
                state = os.lstat(Path(place, name))
                if stat.S_ISREG(state.st_mode) and not name.startswith("."):
                    yield str(below / name), state


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _copy(source: BinaryIO, target: BinaryIO, most: int) -> int:
    left = most
    while left > 0 and (chunk := source.read(min(left, _CHUNK))):
        target.write(chunk)
        left -= len(chunk)
    return most - left


_kept: KeptFolder | None = None


def outputs() -> Path:
    """The folder for what this rank makes besides its checkpoints; of rank 0 it is kept in the run's store.

    On rank 0 there is in it what rank 0 had before, on this worker or another, in this run or the tries before; on a
    rank that becomes the first one later, from then on. At most :data:`MOST_FILES` files and :data:`MOST_BYTES` are
    kept, of names with letters, digits, dots, ``-`` and ``_``; what begins with a dot is not. The folder goes with the
    worker. Without an agent it is ``outputs`` in the working directory.

    Raises:
        OSError: it cannot be made.
    """
    global _kept
    if _kept is None:
        base = os.environ.get(OUTPUTS)
        world = current_world()
        folder = Path(base, world.name or str(os.getpid())) if base else Path("outputs").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        spec = from_json(CheckpointSpec, os.environ[CHECKPOINT]) if base and CHECKPOINT in os.environ else None
        if base and spec is None:
            _log.warning("outputs are not kept: the run has no checkpoint store")
        kept = _kept = KeptFolder(folder, spec, shared_link())
        leaving.on_notice(kept.noticed)
        if world.connected:
            in_world()
    return _kept.folder


def upload() -> None:
    """Upload the kept outputs. The process that has just made a checkpoint durable calls it."""
    if _kept is not None:
        _kept.upload()


def in_world() -> None:
    """Call :meth:`KeptFolder.in_world` if outputs are kept. Engines call it when a world is complete."""
    if _kept is not None:
        _kept.at_exit.ask()  # Of the process that trains, which may have inherited the folder.
        _kept.in_world(current_world().rank)


def world_ends() -> None:
    """Call :meth:`KeptFolder.world_ends` if outputs are kept. Engines call it when a world ends."""
    if _kept is not None:
        _kept.world_ends(os.environ.get(WORKER_NAME) in shared_link().leaving)
