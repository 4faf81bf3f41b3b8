"""Checkpoints in a folder: on this machine, or on a network file system that has POSIX renames and locks.

====================  ======================================================================================
``NAME/``             a published checkpoint: its parts and ``manifest.json``. It appears by one rename.
``.draft-NAME/``      being written; its writer holds a lock on ``.alive`` in it, so leftovers are recognised
``.trash-NAME/``      being deleted
``.fence``            the highest fencing token seen, and the run that showed it
``.lock``             held while fences are compared and names appear
====================  ======================================================================================

Who may read and write all that: :mod:`elastic_runtime.checkpoint.rights`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from elastic_runtime.checkpoint import rights
from elastic_runtime.checkpoint.fence import Seen, known_owner
from elastic_runtime.checkpoint.manifest import LONGEST_MANIFEST
from elastic_runtime.checkpoint.store import FILE, NAME, CheckpointStore, Contribution, Draft
from elastic_runtime.errors import DamagedCheckpoint, InvalidDocument, StoreUnavailable

MANIFEST = "manifest.json"
_DRAFT = ".draft-"
_TRASH = ".trash-"
_ALIVE = ".alive"
FENCE = ".fence"
_LOCK = ".lock"
LOCK_TIMEOUT = 120.0
"""Seconds to wait for those who hold the lock; they remove leftovers meanwhile, at most."""
_LOCK_PAUSE = 0.02
"""Seconds between two tries, since a wait in the kernel has no end."""
_MOST_LISTED = 10_000
"""Files beside the checkpoints that are listed at a time."""
_LONGEST_FENCE = 18
"""Digits."""
_LONGEST_CLAIM = 256
"""Bytes of the file."""
_NONE_OF_OURS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)
"""Errors by which a path leads to no folder, or to no file, that a writer of ours has put there."""
_LOST = (*_NONE_OF_OURS, errno.EBADMSG, errno.EUCLEAN)
"""Those, and errors by which a file system says that the file is damaged. EIO is not among them: a network file
system that does not answer gives it, too."""


class FileStore(CheckpointStore):
    """``file:///path``; the folder is made when the first checkpoint is written.

    Args:
        uri: checked by :func:`~elastic_runtime.checkpoint.store.open_store`.
        credentials: none are needed.
    """

    def __init__(self, uri: str, credentials: Mapping[str, str] | None = None) -> None:  # noqa: ARG002
        self.uri = uri
        self.root = Path(unquote(urlsplit(uri).path))

    @override
    def claim(self, fence: int, owner: str = "") -> None:
        with self.locked():
            self.raise_fence(fence, owner)

    @override
    def names(self) -> list[str]:
        with _unavailable(self.root):
            try:
                root = rights.open_root(self.root)
            except FileNotFoundError:
                return []
            try:
                return [name for name in os.listdir(root) if NAME.fullmatch(name)]
            finally:
                os.close(root)

    @override
    def begin(self, name: str) -> Draft:
        folder = self.root / (_DRAFT + name)
        with self.locked(), _unavailable(self.root):
            self._sweep()
            rights.make_folders(folder)
            alive = rights.create_file(folder / _ALIVE, shared=self.is_shared)
            fcntl.flock(alive, fcntl.LOCK_EX)
            return _FileDraft(self, name, folder, alive)

    @override
    def join(self, name: str) -> Contribution | None:
        folder = self.root / (_DRAFT + name)
        with _unavailable(folder):
            return _FileContribution(self, folder) if (folder / _ALIVE).exists() else None

    @override
    def read_manifest(self, name: str) -> bytes:
        with self._opened(name, MANIFEST) as stream, _unavailable(self.root / name), _lost(MANIFEST):
            return stream.read(LONGEST_MANIFEST + 1)

    @override
    def open_part(self, name: str, part: str, size: int) -> BinaryIO:
        stream = self._opened(name, part)
        if (found := os.fstat(stream.fileno()).st_size) != size:
            stream.close()
            raise DamagedCheckpoint(f"its part {part} has {found} bytes, not {size}")
        return stream

    def _opened(self, name: str, file: str) -> BinaryIO:
        with _unavailable(self.root / name / file), _lost(file), self._folder(name) as folder:
            try:
                return os.fdopen(rights.open_file(file, within=folder), "rb")
            except FileNotFoundError as error:  # Proved only if its folder is there: else a disk may be away.
                raise DamagedCheckpoint(f"its {file} cannot be read: {error.strerror}") from error

    @override
    def delete(self, name: str) -> None:
        trash = self.root / (_TRASH + name)
        with _unavailable(self.root), contextlib.suppress(FileNotFoundError):
            # Renamed first: a reader sees a whole checkpoint or none, never a half deleted one.
            os.rename(self.root / name, trash)
            _remove(trash)

    @contextmanager
    @override
    def write_file(self, name: str) -> Iterator[BinaryIO]:
        path = self.root / name
        temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
        with _unavailable(path):
            rights.make_folders(self.root)
            root = rights.open_root(self.root)
            try:
                rights.make_folders(path.parent)
                os.close(rights.open_folder(path.parent.name, within=root))
            finally:
                os.close(root)
            handle = rights.create_file(temporary, shared=self.is_shared)
            try:
                with os.fdopen(handle, "wb") as stream:
                    yield stream
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, path)
            except BaseException:  # raised again: nothing half-made stays, whatever ended this
                temporary.unlink(missing_ok=True)
                raise

    @override
    def open_beside(self, name: str, most: int) -> BinaryIO:
        folder, _, file = name.partition("/")
        stream = self._opened(folder, file)
        if (found := os.fstat(stream.fileno()).st_size) > most:
            stream.close()
            raise InvalidDocument(f"{name} has {found} bytes, more than {most}")
        return stream

    @override
    def ages(self, folder: str) -> dict[str, float]:
        """Return ages by the clock of this machine."""
        found: dict[str, float] = {}
        with _unavailable(self.root / folder), contextlib.suppress(FileNotFoundError), self._folder(folder) as handle:
            for each in os.listdir(handle)[:_MOST_LISTED]:
                if FILE.fullmatch(name := f"{folder}/{each}"):
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = time.time() - os.stat(each, dir_fd=handle, follow_symlinks=False).st_mtime
        return found

    @override
    def delete_file(self, name: str) -> None:
        folder, _, file = name.partition("/")
        with _unavailable(self.root / name), contextlib.suppress(FileNotFoundError), self._folder(folder) as handle:
            os.unlink(file, dir_fd=handle)

    @contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        """A descriptor. Raises OSError, InvalidDocument and InvalidSettings."""
        with contextlib.ExitStack() as stack:
            root = rights.open_root(self.root)
            stack.callback(os.close, root)
            handle = rights.open_folder(name, within=root)
            stack.callback(os.close, handle)
            yield handle

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all writers. Raises StoreUnavailable, and InvalidSettings for a folder that is everybody's."""
        with _unavailable(self.root):
            rights.make_folders(self.root)
            os.close(rights.open_root(self.root))
            handle = rights.create_file(self.root / _LOCK, shared=self.is_shared, existing=True)
        try:
            with _unavailable(self.root):
                self._lock(handle)
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        """Raises StoreUnavailable where somebody else does not let go of it, such as a stopped process."""
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    problem = f"another process has held {self.root / _LOCK} for {LOCK_TIMEOUT:.0f} s"
                    raise StoreUnavailable(problem) from None
                time.sleep(_LOCK_PAUSE)
            else:
                return

    def raise_fence(self, fence: int, owner: str) -> None:
        """Remember ``fence``, under :meth:`locked`. Raises OwnershipLost as :meth:`Seen.claimed` does."""
        path = self.root / FENCE
        with _unavailable(path):
            seen = self._seen()
            claimed = seen.claimed(fence, owner, self.uri)
            if seen != claimed:
                temporary = self.root / f"{FENCE}-{os.urandom(8).hex()}"
                with os.fdopen(rights.create_file(temporary, shared=self.is_shared), "wb") as stream:
                    stream.write(f"{claimed.fence} {claimed.owner}".rstrip().encode())
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, path)
                _sync_folder(self.root)

    def _seen(self) -> Seen:
        """Nothing where there is no file, or what is there is no fence."""
        root = rights.open_root(self.root)
        try:
            with os.fdopen(rights.open_file(FENCE, within=root), "rb") as stream:
                text = stream.read(_LONGEST_CLAIM + 1)
        except FileNotFoundError:
            return Seen()
        except InvalidDocument as error:  # That is no checkpoint which could be passed over.
            raise rights.world_writable(self.root / FENCE) from error
        finally:
            os.close(root)
        fence, _, owner = text.decode("ascii", "replace").partition(" ")
        if not fence.isdigit() or len(fence) > _LONGEST_FENCE or len(text) > _LONGEST_CLAIM:
            return Seen()
        return Seen(int(fence), known_owner(owner))

    @property
    def is_shared(self) -> bool:
        """Whether what is made here is for the folder's group, too. Raises OSError."""
        return rights.is_shared(self.root.stat())

    def _sweep(self) -> None:
        """Remove drafts of writers that are gone, and what a deleter that died left."""
        for entry in self.root.iterdir():
            is_left = entry.name.startswith((_TRASH, FENCE + "-"))
            if is_left or (entry.name.startswith(_DRAFT) and not _is_alive(entry)):
                with contextlib.suppress(OSError):
                    _remove(entry)


