"""Write, verify, choose and retire checkpoints on any store."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO, Protocol, TypeVar

from elastic_runtime.checkpoint.joint import Joint, await_others, bring
from elastic_runtime.checkpoint.manifest import Manifest, Part, decode_manifest, encode_manifest
from elastic_runtime.checkpoint.senders import Senders
from elastic_runtime.checkpoint.store import NAME, CheckpointStore, Contribution, Draft, open_store
from elastic_runtime.errors import DamagedCheckpoint, ElasticError, InvalidDocument, InvalidSettings, StoreUnavailable
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable

T = TypeVar("T")


class PartStream(Protocol):
    """Stream to which a part is written, front to back."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of the data."""

    def flush(self) -> None:
        """Hand on what is buffered."""


PartWriter = Callable[[PartStream], None]
"""Writes one part."""
Record = Callable[[str, Manifest, bytes], None]
"""Notes a checkpoint that is about to be published, perhaps in another thread. Raises nothing."""

SKEW = 60.0
"""Seconds that clocks of a run's machines may be apart."""
_log = script_logger(__name__)
_CHUNK = 1 << 20
_BESIDE = 1 << 18
"""Bytes that take longer to digest than to be handed to another thread."""
_DAMAGE = (errno.EBADMSG, errno.EUCLEAN)
"""Errors by which a file system says that what it has stored is damaged. Others, such as EIO of a network file system
that does not answer, may pass."""
_MOST_UNREADABLE = 100
"""Checkpoints in a row that cannot be read. Somebody must have put them there."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint in a store."""

    store: CheckpointStore
    name: str
    manifest: Manifest

    @property
    def uri(self) -> str:
        """URI of this checkpoint, for :func:`opened_checkpoint`."""
        return f"{self.store.uri}/{self.name}"

    def open_part(self, part: str) -> BinaryIO:
        """A seekable stream at the start of a part whose size and digest agree with the manifest.

        Raises:
            InvalidDocument: there is no such part, or it cannot be one. DamagedCheckpoint: they do not agree.
            StoreUnavailable: the store does not answer, or the part cannot be read for a reason that may pass.
        """
        expected = next((known for known in self.manifest.parts if known.name == part), None)
        if expected is None:
            raise InvalidDocument(f"{self.uri} has no part {part}")
        stream = self.store.open_part(self.name, part, expected.size)
        try:
            _verify(stream, expected, self.uri)
        except BaseException:  # raised again: nothing half-made stays, whatever ended this
            stream.close()
            raise
        return stream


@contextmanager
def opened_checkpoint(uri: str, credentials: Mapping[str, str] | None = None) -> Iterator[StoredCheckpoint]:
    """The checkpoint with this URI, as a status document or a result gives it. No connection is open afterwards.

    Args:
        uri: of the checkpoint.
        credentials: variables for its store; None: those of this process.

    Raises:
        InvalidSettings: it is not the URI of a checkpoint.
        InvalidDocument: there is none, or its manifest is torn, altered, or none that this runtime writes.
        StoreUnavailable: the store does not answer.
    """
    prefix, _, name = uri.rstrip("/").rpartition("/")
    if NAME.fullmatch(name) is None:
        raise InvalidSettings("checkpoint", f"{uri!r} is not the URI of one checkpoint", "Write STORE/ckpt-…")
    store = open_store(prefix, credentials)
    try:
        yield _read(store, name)
    finally:
        store.close()


