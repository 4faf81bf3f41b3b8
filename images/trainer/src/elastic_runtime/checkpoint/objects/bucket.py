"""Interface of a bucket that the store needs, in any cloud."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic_runtime.printable import printable

MOST_LISTED = 10_000
"""Objects that are listed at a time: of ours there are never so many, and somebody else may have put millions there."""
CONNECTIONS = 8
"""Requests at the same time."""
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 10.0
"""Seconds, for a connection and for the next bytes of an answer. Far below libraries' own, which are longer than a
reclaim notice."""
ATTEMPTS = 4
"""At each request, with pauses that double."""
PAGE = 1000
"""Objects in one answer of a listing."""
TAKEN = 1 << 20
"""Bytes handed on at a time."""


class Missing(Exception):
    """There is no such object, or no such upload any more."""


class Changed(Exception):
    """The condition of a write does not hold: the object is another one by now."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a listing."""

    key: str
    age: float
    """Seconds since it was written, all of it by the server's clock."""


class Bucket(ABC):
    """One bucket; connections are made when they are needed. Methods may be called from several threads.

    Keys and words of the server are told in messages as :func:`~elastic_runtime.printable.printable` makes them.

    Every method raises StoreUnavailable when the server does not answer or refuses for a reason that may pass, and
    InvalidSettings when it refuses for good.
    """

    uri: str
    """For messages."""
    senders = CONNECTIONS
    """Pieces of an upload that may be sent at the same time."""
    no_version: str
    """A version that no object has."""
    conditions: tuple[str, str]
    """Server's names for the conditions that an object does not exist, and that it has a version."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections; the next request makes new ones."""

    @abstractmethod
    def get(self, key: str, most: int) -> tuple[bytes, str]:
        """The first so many bytes, and one more where there are more, and the version. Raises Missing."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Bytes of an object. Raises Missing."""

    @abstractmethod
    def read(self, key: str, start: int, stop: int, take: Callable[[bytes], None]) -> None:
        """Hand on the bytes from ``start`` up to ``stop``, piece by piece, and none beyond. Raises Missing."""

    @abstractmethod
    def put(self, key: str, body: bytes | bytearray, *, version: str | None = None, new: bool = False) -> None:
        """Write an object.

        Args:
            key: of the object.
            body: content.
            version: replace only this version. Raises Changed.
            new: write only if there is none. Raises Changed.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; no error when there is none."""

    @abstractmethod
    def objects(self, prefix: str) -> list[Listed]:
        """The objects whose keys begin like this; of more than :data:`MOST_LISTED`, the first ones."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """Return the folders of keys that begin with the prefix: from its last slash to the next one.

        Of more than :data:`MOST_LISTED`, the first ones.
        """

    @abstractmethod
    def begin_upload(self, key: str) -> str:
        """Begin to write an object in pieces; returns the upload's id."""

    @abstractmethod
    def upload_piece(self, key: str, upload: str, number: int, body: bytes | bytearray, *, last: bool) -> Any:
        """Upload one, numbered from 1; returns what :meth:`end_upload` wants of it. Raises Missing.

        All but the last are of a multiple of 256 KiB. With one sender they come in order.
        """

    @abstractmethod
    def end_upload(self, key: str, upload: str, pieces: list[Any]) -> None:
        """Make the object of its pieces. Raises Missing."""

    @abstractmethod
    def abort_upload(self, key: str, upload: str) -> None:
        """Throw the pieces away. Raises Missing."""

    @abstractmethod
    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Key and id of uploads that were begun and not ended, whose key begins like this.

        Of more than :data:`MOST_LISTED`, the first ones; none where the cloud forgets them by itself.
        """


def error_text(error: BaseException) -> str:
    """Return its type, and the reason that the operating system gave."""
    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(seen) < 20:
        each = waiting.pop()
        if not isinstance(each, BaseException) or each in seen:
            continue
        seen.append(each)
        if isinstance(each, OSError) and each.strerror:
            return printable(f"{type(error).__name__}: {each.strerror}")
        waiting += [each.__context__, each.__cause__, *each.args]
        waiting += [getattr(each, name, None) for name in ("reason", "inner_exception")]
    return type(error).__name__
