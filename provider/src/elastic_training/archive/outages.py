"""Outages of places and stores, shared by all viewers of a page: a silent one is not asked again for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, RunNotFound, StoreUnavailable
from elastic_training.concurrency.newest import Newest

AGAIN = 15.0
"""Seconds for which what was silent is not asked."""
SLOW = 0.5
"""Seconds. A failure that takes less holds nobody up, and is not remembered."""
MOST = 1000
"""Names that are remembered."""


class StillSilent(ClusterUnavailable):
    """It was not asked, because of an outage that is known."""


@dataclass(frozen=True, slots=True)
class _Outage:
    message: str
    until: float


class Outages:
    """For threads and event loops: nothing here blocks."""

    def __init__(self) -> None:
        self._known: Newest[str, _Outage] = Newest(MOST)
        self._lock = threading.Lock()

    @contextmanager
    def asking(self, name: str) -> Iterator[None]:
        """The block asks whatever is called so. What it raises, if that took long, is remembered.

        Not so RunNotFound and InvalidDocument: they are answers, and about one run. A store's words may name files of
        one DAG, so nobody else is told them.

        Raises:
            StillSilent: it has been silent; the block is not entered. Once :data:`AGAIN` is over, one caller
                enters, and the others only after that one has had an answer.
        """
        began = monotonic()
        self._admit(name, began)
        try:
            yield
        except Exception as error:
            if isinstance(error, RunNotFound | InvalidDocument) or monotonic() - began < SLOW:
                self._forget(name)
            elif isinstance(error, StoreUnavailable):
                self._note(name, f"{name} has failed")
            else:
                self._note(name, str(error) or type(error).__name__)
            raise
        self._forget(name)

    def _admit(self, name: str, now: float) -> None:
        with self._lock:
            if (known := self._known.get(name)) is None:
                return
            if now < known.until:
                raise StillSilent(f"{known.message}; it is asked again in {known.until - now:.0f} s")
            self._known[name] = _Outage(known.message, now + AGAIN)

    def _note(self, name: str, message: str) -> None:
        with self._lock:
            self._known[name] = _Outage(message, monotonic() + AGAIN)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._known.pop(name, None)
