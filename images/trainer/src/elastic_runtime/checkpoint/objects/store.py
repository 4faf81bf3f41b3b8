"""The store itself."""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import BinaryIO, cast

from typing_extensions import override

from elastic_runtime.checkpoint.manifest import LONGEST_MANIFEST
from elastic_runtime.checkpoint.objects.bucket import CONNECTIONS, Bucket, Changed, Missing
from elastic_runtime.checkpoint.objects.download import download, in_time
from elastic_runtime.checkpoint.objects.register import Register, Version
from elastic_runtime.checkpoint.objects.upload import Upload
from elastic_runtime.checkpoint.senders import Senders
from elastic_runtime.checkpoint.store import FILE, NAME, CheckpointStore, Contribution, Draft
from elastic_runtime.errors import DamagedCheckpoint, ElasticError, InvalidDocument, InvalidSettings, StoreUnavailable
from elastic_runtime.logs import script_logger

MANIFEST = "manifest.json"
REGISTER = ".register"
DRAFT = ".draft-"
TOUCH = 60.0
"""Seconds after which a writer that is at work touches its marker again."""
SILENCE = 900.0
"""Seconds without a touch after which others take a writer for dead."""
STANDSTILL = 450.0
"""Seconds without a touch after which a writer gives up by itself, before it may pass for dead."""
SWEEP = 300.0
"""Seconds from one look for what dead writers have left to the next, of one store object."""
_MOST_REMOVED = 1000
"""Objects of one checkpoint that are removed at a time."""
_MOST_SWEPT = 10
"""Checkpoints that are swept up at a time."""
_MOST_FOUND = 1000
"""Checkpoints that are looked for without a register."""
_log = script_logger(__name__)


