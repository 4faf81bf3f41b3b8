"""The store of one world, in the launcher: what torch.distributed's ``Store`` promises, as values in and out.

No I/O: an ask is answered at once, or once others have set what it waits for. Values are base64, and are not looked
into, but for those that ``add`` counts with (decimal, as torch's own stores have them).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

from elastic_runtime.engines.torch.messages import StoreAnswer, StoreAsk
from elastic_runtime.errors import InvalidDocument

MOST_KEYS = 100_000
MOST_CHARACTERS = 64 << 20
"""Characters of all values together."""
MOST_WAITING = 64
"""Asks of one rank at a time."""
MOST_WAITED = 20_000
"""Keys of all of them together: of three of the longest, or of any number of usual ones."""
_LARGEST = 2**63


@dataclass(slots=True, eq=False)
class _Waiting:
    """For keys that others are to set."""

    rank_id: str
    ask: StoreAsk
    keys: frozenset[str]
    missing: int
    """How many of its keys are not there."""


class KeyValues:
    """Values of one world by key, with the operations that wait for them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._characters = 0
        self._waiting: dict[str, dict[int, _Waiting]] = {}
        """By rank, and by serial: an ask must not cost what others wait for."""
        self._keys_waited: dict[str, int] = {}
        """By rank, of all that it waits for."""
        self._for_key: dict[str, dict[_Waiting, None]] = {}
        """Who waits for each key, whether that is there or not, in the order of coming."""

    def ask(self, rank_id: str, ask: StoreAsk) -> Iterator[tuple[str, StoreAnswer]]:
        """Whom to answer what, now.

        Args:
            rank_id: who asks.
            ask: it.

        Raises:
            InvalidDocument: it cannot be, or is more than is kept.
        """
        if ask.operation in ("get", "wait"):
            yield from self._wait(rank_id, ask)
        elif ask.operation == "give_up":
            if (waiting := self._waiting.get(rank_id, {}).get(ask.serial)) is not None:
                self._drop(waiting)
        else:
            key = ask.keys[0]
            before = key in self._values
            yield rank_id, self._at_once(ask)
            if (key in self._values) is not before:
                yield from self._changed(key, 1 if before else -1)

    def forget(self, rank_id: str) -> None:
        """It has ended: nobody waits there."""
        for waiting in tuple(self._waiting.get(rank_id, {}).values()):
            self._drop(waiting)

    def _wait(self, rank_id: str, ask: StoreAsk) -> Iterator[tuple[str, StoreAnswer]]:
        present, keys = self._waiting.get(rank_id, {}), frozenset(ask.keys)
        if len(present) >= MOST_WAITING or ask.serial in present:
            raise InvalidDocument(f"more than {MOST_WAITING} asks of the store wait, or two of one serial")
        waited = self._keys_waited.get(rank_id, 0) + len(keys)
        if present and waited > MOST_WAITED:
            raise InvalidDocument(f"a rank waits for more than {MOST_WAITED} keys of the store")
        waiting = _Waiting(rank_id, ask, keys, sum(key not in self._values for key in keys))
        if not waiting.missing:
            yield self._answer(waiting)
            return
        self._waiting.setdefault(rank_id, {})[ask.serial] = waiting
        self._keys_waited[rank_id] = waited
        for key in keys:
            self._for_key.setdefault(key, {})[waiting] = None

    def _changed(self, key: str, more_missing: int) -> Iterator[tuple[str, StoreAnswer]]:
        """Update the count of missing keys of the waits for this key, and answer those that are complete."""
        complete = []
        for waiting in self._for_key.get(key, ()):
            waiting.missing += more_missing
            if not waiting.missing:
                complete.append(waiting)
        for waiting in complete:
            self._drop(waiting)
            yield self._answer(waiting)

    def _answer(self, waiting: _Waiting) -> tuple[str, StoreAnswer]:
        ask = waiting.ask
        return waiting.rank_id, StoreAnswer(ask.serial, self._values[ask.keys[0]] if ask.operation == "get" else "")

    def _drop(self, waiting: _Waiting) -> None:
        rank_id = waiting.rank_id
        del self._waiting[rank_id][waiting.ask.serial]
        self._keys_waited[rank_id] -= len(waiting.keys)
        if not self._waiting[rank_id]:
            del self._waiting[rank_id], self._keys_waited[rank_id]
        for key in waiting.keys:
            of_key = self._for_key[key]
            del of_key[waiting]
            if not of_key:
                del self._for_key[key]

    def _at_once(self, ask: StoreAsk) -> StoreAnswer:
        key = ask.keys[0]
        match ask.operation:
            case "set":
                self._set(key, ask.value)
            case "add":
                total = _number(self._values.get(key, "")) + ask.amount
                if abs(total) >= _LARGEST:
                    raise InvalidDocument("a number of the store does not have 64 bits")
                self._set(key, base64.b64encode(str(total).encode()).decode())
                return StoreAnswer(ask.serial, number=total)
            case "check":
                return StoreAnswer(ask.serial, number=int(all(each in self._values for each in ask.keys)))
            case "delete":
                known = key in self._values
                self._characters -= len(self._values.pop(key, ""))
                return StoreAnswer(ask.serial, number=int(known))
            case "compare_set":
                # As torch's HashStore: a key that is not there is set where nothing is expected.
                if self._values.get(key, "") == ask.expected:
                    self._set(key, ask.value)
                return StoreAnswer(ask.serial, self._values.get(key, ask.expected))
        return StoreAnswer(ask.serial)

    def _set(self, key: str, value: str) -> None:
        characters = self._characters + len(value) - len(self._values.get(key, ""))
        if characters > MOST_CHARACTERS or (key not in self._values and len(self._values) == MOST_KEYS):
            raise InvalidDocument(f"the store is full: {len(self._values)} keys")
        self._values[key], self._characters = value, characters


def _number(value: str) -> int:
    try:
        decimal = base64.b64decode(value, validate=True)
        if len(decimal) <= len(str(-_LARGEST)):
            return int(decimal or b"0")
    except ValueError:
        pass
    raise InvalidDocument("what is added to in the store is not a number of 64 bits")