class _FileContribution(Contribution):
    """In the folder of a draft, which holds ``.alive``."""

    def __init__(self, store: FileStore, folder: Path) -> None:
        self._store = store
        self._folder = folder

    @contextmanager
    def part(self, name: str) -> Iterator[BinaryIO]:
        # Under its own name once it is whole: another process may look for it.
        path, temporary = self._folder / name, self._folder / f".{name}"
        with _unavailable(path):
            with os.fdopen(rights.create_file(temporary, shared=self._store.is_shared), "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.rename(temporary, path)


class _FileDraft(_FileContribution, Draft):
    """A folder that is not published yet.

    Args:
        store: where it will be published.
        name: as what.
        folder: exists, and holds ``.alive``.
        alive: descriptor that holds the lock on it; owned from now on.
    """

    def __init__(self, store: FileStore, name: str, folder: Path, alive: int) -> None:
        super().__init__(store, folder)
        self._name = name
        self._alive: int | None = alive

    def read(self, name: str, most: int) -> bytes | None:
        with _unavailable(self._folder / name):
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with os.fdopen(rights.open_file(name, within=folder), "rb") as stream:
                    return stream.read(most + 1)
            except FileNotFoundError:
                return None
            finally:
                os.close(folder)

    def publish(self, manifest: bytes, fence: int, owner: str = "") -> None:
        with self.part(MANIFEST) as stream:
            stream.write(manifest)
        with self._store.locked(), _unavailable(self._folder):
            self._store.raise_fence(fence, owner)
            (self._folder / _ALIVE).unlink()
            _sync_folder(self._folder)
            os.rename(self._folder, self._store.root / self._name)
            self._sync_or_withdraw()
        self._release()

    def _sync_or_withdraw(self) -> None:
        """Make its new name durable, or take that back: what is not durable is not published. Raises OSError."""
        try:
            _sync_folder(self._store.root)
        except OSError as error:
            try:
                os.rename(self._store.root / self._name, self._folder)
            except OSError as again:
                problem = f"{error.strerror}; it is visible, may not be durable, and cannot be withdrawn"
                raise OSError(again.errno, f"{problem}: {again.strerror}") from error
            raise

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None


def _remove(path: Path) -> None:
    """With all that is in it. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:  # None of ours; rmtree would open it to see what it is, and wait at a pipe.
        path.unlink()


def _is_alive(draft: Path) -> bool:
    handle = -1
    try:
        handle = os.open(draft / _ALIVE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # Of a file system that does not answer, nothing is known.
        return error.errno not in _NONE_OF_OURS
    finally:
        if handle >= 0:
            os.close(handle)
    return False


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error


@contextmanager
def _lost(part: str) -> Iterator[None]:
    """Of one file that cannot be given back: the checkpoint before it may be whole. Other errors are the store's."""
    try:
        yield
    except OSError as error:
        if error.errno in _LOST:
            raise InvalidDocument(f"its {part} cannot be read: {error.strerror}") from error
        raise