class ObjectStore(CheckpointStore):
    """A prefix of a bucket, which has to be there.

    Args:
        uri: of the prefix, for messages and for those who read a status.
        bucket: where.
        prefix: of all keys.
    """

    def __init__(self, uri: str, bucket: Bucket, prefix: str) -> None:
        self.uri = uri
        self._prefix = prefix.strip("/")
        self.bucket = bucket
        self.register = Register(self.bucket, self.key(REGISTER), uri, self._with_manifest)
        self._swept = -math.inf
        self._may_sweep = True
        """Whether the store has not refused to list or delete; the log says so once."""
        self._later = Senders(1)
        """What nobody waits for, until this is closed."""

    def key(self, *path: str) -> str:
        """Return the key of an object under the prefix."""
        return "/".join([*filter(None, [self._prefix]), *path])

    @override
    def claim(self, fence: int, owner: str = "") -> None:
        self.register.change(lambda entries: entries.claimed(fence, owner, self.uri))

    def prepare(self) -> None:
        """Importing a cloud's library and making a client take half a second, and more on a busy machine."""
        self.register.read()

    @override
    def names(self) -> list[str]:
        return list(self.register.read().published)

    @override
    def begin(self, name: str) -> Draft:
        if _now() - self._swept > SWEEP:
            self._sweep()
        return _ObjectDraft(self, name)

    @override
    def join(self, name: str) -> Contribution:
        return _ObjectContribution(self, name)

    @override
    def read_manifest(self, name: str) -> bytes:
        key = self.key(name, MANIFEST)
        try:
            return in_time(partial(self.bucket.get, key, LONGEST_MANIFEST), f"{self.uri}, reading {key}")[0]
        except Missing:
            raise DamagedCheckpoint(f"its {MANIFEST} cannot be read: it is not in the store") from None

    def open_part(self, name: str, part: str, size: int) -> BinaryIO:
        """A copy in the folder for temporary files, which is as large as the part and gone when it is closed."""
        file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        try:
            download(self.bucket, self.key(name, part), file.fileno(), size)
        except Missing:
            file.close()
            raise DamagedCheckpoint(f"its {part} cannot be read: it is not in the store") from None
        except OSError as error:
            file.close()
            where = f"{tempfile.gettempdir()} (TMPDIR)"
            raise StoreUnavailable(f"no copy of {self.uri}/{name}/{part} in {where}: {error.strerror}") from error
        except BaseException:  # raised again: nothing stays open, whatever ended this
            file.close()
            raise
        return cast(BinaryIO, file)

    @contextmanager
    @override
    def write_file(self, name: str) -> Iterator[BinaryIO]:
        senders = Senders(self.bucket.senders)
        upload = Upload(self.bucket, self.key(name), senders, lambda: None)
        try:
            yield cast(BinaryIO, upload)
            upload.commit()
        except BaseException:  # raised again: nothing half-made stays, whatever ended this
            with contextlib.suppress(ElasticError):
                upload.abort()
            raise
        finally:
            senders.close()

    @override
    def open_beside(self, name: str, most: int) -> BinaryIO:
        """Open the object as :meth:`open_part` does."""
        try:
            size = self.bucket.size(self.key(name))
        except Missing:
            raise InvalidDocument(f"{name} is not in the store") from None
        if size > most:
            raise InvalidDocument(f"{name} has {size} bytes, more than {most}")
        folder, _, file = name.partition("/")
        return self.open_part(folder, file, size)

    @override
    def ages(self, folder: str) -> dict[str, float]:
        start = self.key("")
        found = {each.key.removeprefix(start): each.age for each in self.bucket.objects(self.key(folder, ""))}
        return {name: age for name, age in found.items() if FILE.fullmatch(name)}

    @override
    def delete_file(self, name: str) -> None:
        self.bucket.delete(self.key(name))

    @override
    def delete(self, name: str) -> None:
        self.mark(name)  # should this end half-way, somebody else will end it
        self.register.change(lambda entries: entries.without(name))
        self.remove(name)

    @override
    def close(self) -> None:
        self._later.close()
        self.bucket.close()

    def mark(self, name: str) -> None:
        """Say that somebody is at work on this checkpoint."""
        self.bucket.put(self.key(DRAFT + name), b"")

    def unmark_later(self, name: str) -> None:
        """Remove the marker of a published checkpoint; one that stays is swept."""

        def unmark() -> None:
            with contextlib.suppress(ElasticError):
                self.bucket.delete(self.key(DRAFT + name))

        self._later.submit(unmark)

    def remove(self, name: str) -> None:
        """Remove everything of a checkpoint that is not published, and last its marker.

        Where somebody has put more there than a checkpoint has, some is removed, and the next sweep goes on.
        """
        uploads = self.bucket.uploads(self.key(name, ""))
        for key, upload in uploads[:_MOST_REMOVED]:
            with contextlib.suppress(Missing):
                self.bucket.abort_upload(key, upload)
        objects = self.bucket.objects(self.key(name, ""))
        for each in objects[:_MOST_REMOVED]:
            self.bucket.delete(each.key)
        if max(len(uploads), len(objects)) <= _MOST_REMOVED:
            self.bucket.delete(self.key(DRAFT + name))

    def _sweep(self) -> None:
        """Remove what writers and deleters that died have left."""
        start = self.key(DRAFT)
        self._swept = _now()
        try:
            marked = [each.key.removeprefix(start) for each in self.bucket.objects(start) if each.age > SILENCE]
            silent = [name for name in marked if NAME.fullmatch(name)]
            published = self.register.read().published if silent else ()
            for name in silent[:_MOST_SWEPT]:
                if name in published:
                    self.bucket.delete(start + name)
                else:
                    self.remove(name)
        except StoreUnavailable as error:  # the next checkpoint sweeps again
            _log.warning("what unfinished checkpoints have left stays for now: %s", str(error))
        except InvalidSettings as error:  # Rights to write alone.
            if self._may_sweep:
                self._may_sweep = False
                problem = "what unfinished checkpoints have left stays: the store refuses to list or to delete"
                _log.warning("%s. %s", problem, str(error))

    def _with_manifest(self) -> list[str]:
        """Names of what looks published."""
        folders = [name for name in self.bucket.folders(self.key("ckpt-")) if NAME.fullmatch(name)]
        newest = sorted(folders, reverse=True)[:_MOST_FOUND]
        return [name for name in reversed(newest) if self.bucket.objects(self.key(name, MANIFEST))]