class Checkpoints:
    """The checkpoints of one run, for its one writer of the moment.

    Args:
        store: where.
        fence: fencing token; a writer with a lower one than the store has seen publishes nothing.
        keep: how many published checkpoints stay, at least 1.
        owner: run that writes; empty: not known. Of two with the same fence, the first one claims the store.

    Raises:
        InvalidSettings: ``keep`` is less than 1.
    """

    def __init__(self, store: CheckpointStore, fence: int, keep: int, owner: str = "") -> None:
        if keep < 1:
            raise InvalidSettings("checkpoint.keep", f"{keep} is less than 1", "Write 1 or more")
        self.store = store
        self.fence = fence
        self.keep = keep
        self.owner = owner
        self._may_retire = True
        """Whether the store has not refused to list or delete; the log says so once."""
        self._passed_over: set[str] = set()
        self._damaged: set[str] = set()
        """Those of them that are proved to be damaged. Another version of the script may read the others."""

    def claim(self) -> None:
        """Shut writers with a lower fence out, and other runs with the same. Raises OwnershipLost, StoreUnavailable."""
        self.store.claim(self.fence, self.owner)

    def prepare(self) -> None:
        """Have ready what the first write needs. A store that is away is told by that write."""
        try:
            self.store.prepare()
        except (StoreUnavailable, InvalidSettings) as error:
            _log.warning("the checkpoint store is not ready: %s", printable(error))

    @property
    def passed_over(self) -> list[str]:
        """Names of those that :meth:`newest` could not use: the training began before them."""
        return sorted(self._passed_over)

    def pass_over(self, names: Iterable[str]) -> None:
        """Take note of :attr:`passed_over` of another rank."""
        self._passed_over.update(names)

    def newest(
        self, read: Callable[[StoredCheckpoint], T], skipped: Callable[[str, str], None], *, own: bool = False
    ) -> tuple[StoredCheckpoint, T] | None:
        """The newest checkpoint that can be read, with what was read; None when there is none.

        Newest is the highest fence, in it the highest step, in it the latest time.

        Args:
            read: reads the parts; :meth:`StoredCheckpoint.open_part` verifies them. Raises InvalidDocument to have the
                checkpoint passed over for the one before it.
            skipped: called with URI and reason for each one that is passed over.
            own: only those with our fence.

        Raises:
            StoreUnavailable: the store does not answer. That is no reason to train from the start.
            InvalidSettings: too many cannot be read, one after another.
        """
        names = [name for name in self.store.names() if not own or _numbers(name)[0] == self.fence]
        for count, name in enumerate(sorted(names, key=_by_progress, reverse=True)):
            if count == _MOST_UNREADABLE:
                problem = f"the newest {count} checkpoints in {self.store.uri} cannot be read"
                raise InvalidSettings("checkpoint", problem, "Remove them, or give the run another URI")
            try:
                found = _read(self.store, name)
                return found, read(found)
            except InvalidDocument as error:
                self._passed_over.add(name)
                if isinstance(error, DamagedCheckpoint):
                    self._damaged.add(name)
                skipped(f"{self.store.uri}/{name}", printable(error))
        return None

    def reached(self, step: int) -> StoredCheckpoint | None:
        """The newest whole one that the owner of our fence has published, if it is of this step or a later one.

        None of :attr:`passed_over`: this training began before it, and what it has at that step may be another state.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        published = ((*_numbers(name), name) for name in self.store.names() if name not in self._passed_over)
        as_far = [name for fence, its_step, _, name in published if fence == self.fence and its_step >= step]
        for name in sorted(as_far, key=_by_progress, reverse=True):
            try:
                found = _read(self.store, name)
                for part in found.manifest.parts:
                    found.open_part(part.name).close()
            except InvalidDocument:
                continue
            return found
        return None

    def write(
        self,
        step: int,
        time: datetime,
        parts: Mapping[str, PartWriter],
        *,
        handover: bool = False,
        joint: Joint | None = None,
        record: Record | None = None,
    ) -> StoredCheckpoint | None:
        """Write and publish one. Nothing is retired: see :meth:`retire`.

        Args:
            step: optimizer steps that it holds.
            time: when the state was taken.
            parts: name, as :data:`~elastic_runtime.checkpoint.manifest.PART` has it, to writer.
            handover: whether a reclaim notice is the reason.
            joint: these parts are a share of it; all but the first writer bring them, and get None.
            record: called before it is published, with its name, its manifest, and that as it is written.

        Raises:
            InvalidSettings: nobody could read it again; nothing was published.
            OwnershipLost: the run has a newer owner; nothing was published.
            StoreUnavailable: nothing was published.
        """
        if joint is not None and joint.writer:
            bring(self.store, joint, partial(_write_parts, parts))
            return None
        name = joint.name if joint else self.new_name(step, time)
        with self.store.begin(name) as draft:
            written = _write_parts(parts, draft)
            if joint is not None:
                written += self._brought(draft, joint)
            manifest = Manifest(step=step, time=time, fence=self.fence, parts=tuple(written), handover=handover)
            encoded = _encoded(manifest)
            if record is not None:
                draft.alongside(partial(record, name, manifest, encoded))
            draft.publish(encoded, self.fence, self.owner)
        return StoredCheckpoint(self.store, name, manifest)

    def _brought(self, draft: Draft, joint: Joint) -> list[Part]:
        try:
            return await_others(draft, joint)
        except InvalidDocument as error:  # Somebody else has written there, and training goes on without this one.
            raise StoreUnavailable(
                f"{self.store.uri}: parts of {joint.name} are not those of a rank: {error}"
            ) from error

    def new_name(self, step: int, time: datetime) -> str:
        """Return a name for a checkpoint that is to be written."""
        return f"ckpt-f{self.fence:012d}-s{step:012d}-t{int(time.timestamp() * 1000):014d}-{os.urandom(4).hex()}"

    def stored(self, name: str) -> StoredCheckpoint:
        """A published one. Raises InvalidDocument and StoreUnavailable."""
        return _read(self.store, name)

    def retire(self, newest: StoredCheckpoint) -> None:
        """Remove what is over :attr:`keep`, and what is damaged.

        A store that does not answer, or refuses, keeps it, and the log says so: what was published is published.
        What :meth:`newest` has passed over without a proof of damage is neither counted nor removed, nor is one of the
        same fence with a higher step that is no older.

        Args:
            newest: what was published last; it stays.
        """
        try:
            # By time and not by step: after a resume from the one before a broken one, the newest in time are good.
            others = [name for name in self.store.names() if name != newest.name]
            # A process may have stood still since it published: what a newer owner has written is not its to remove.
            ours = {name for name in others if _numbers(name)[0] <= self.fence}
            # A rank 0 that leaves may publish after its successor, which is further.
            further = {name for name in ours if _is_further(name, newest.name)}
            usable = sorted(ours - further - self._passed_over, key=_by_time, reverse=True)
            for name in [*usable[self.keep - 1 :], *ours & self._damaged]:
                self.store.delete(name)
        except StoreUnavailable as error:
            _log.warning("old checkpoints stay for now: %s", printable(error))
        except InvalidSettings as error:  # Rights to write alone.
            if self._may_retire:
                self._may_retire = False
                problem = "checkpoints are published, but old ones stay: the store refuses to list or to delete"
                _log.warning("%s. %s", problem, printable(error))


def _encoded(manifest: Manifest) -> bytes:
    try:
        return encode_manifest(manifest)
    except InvalidDocument as error:
        problem = f"the checkpoint of step {manifest.step} could not be read again: {error}"
        raise InvalidSettings("checkpoint", problem, "Give its parts other names, or it another step") from error


def _write_parts(parts: Mapping[str, PartWriter], onto: Contribution) -> list[Part]:
    written, beside = [], Senders(1)
    try:
        for part, write in parts.items():
            with onto.part(part) as stream:
                digest = _Digesting(stream, beside)
                digest.write_with(write)
            written.append(Part(part, digest.size, digest.sha256))
    finally:
        beside.close()
    return written


class _Digesting(io.RawIOBase):
    """Counts and digests what passes through to a stream; large pieces are digested while they are written."""

    def __init__(self, stream: BinaryIO, beside: Senders) -> None:
        super().__init__()
        self._stream, self._beside = stream, beside
        self._digest = hashlib.sha256()
        self._error: OSError | ElasticError | None = None
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        count = memoryview(data).nbytes
        self.size += count
        digested = self._beside.submit(partial(self._digest.update, data)) if count >= _BESIDE else None
        try:
            self._stream.write(data)
        except (OSError, ElasticError) as error:
            self._error = error
            raise
        finally:  # The memory is the caller's again.
            if digested is not None:
                digested.result()
        if digested is None:
            self._digest.update(data)
        return count

    def write_with(self, write: PartWriter) -> None:
        # Collected outside of Python: many small writes would have the training wait for the interpreter as often.
        collected = io.BufferedWriter(self, _CHUNK)
        try:
            write(collected)
            collected.flush()
        except RuntimeError:
            # torch.save answers a failed write with an error about its own file position; what failed is the store.
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self.close()  # what is collected after an error goes nowhere


def _read(store: CheckpointStore, name: str) -> StoredCheckpoint:
    manifest = decode_manifest(store.read_manifest(name))
    if (manifest.fence, manifest.step) != _numbers(name)[:2]:
        raise InvalidDocument("its manifest is that of another checkpoint")
    return StoredCheckpoint(store, name, manifest)


def _verify(stream: BinaryIO, expected: Part, uri: str) -> None:
    digest = hashlib.sha256()
    size = 0
    try:
        while size <= expected.size and (chunk := stream.read(_CHUNK)):
            digest.update(chunk)
            size += len(chunk)
    except OSError as error:
        if error.errno in _DAMAGE:
            raise InvalidDocument(f"its part {expected.name} cannot be read: {error.strerror}") from error
        raise StoreUnavailable(f"{uri}, reading {expected.name}: {error.strerror}") from error
    if size != expected.size:
        raise DamagedCheckpoint(f"its part {expected.name} has {size} bytes, not {expected.size}")
    if digest.hexdigest() != expected.sha256:
        raise DamagedCheckpoint(f"its part {expected.name} was altered: its sha256 is not that of the manifest")
    stream.seek(0)


def _numbers(name: str) -> tuple[int, int, int]:
    match = NAME.fullmatch(name)
    assert match is not None, name
    fence, step, time = map(int, match.groups())
    return fence, step, time


def _is_further(name: str, other: str) -> bool:
    """Whether it is of the same fence, of a higher step, and no older, but for how far clocks may be apart.

    An older one is of a training that has gone back, as to the begin of another phase.
    """
    fence, step, time = _numbers(name)
    its_fence, its_step, its_time = _numbers(other)
    return fence == its_fence and step > its_step and time > its_time - SKEW * 1000


def _by_progress(name: str) -> tuple[int, int, int]:
    return _numbers(name)


def _by_time(name: str) -> tuple[int, int]:
    fence, _, time = _numbers(name)
    return fence, time
