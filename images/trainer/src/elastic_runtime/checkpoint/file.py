"""Checkpoints in a folder: on this machine, or on a network file system that has POSIX renames and locks.

====================  ======================================================================================
``NAME/``             a published checkpoint: its parts and ``manifest.json``. It appears by one rename.
``.draft-NAME/``      being written; its writer holds a lock on ``.alive`` in it, so leftovers are recognised
``.trash-NAME/``      being deleted
``.fence``            the highest fencing token seen
``.lock``             held while fences are compared and names appear
====================  ======================================================================================
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from elastic_runtime.checkpoint.store import CheckpointStore, Draft
from elastic_runtime.errors import InvalidDocument, OwnershipLost, StoreUnavailable

MANIFEST = "manifest.json"
_DRAFT = ".draft-"
_TRASH = ".trash-"
_ALIVE = ".alive"


class FileStore(CheckpointStore):
    """``file:///path``; the folder is made when the first checkpoint is written.

    Args:
        uri: checked by :func:`~elastic_runtime.checkpoint.store.open_store`.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.root = Path(unquote(urlsplit(uri).path))

    def claim(self, fence: int) -> None:
        """See the interface."""
        with self.locked():
            self.raise_fence(fence)

    def names(self) -> list[str]:
        """See the interface."""
        with _unavailable(self.root):
            try:
                return [entry.name for entry in self.root.iterdir() if not entry.name.startswith(".")]
            except FileNotFoundError:
                return []

    def begin(self, name: str) -> Draft:
        """See the interface."""
        folder = self.root / (_DRAFT + name)
        with self.locked(), _unavailable(self.root):
            self._sweep()
            folder.mkdir()
            alive = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(alive, fcntl.LOCK_EX)
            return _FileDraft(self, name, folder, alive)

    def read_manifest(self, name: str) -> bytes:
        """See the interface."""
        with self.open_part(name, MANIFEST) as stream, _unavailable(self.root / name), _lost(MANIFEST):
            return stream.read()

    def open_part(self, name: str, part: str) -> BinaryIO:
        """See the interface."""
        path = self.root / name / part
        with _unavailable(path), _lost(part):
            return path.open("rb")

    def delete(self, name: str) -> None:
        """See the interface."""
        trash = self.root / (_TRASH + name)
        with _unavailable(self.root), contextlib.suppress(FileNotFoundError):
            # Renamed first: a reader sees a whole checkpoint or none, never a half deleted one.
            os.rename(self.root / name, trash)
            shutil.rmtree(trash)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all writers. Raises StoreUnavailable."""
        with _unavailable(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with _unavailable(self.root):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def raise_fence(self, fence: int) -> None:
        """Remember ``fence``, under :meth:`locked`. Raises OwnershipLost when a higher one was seen."""
        path = self.root / ".fence"
        with _unavailable(path):
            text = path.read_text() if path.exists() else ""
            seen = int(text) if text.isdecimal() else None
            if seen is not None and seen > fence:
                raise OwnershipLost(f"{self.uri} belongs to a newer owner: its fence is {seen}, ours is {fence}")
            if seen != fence:
                temporary = path.with_suffix(".new")
                with temporary.open("w") as stream:
                    stream.write(str(fence))
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, path)
                _sync_folder(self.root)

    def _sweep(self) -> None:
        """Remove drafts of writers that are gone, and what a deleter that died left."""
        for entry in self.root.iterdir():
            if entry.name.startswith(_TRASH) or (entry.name.startswith(_DRAFT) and not _is_alive(entry)):
                shutil.rmtree(entry, ignore_errors=True)


class _FileDraft(Draft):
    """A folder that is not published yet.

    Args:
        store: where it will be published.
        name: as what.
        folder: exists, and holds ``.alive``.
        alive: descriptor that holds the lock on it; owned from now on.
    """

    def __init__(self, store: FileStore, name: str, folder: Path, alive: int) -> None:
        self._store = store
        self._name = name
        self._folder = folder
        self._alive: int | None = alive

    @contextmanager
    def part(self, name: str) -> Iterator[BinaryIO]:
        path = self._folder / name
        with _unavailable(path), path.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())

    def publish(self, manifest: bytes, fence: int) -> None:
        with self.part(MANIFEST) as stream:
            stream.write(manifest)
        with self._store.locked(), _unavailable(self._folder):
            self._store.raise_fence(fence)
            (self._folder / _ALIVE).unlink()
            _sync_folder(self._folder)
            os.rename(self._folder, self._store.root / self._name)
            _sync_folder(self._store.root)
        self._release()

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._release()

    def _release(self) -> None:
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None


def _is_alive(draft: Path) -> bool:
    try:
        handle = os.open(draft / _ALIVE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
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
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            raise InvalidDocument(f"its {part} cannot be read: {error.strerror}") from error
        raise
