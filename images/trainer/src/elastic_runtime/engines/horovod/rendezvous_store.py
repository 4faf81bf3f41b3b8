"""Keys and values of the world that forms, and who waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from elastic_runtime.errors import InvalidDocument

LONG_POLL = 2.0
"""Seconds that a GET waits for its key before it is answered 404."""
MAX_KEYS = 256
"""Of one rank, at a time. Horovod needs two in each of six scopes, and as many for every process set that is made."""
MAX_BYTES = 4 * 1024 * 1024
"""Of the values of one rank, at a time."""

Respond = Callable[[int, bytes], None]
"""Answers one request: status and body. May be called from the event loop's thread only."""


@dataclass(slots=True)
class _Scope:
    values: dict[str, tuple[str, bytes]]
    """Owner and value by key."""
    finished: set[str]


class Store:
    """Keys and values by scope, each with the rank that it belongs to. Confined to the event loop."""

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}
        self._waiting: dict[tuple[str, str], list[Respond]] = defaultdict(list)
        self._used: dict[str, tuple[int, int]] = {}
        """Keys and bytes of each rank."""
        self._sizes: dict[str, int] = {}
        self._refused = False

    def begin(self, sizes: dict[str, int]) -> None:
        """A new world: forget all; so many ranks will be done in each of these scopes."""
        self._scopes.clear()
        self._used.clear()
        self._sizes = sizes
        self._refused = False

    def refuse(self) -> None:
        """The present world will never be complete: whoever asks, or waits, for a key is told so."""
        self._refused = True
        for waiting in list(self._waiting.values()):
            while waiting:
                waiting.pop()(410, b"")
        self._waiting.clear()

    def put(self, scope: str, key: str, value: bytes, owner: str) -> None:
        """Store, and answer who waits for it.

        Raises:
            InvalidDocument: the key is another rank's, or this one has stored more than any needs.
        """
        values = self._scopes.setdefault(scope, _Scope({}, set())).values
        if values.get(key, (owner, b""))[0] != owner:
            raise InvalidDocument("the key belongs to another rank")
        keys, size = self._used.get(owner, (0, 0))
        keys, size = keys + (key not in values), size + len(value) - len(values.get(key, (owner, b""))[1])
        if keys > MAX_KEYS or size > MAX_BYTES:
            raise InvalidDocument("the rank has stored too much")
        self._used[owner] = keys, size
        values[key] = (owner, value)
        for respond in self._waiting.pop((scope, key), ()):
            respond(200, value)

    def get(self, scope: str, key: str, respond: Respond, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Answer now, or when it is there, or with 404 after :data:`LONG_POLL`."""
        if self._refused:
            respond(410, b"")
            return
        kept = self._scopes.get(scope)
        found = kept and kept.values.get(key)
        if found:
            respond(200, found[1])
            return
        self._waiting[scope, key].append(respond)

        def give_up() -> None:
            waiting = self._waiting.get((scope, key), [])
            if respond in waiting:
                waiting.remove(respond)
                respond(404, b"")
            if not waiting:
                self._waiting.pop((scope, key), None)

        later(LONG_POLL, give_up)

    def finish(self, scope: str, key: str, owner: str) -> None:
        """That rank is done there; when all are, the scope is emptied. In a scope of no known size, its keys are.

        Raises:
            InvalidDocument: the key is another rank's.
        """
        kept = self._scopes.setdefault(scope, _Scope({}, set()))
        if kept.values.get(key, (owner, b""))[0] != owner:
            raise InvalidDocument("the key belongs to another rank")
        size = self._sizes.get(scope)
        kept.finished.add(owner)  # And not the key: it has two names for itself.
        whole = len(kept.finished) == size
        if whole or size is None:
            for name in [name for name, (by, _) in kept.values.items() if whole or by == owner]:
                by, value = kept.values.pop(name)
                keys, used = self._used[by]
                self._used[by] = keys - 1, used - len(value)
        if not kept.values and (whole or size is None):
            del self._scopes[scope]
