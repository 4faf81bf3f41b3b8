"""An object into a file: exactly as many bytes as were declared, in several pieces at the same time.

The server is believed in nothing: the size is asked for before, and what comes is counted. A connection that sends a
byte every few seconds never times out; so what has come is compared with the clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

from elastic_runtime.checkpoint.objects.bucket import CONNECTIONS, Bucket
from elastic_runtime.checkpoint.senders import Senders
from elastic_runtime.errors import DamagedCheckpoint, StoreUnavailable

T = TypeVar("T")
PIECE = 16 << 20
"""Bytes of one request."""
TRIES = 5
"""Tries of each piece if a connection breaks in the middle. The client itself retries refusals."""
FIRST_BYTES_TIMEOUT = 120.0
"""Seconds until the first bytes have to be here: some tries of a server that is away for a moment."""
SLOWEST = 128 << 10
"""Bytes a second that have to come from then on, on the average."""
_LOOK = 0.5
"""Seconds between two looks at the clock."""


def download(bucket: Bucket, key: str, file: int, size: int) -> None:
    """Fill a file of which a descriptor is given.

    Args:
        bucket: where.
        key: of the object.
        file: empty; written to until this returns, and not afterwards.
        size: bytes that the object must have.

    Raises:
        DamagedCheckpoint: it has another size.
        Missing: there is no such object.
        StoreUnavailable: the server does not answer, or sends too slowly.
        OSError: of the file.
    """
    found = bucket.size(key)
    if found != size:
        raise DamagedCheckpoint(f"it has {found} bytes, not {size}")
    _Download(bucket, key, file).run(size)


def in_time(work: Callable[[], T], what: str) -> T:
    """Return the result of a short call in a thread, abandoned after :data:`FIRST_BYTES_TIMEOUT`.

    Raises:
        StoreUnavailable: it took longer.
    """
    senders = Senders(1)
    future = senders.submit(work)
    if wait([future], FIRST_BYTES_TIMEOUT).not_done:
        senders.leave()
        raise StoreUnavailable(f"{what}: the server sends too slowly")
    senders.close()
    return future.result()


class _Download:
    def __init__(self, bucket: Bucket, key: str, file: int) -> None:
        self._bucket, self._key, self._file = bucket, key, file
        self._lock = threading.Lock()
        self._come = 0
        self._over = False

    def run(self, size: int) -> None:
        senders = Senders(min(CONNECTIONS, -(-size // PIECE)))
        pieces = [
            senders.submit(partial(self._piece, start, min(start + PIECE, size))) for start in range(0, size, PIECE)
        ]
        in_time = False
        try:
            in_time = self._wait(pieces)
        finally:
            with self._lock:  # from now on the descriptor may be somebody else's
                self._over = True
            for piece in pieces:
                piece.cancel()
            # One that hangs on its connection holds a thread, until the process ends or the server lets go.
            (senders.close if in_time else senders.leave)()
        if not in_time:
            raise StoreUnavailable(f"{self._bucket.uri}, reading {self._key}: the server sends too slowly")

    def _wait(self, pieces: list[Future[None]]) -> bool:
        """Whether all is here; False when it is not and should be. Raises what a piece has failed with."""
        started = time.monotonic()
        for piece in pieces:
            while wait([piece], _LOOK).not_done:
                if time.monotonic() - started > FIRST_BYTES_TIMEOUT + self._come / SLOWEST:
                    return False
            piece.result()
        return True

    def _piece(self, start: int, stop: int) -> None:
        done = start

        def take(data: bytes) -> None:
            nonlocal done
            with self._lock:
                if self._over:
                    raise StoreUnavailable("given up")
                os.pwrite(self._file, data, done)
                self._come += len(data)
            done += len(data)

        for attempt in range(1, TRIES + 1):
            try:
                self._bucket.read(self._key, done, stop, take)
                return
            except StoreUnavailable:
                if self._over or attempt == TRIES or done == start:
                    raise
