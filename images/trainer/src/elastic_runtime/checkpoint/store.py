"""The store interface, and which store an URI means.

A store knows names, parts and fences, but neither what is in a part nor which checkpoint is good: that is
:mod:`elastic_runtime.checkpoint.checkpoints`, the same for every store.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from importlib import import_module
from types import TracebackType
from typing import BinaryIO
from urllib.parse import urlsplit

from elastic_runtime.errors import InvalidSettings

NAME = re.compile(r"ckpt-f([0-9]{1,18})-s([0-9]{1,18})-t([0-9]{1,18})-[0-9a-f]{1,64}")
"""Of a checkpoint: fence, step and time (milliseconds) in it. Whatever else lies beside them is none of ours."""
_STORES = {
    "file": ("elastic_runtime.checkpoint.file", "FileStore", "file:///absolute/path"),
    "s3": ("elastic_runtime.checkpoint.s3", "S3Store", "s3://bucket/prefix"),
}
"""Scheme: module and class of its store (imported when one is opened), and the form of its URIs."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
"""As AWS had them at first, and other servers still have."""


class Draft(AbstractContextManager["Draft"], ABC):
    """A checkpoint on its way into the store. Leaving the context without :meth:`publish` leaves nothing behind."""

    @abstractmethod
    def part(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A write-only stream for one part; durable once its context has ended without an exception.

        Raises:
            StoreUnavailable: also from the stream's ``write``.
        """

    @abstractmethod
    def publish(self, manifest: bytes, fence: int) -> None:
        """Make the checkpoint visible, whole and durable, in one atomic step, and end the draft.

        Raises:
            OwnershipLost: the store has seen a higher fence; nothing was published.
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
    """Of the prefix, without a slash at its end."""

    @abstractmethod
    def claim(self, fence: int) -> None:
        """Have the store remember ``fence``; from now on it refuses writers with a lower one.

        Raises:
            OwnershipLost: it has seen a higher one.
        """

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

    @abstractmethod
    def read_manifest(self, name: str) -> bytes:
        """Its first bytes, one more than a manifest may have where it is longer.

        Raises:
            InvalidDocument: it is missing, no file of one's own, or the medium cannot give it back.
        """

    @abstractmethod
    def open_part(self, name: str, part: str, size: int) -> BinaryIO:
        """A seekable stream for reading, to be closed by the caller.

        Args:
            name: of the checkpoint, as :data:`NAME` has it.
            part: its name, as a manifest that was checked has it.
            size: bytes that it must have; compared before any of it is read.

        Raises:
            InvalidDocument: it is missing, of another size, or no file of one's own.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Unpublish and remove; no error when it is gone already."""

    def close(self) -> None:  # noqa: B027  # most stores hold nothing open
        """Let go of connections; whatever is asked of the store later makes new ones."""


def validate_store_uri(uri: str) -> None:
    """Check that some store knows ``uri``, without touching the store.

    Raises:
        InvalidSettings: of the field ``checkpoint``, naming the schemes that are known.
    """
    _scheme(uri)


def open_store(uri: str) -> CheckpointStore:
    """The store that ``uri`` names; nothing is created or contacted yet.

    Raises:
        InvalidSettings: no store knows it.
    """
    module, name, _ = _STORES[_scheme(uri)]
    store: CheckpointStore = getattr(import_module(module), name)(uri.rstrip("/"))
    return store


def _scheme(uri: str) -> str:
    known = " or ".join(form for _, _, form in _STORES.values())
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InvalidSettings("checkpoint", f"{uri!r} is not a URI ({error})", f"Write {known}") from error
    if parts.scheme not in _STORES:
        problem = f"no checkpoint store knows {uri!r} (known schemes: {', '.join(_STORES)})"
        raise InvalidSettings("checkpoint", problem, f"Write {known}")
    if parts.query or parts.fragment:
        raise InvalidSettings("checkpoint", f"{uri!r} has a query or a fragment", "Leave away what follows ? or #")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or parts.path.strip("/") == ""):
        problem = f"{uri!r} is not the URI of a folder on this machine"
        raise InvalidSettings("checkpoint", problem, "Write file:///absolute/path, with three slashes")
    if parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) is None:
        raise InvalidSettings("checkpoint", f"{uri!r} has no valid name of a bucket", "Write s3://bucket/prefix")
    return parts.scheme
