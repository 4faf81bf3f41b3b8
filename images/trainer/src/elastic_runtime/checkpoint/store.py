"""The store interface, and which store an URI means.

A store knows names, parts and fences, but neither what is in a part nor which checkpoint is good: that is
:mod:`elastic_runtime.checkpoint.checkpoints`, the same for every store.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import TracebackType
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from elastic_runtime.errors import FenceTaken, InvalidSettings, OwnershipLost
from elastic_runtime.printable import printable

NAME = re.compile(r"ckpt-f([0-9]{1,18})-s([0-9]{1,18})-t([0-9]{1,18})-[0-9a-f]{1,64}")
"""Pattern of a checkpoint's name, with fence, step and time in milliseconds. All other files are foreign."""
GROUP = "elastic_runtime.checkpoint_stores"
"""Group of entry points by which other distributions add stores: the scheme, and a function that creates the store of
a URI, given it and the credentials as :func:`open_store` has them."""
_OWN = {
    "file": ("elastic_runtime.checkpoint.file:FileStore", "file:///absolute/path"),
    "s3": ("elastic_runtime.checkpoint.s3:S3Store", "s3://bucket/prefix"),
    "gs": ("elastic_runtime.checkpoint.gcs:GcsStore", "gs://bucket/prefix"),
    "az": ("elastic_runtime.checkpoint.azure:AzureStore", "az://container/prefix"),
    "abfs": ("elastic_runtime.checkpoint.azure:AzureStore", "abfs://container@account.dfs.core.windows.net/prefix"),
}
"""Scheme: its store (imported when one is opened), and the form of its URIs."""
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
"""What others call them."""
FILE = re.compile(r"[a-z][a-z0-9-]{0,30}/[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Pattern of a file beside the checkpoints: a folder, and a name in it."""
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no URI has, encoded or not: system calls, headers and logs do not take them."""
_CONTAINER = r"(?:[a-z0-9](?:-?[a-z0-9]){2,62}|\$root|\$web)"
_BUCKETS = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(_CONTAINER),
    "abfs": re.compile(_CONTAINER + r"(?:@[a-z0-9]{3,24}\.(?:dfs|blob)\.core\.[a-z.]{1,40})?"),
}
"""What stands before the prefix. Of S3's, names as AWS had them at first, and other servers still have."""


class Contribution(AbstractContextManager[Any], ABC):
    """Part of an unpublished checkpoint that one process writes."""

    @abstractmethod
    def part(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A write-only stream for one part; durable once its context has ended without an exception.

        A draft's may be durable as late as when that is published.

        Raises:
            StoreUnavailable: also from the stream's ``write``.
        """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep what was written, for the process that began the draft."""
        return


class Draft(Contribution):
    """A checkpoint on its way into the store. Leaving the context without :meth:`publish` leaves nothing behind."""

    def read(self, name: str, most: int) -> bytes | None:  # noqa: ARG002  # for stores that can be joined
        """A small part that another process has brought, whole; None: it is not there yet.

        Args:
            name: of the part.
            most: bytes; of a longer one, one byte more.
        """
        return None

    def alongside(self, work: Callable[[], None]) -> None:
        """Have it done before :meth:`publish` makes the checkpoint visible: now, unless requests can overlap.

        Args:
            work: writes something beside the checkpoint; raises nothing.
        """
        work()

    @abstractmethod
    def publish(self, manifest: bytes, fence: int, owner: str = "") -> None:
        """Make the checkpoint visible, whole and durable, in one atomic step, and end the draft.

        Raises:
            OwnershipLost: the store has seen a higher fence, or this one of another owner; nothing was published.
            StoreUnavailable: nothing was published.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove what was written. Nothing to do after :meth:`publish`; never raises."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


class CheckpointStore(ABC):
    """One run's prefix in a place that outlives it.

    Every method may raise StoreUnavailable.
    """

    uri: str
    """URI of the prefix, without a slash at its end."""
    _claimed_beside: tuple[int, str] | None = None

    @abstractmethod
    def claim(self, fence: int, owner: str = "") -> None:
        """Have the store remember ``fence``; from now on it refuses writers with a lower one.

        Args:
            fence: of the writer.
            owner: its run, as :data:`~elastic_runtime.checkpoint.fence.OWNER` has it; empty: not known. Another run
                with the same fence is refused.

        Raises:
            OwnershipLost: it has seen a higher one, or this one of another owner.
        """

    def claim_beside(self, fence: int, owner: str) -> None:
        """Claim it before files beside the checkpoints are written, whose names hold the fence, and not the run.

        A newer owner is no hindrance: its files have other names. Without an owner nothing is claimed, and what this
        object has claimed is not claimed again.

        Raises:
            FenceTaken: they would be mixed with those of another run.
        """
        if not owner or self._claimed_beside == (fence, owner):
            return
        try:
            self.claim(fence, owner)
        except FenceTaken:
            raise
        except OwnershipLost:
            pass
        self._claimed_beside = fence, owner

    def prepare(self) -> None:  # noqa: B027  # most stores have nothing to prepare
        """Have ready what the first write needs, so that it does not have to wait in a moment of haste."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the published checkpoints, as :data:`NAME` has them, in no order.

        Empty when there is no such prefix yet.
        """

    @abstractmethod
    def begin(self, name: str) -> Draft:
        """Start to write a checkpoint; also removes what writers that died left unpublished."""

    def join(self, name: str) -> Contribution | None:
        """Bring parts to a checkpoint that another process has begun; None: it has not done so yet.

        Raises:
            InvalidSettings: in this store, one process writes a checkpoint.
        """
        problem = f"the store of {self.uri} takes no checkpoint from several ranks ({name})"
        raise InvalidSettings("checkpoint", problem, "Use one that does, or a state that rank 0 has whole")

    @abstractmethod
    def read_manifest(self, name: str) -> bytes:
        """Its first bytes, one more than a manifest may have where it is longer.

        Raises:
            DamagedCheckpoint: it is missing.
            InvalidDocument: it is no file of one's own, or the medium says that it is damaged.
        """

    @abstractmethod
    def open_part(self, name: str, part: str, size: int) -> BinaryIO:
        """A seekable stream for reading, to be closed by the caller.

        Args:
            name: of the checkpoint, as :data:`NAME` has it.
            part: its name, as a manifest that was checked has it.
            size: bytes that it must have; compared before any of it is read.

        Raises:
            DamagedCheckpoint: it is missing, or of another size.
            InvalidDocument: it is no file of one's own, or the medium says that it is damaged.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Unpublish and remove; no error when it is gone already."""

    def write_file(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A write-only stream of a file beside the checkpoints, such as a trace; no fence guards it.

        It replaces one of that name, whole, when the context ends without an exception; and never appears otherwise.

        Args:
            name: as :data:`FILE` has it.

        Raises:
            InvalidSettings: this store keeps nothing but checkpoints.
            StoreUnavailable: also from the stream's ``write``.
        """
        raise self._only_checkpoints(name)

    def open_beside(self, name: str, most: int) -> BinaryIO:  # noqa: ARG002  # for stores that keep files
        """A seekable stream for reading such a file, to be closed by the caller.

        Args:
            name: as :data:`FILE` has it.
            most: bytes; compared before any of it is read.

        Raises:
            InvalidDocument: it is missing, larger, or no file of one's own.
            InvalidSettings: this store keeps nothing but checkpoints.
        """
        raise self._only_checkpoints(name)

    def files(self, folder: str) -> list[str]:
        """Names, as :data:`FILE` has them, of the files in that folder beside the checkpoints, in no order.

        Empty when there is no such folder.
        """
        return list(self.ages(folder))

    def ages(self, folder: str) -> dict[str, float]:
        """Seconds since each of these files was written, by the clock of the place."""
        raise self._only_checkpoints(folder)

    def delete_file(self, name: str) -> None:
        """Remove such a file; no error when there is none."""
        raise self._only_checkpoints(name)

    def _only_checkpoints(self, name: str) -> InvalidSettings:
        return InvalidSettings(
            "checkpoint", f"the store of {self.uri} keeps checkpoints, and not {name}", "Use one that keeps files"
        )

    def close(self) -> None:  # noqa: B027  # most stores hold nothing open
        """Let go of connections; whatever is asked of the store later makes new ones."""


def validate_store_uri(uri: str, field: str = "checkpoint") -> None:
    """Check that some store knows ``uri``, without importing it: its library need not be installed here.

    Args:
        uri: of a store.
        field: for the error.

    Raises:
        InvalidSettings: with the schemes that are known.
    """
    _scheme(uri, field)


def has_plain_host(uri: str) -> bool:
    """Whether there is nothing in the host's place of this URI that may be a secret, as a user or password."""
    parts = urlsplit(uri)
    return "@" not in parts.netloc or (parts.scheme == "abfs" and bool(_BUCKETS["abfs"].fullmatch(parts.netloc)))


def open_store(uri: str, credentials: Mapping[str, str] | None = None) -> CheckpointStore:
    """The store that ``uri`` names; nothing is created or contacted yet.

    Args:
        uri: of the store.
        credentials: variables in which the store finds endpoint and credentials; None: those of this process.

    Raises:
        InvalidSettings: no store knows it, or its package cannot be imported.
    """
    scheme = _scheme(uri, "checkpoint")
    found = EntryPoint(scheme, _OWN[scheme][0], GROUP) if scheme in _OWN else _others()[scheme]
    try:
        make = found.load()
    except (ImportError, AttributeError) as error:
        problem = f"the store of {scheme}:// ({found.value}) cannot be imported: {error}"
        raise InvalidSettings("checkpoint", problem, "Repair or remove the package that brings it") from error
    store: CheckpointStore = make(uri.rstrip("/"), credentials)
    return store


@cache
def _others() -> dict[str, EntryPoint]:
    """By scheme; of two of one scheme the first that Python finds."""
    return {each.name: each for each in reversed(tuple(entry_points(group=GROUP)))}


def _scheme(uri: str, field: str) -> str:
    known = " or ".join(form for _, form in _OWN.values())
    if _UNFIT.search(_decoded(uri)):
        problem = f"{printable(repr(uri))} has a control character, or one that no encoding has"
        raise InvalidSettings(field, problem, f"Write {known}")
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidSettings(field, f"{uri!r} is not a URI ({error})", f"Write {known}") from error
    scheme = parts.scheme
    if scheme not in _OWN and scheme not in _others():
        raise InvalidSettings(field, f"no checkpoint store handles {uri!r}", _instead(scheme, known))
    if parts.query or parts.fragment:
        raise InvalidSettings(field, f"{uri!r} has a query or a fragment", "Leave away what follows ? or #")
    if _climbs(parts.path):
        problem = f"{uri!r} has a part that is . or .., which leads out of its folder"
        raise InvalidSettings(field, problem, "Write the folder or prefix itself; check what a template has put there")
    if scheme == "file" and (parts.netloc not in ("", "localhost") or parts.path.strip("/") == ""):
        problem = f"{uri!r} is not the URI of a folder on this machine"
        raise InvalidSettings(field, problem, "Write file:///absolute/path, with three slashes")
    if scheme in _BUCKETS and _BUCKETS[scheme].fullmatch(parts.netloc) is None:
        raise InvalidSettings(field, f"{uri!r} has no valid name of a bucket", f"Write {_OWN[scheme][1]}")
    return scheme


def _climbs(path: str) -> bool:
    """Whether a part is ``.`` or ``..``, however often it is percent-encoded: some server or library decodes it."""
    return any(part.strip() in (".", "..") for part in re.split(r"[/\\]", _decoded(path)))


def _decoded(text: str) -> str:
    """Text without percent-encoding, however often it is encoded."""
    while (decoded := unquote(text)) != text:
        text = decoded
    return text


def _instead(scheme: str, known: str) -> str:
    if ours := _ALIASES.get(scheme):
        return f"Write {_OWN[ours][1]}"
    if others := sorted(_others()):
        known += f" or {' or '.join(f'{other}://…' for other in others)}"
    if not scheme:
        return f"Write {known}"
    return f"Write {known}, or install the package that brings a store for {scheme}://, here and where the ranks run"