class _ObjectContribution(Contribution):
    """Objects that no reader looks at yet.

    Args:
        store: where they will be published.
        name: as what.
    """

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._senders = Senders(store.bucket.senders)
        self._lock = threading.Lock()
        self._touched = _now()
        self._stood_still = False

    @contextmanager
    def part(self, name: str) -> Iterator[BinaryIO]:
        upload = Upload(self._store.bucket, self._store.key(self._name, name), self._senders, self._touch, self._before)
        try:
            yield cast(BinaryIO, upload)
            self._commit(upload)
        except BaseException:  # raised again: nothing half-made stays, whatever ended this
            with contextlib.suppress(ElasticError):  # then discard() or a sweep removes it
                upload.abort()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is there stays, for who has begun the draft; and should that be given up, for a sweep."""
        self._senders.close()
        with contextlib.suppress(ElasticError):
            self._store.mark(self._name)

    def _before(self) -> None:
        """Called before anything of a part is in the store."""

    def _commit(self, upload: Upload) -> None:
        upload.commit()

    def _touch(self) -> None:
        with self._lock:
            now = _now()
            silence = now - self._touched
            is_due = silence > TOUCH
            if is_due:
                self._touched = now
                self._stood_still = self._stood_still or silence > STANDSTILL
        if is_due:
            self._store.mark(self._name)


class _ObjectDraft(_ObjectContribution, Draft):
    """All objects of a checkpoint.

    Args:
        store: where it will be published.
        name: as what.
    """

    __exit__ = Draft.__exit__

    def __init__(self, store: ObjectStore, name: str) -> None:
        super().__init__(store, name)
        self._announced = False
        self._ended = False
        self._marked = self._senders.submit(partial(store.mark, name))
        self._register = self._senders.submit(store.register.load)
        self._commits: list[Future[None]] = []

    @override
    def _before(self) -> None:
        """What is there without a marker would stay for ever, should this process be killed."""
        self._marked.result()

    @override
    def _commit(self, upload: Upload) -> None:
        """A small part is sent while the next one is made; :meth:`publish` waits for it."""
        if upload.is_small:
            if len(self._commits) == CONNECTIONS:  # Each of them holds its part in memory.
                self._commits.pop(0).result()
            self._commits.append(self._senders.submit(upload.commit))
        else:
            upload.commit()

    def read(self, name: str, most: int) -> bytes | None:
        self._touch()  # Who waits for others is at work, too.
        try:
            return self._store.bucket.get(self._store.key(self._name, name), most)[0]
        except Missing:
            return None

    @override
    def alongside(self, work: Callable[[], None]) -> None:
        """At the same time as the last parts and the manifest."""
        self._commits.append(self._senders.submit(work))

    def publish(self, manifest: bytes, fence: int, owner: str = "") -> None:
        """The manifest goes beside the last parts: nobody looks at it before the register has the name."""
        store = self._store
        for commit in (*self._commits, self._senders.submit(partial(self._write_manifest, manifest))):
            commit.result()
        seen = self._seen()
        if self._stood_still or _now() - self._touched > STANDSTILL:
            raise StoreUnavailable(f"{store.uri}: this process has stood still for so long that it may pass for dead")
        self._announced = True
        store.register.change(lambda entries: entries.claimed(fence, owner, store.uri).with_name(self._name), seen)
        self._end()
        store.unmark_later(self._name)

    def _write_manifest(self, manifest: bytes) -> None:
        self._before()
        bucket, key = self._store.bucket, self._store.key(self._name, MANIFEST)
        try:
            bucket.put(key, manifest, new=True)
        except Changed:
            if bucket.get(key, len(manifest))[0] != manifest:  # not our own write, whose answer was lost
                raise StoreUnavailable(f"{self._store.uri}: somebody else has written {key}") from None

    def _seen(self) -> Version | None:
        """The register as it was when this was begun; None: it could not be read then."""
        try:
            return self._register.result()
        except ElasticError:
            return None

    def discard(self) -> None:
        if self._ended:
            return
        self._end()
        try:
            if self._announced:  # It may be published: of a write that failed, the answer alone may have been lost.
                self._store.register.change(lambda entries: entries.without(self._name))
            self._store.remove(self._name)
        except ElasticError as error:
            # As text: handlers may keep records, and the error its connection.
            _log.warning("an unfinished checkpoint stays for now: %s", str(error))

    def _end(self) -> None:
        self._ended = True
        self._senders.close()


def _now() -> float:
    """Seconds, those in which the machine slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
