"""A stream into one object: cut into pieces that are uploaded at the same time, while the next is being written."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from elastic_runtime.checkpoint.objects.bucket import CONNECTIONS, Bucket, Missing
from elastic_runtime.checkpoint.senders import Senders
from elastic_runtime.errors import ElasticError, StoreUnavailable

PIECE = 16 << 20
"""Bytes. S3 wants at least 5 MiB, Google Cloud Storage a multiple of 256 KiB, and all of them so much that a connection
does not wait for its own answers."""
_LEVEL = 2500
"""Pieces of one size. S3 takes at most 10,000: four levels, each of four times the size, hold 3.3 TiB."""


def piece_size(number: int) -> int:
    """Bytes of the piece with this number, from 1, unless it is the last."""
    size: int = PIECE * 4 ** ((number - 1) // _LEVEL)
    return size


class Upload(io.RawIOBase):
    """A write-only stream. What is at most one piece becomes a plain PUT.

    At most :data:`CONNECTIONS` + 1 pieces are in memory; their buffers are used again and again.

    Args:
        bucket: where.
        key: as what.
        senders: upload the pieces; not owned.
        touch: called with every piece that was uploaded, in any thread.
        before: called before anything of it is in the bucket.
    """

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        senders: Senders,
        touch: Callable[[], None],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._bucket = bucket
        self._key = key
        self._senders = senders
        self._touch = touch
        self._before = before
        self._upload: str | None = None
        self._pieces: list[Future[Any]] = []
        self._buffer = bytearray()
        self._filled = 0
        self._idle: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._buffers = 1
        self._given_up = threading.Event()

    def writable(self) -> bool:
        """Return True, as Python's stream protocol requires of a stream that takes data."""
        return True

    def write(self, data: Any, /) -> int:
        """Accept all of the data, and block while all connections are busy. Raise the error of a failed upload."""
        with memoryview(data) as view, view.cast("B") as rest:
            done = 0
            while done < len(rest):
                size = piece_size(len(self._pieces) + 1)
                if self._filled == size:
                    self._send()
                    continue
                count = min(len(rest) - done, size - self._filled)
                if there := len(self._buffer) - self._filled:  # A buffer that is used again.
                    count = min(count, there)
                    self._buffer[self._filled : self._filled + count] = rest[done : done + count]
                else:
                    self._buffer += rest[done : done + count]
                self._filled += count
                done += count
            return done

    @property
    def is_small(self) -> bool:
        """Whether it is one piece so far, which :meth:`commit` sends whole."""
        return self._upload is None

    def commit(self) -> None:
        """Make the object of what was written. Raises StoreUnavailable and the like; then call :meth:`abort`."""
        if self._upload is None:
            self._before()
            self._bucket.put(self._key, self._last())
            return
        if self._filled:
            self._send(last=True)
        pieces = [piece.result() for piece in self._pieces]
        try:
            self._bucket.end_upload(self._key, self._upload, pieces)
        except Missing as error:
            raise _abandoned(self._key) from error
        self._upload = None

    def abort(self) -> None:
        """Leave nothing of it, after :meth:`commit` nothing to do. Raises StoreUnavailable and the like."""
        self._given_up.set()
        for piece in self._pieces:
            piece.cancel()
        # A piece that arrives after its upload was given up would stay, and be paid for.
        for piece in self._pieces:
            if not piece.cancelled():
                piece.exception()
        if self._upload is not None:
            upload, self._upload = self._upload, None
            try:
                self._bucket.abort_upload(self._key, upload)
            except Missing:
                return

    def _last(self) -> bytearray:
        del self._buffer[self._filled :]
        return self._buffer

    def _send(self, *, last: bool = False) -> None:
        if self._upload is None:
            self._before()
            self._upload = self._bucket.begin_upload(self._key)
        self._check()
        piece = partial(self._send_piece, self._upload, len(self._pieces) + 1, self._last(), last)
        self._pieces.append(self._senders.submit(piece))
        self._filled = 0
        self._buffer = self._next_buffer()

    def _next_buffer(self) -> bytearray:
        if self._buffers <= CONNECTIONS:
            self._buffers += 1
            return bytearray()
        buffer = self._idle.get()
        self._check()
        return buffer

    def _send_piece(self, upload: str, number: int, body: bytearray, last: bool) -> Any:
        try:
            if self._given_up.is_set():
                raise StoreUnavailable(f"the upload of {self._key} was given up")
            piece: Any = self._bucket.upload_piece(self._key, upload, number, body, last=last)
            self._touch()
            return piece
        except Missing as error:
            raise _abandoned(self._key) from error
        finally:
            self._idle.put(body)

    def _check(self) -> None:
        for piece in self._pieces:
            if piece.done() and (error := piece.exception()) is not None:
                self._given_up.set()
                raise cast(ElasticError, error)


def _abandoned(key: str) -> StoreUnavailable:
    return StoreUnavailable(f"somebody has removed the unfinished {key}, as if its writer were dead")
