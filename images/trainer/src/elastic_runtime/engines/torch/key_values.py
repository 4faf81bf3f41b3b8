"""The store of one world, in the launcher: what torch.distributed's ``Store`` promises, as values in and out.

No I/O: an ask is answered at once, or once others have set what it waits for. Values are base64, and are not looked
into, but for those that ``add`` counts with (decimal, as torch's own stores have them).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from elastic_runtime.engines.torch.messages import StoreAnswer, StoreAsk
from elastic_runtime.errors import InvalidDocument

MOST_KEYS = 100_000
MOST_CHARACTERS = 64 << 20
"""Characters of all values together."""
MOST_WAITING = 64
"""Asks of one rank at a time."""
_LARGEST = 2**63


@dataclass(frozen=True, slots=True)
class _Waiting:
    """For keys that others are to set."""

    rank_id: str
    ask: StoreAsk
    at: int = 0
    """Of its keys, those before this one were there when it was looked at last."""


class KeyValues:
    """Values of one world by key, with the operations that wait for them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._characters = 0
        self._waiting: dict[int, _Waiting] = {}
        self._for_key: dict[str, set[int]] = {}
        """Of each key that is not there, who waits for it: to look at all of them took 58 ms an ask."""
        self._count = 0

    def ask(self, rank_id: str, ask: StoreAsk) -> Iterator[tuple[str, StoreAnswer]]:
        """Whom to answer what, now.

        Args:
            rank_id: who asks.
            ask: it.

        Raises:
            InvalidDocument: it cannot be, or is more than is kept.
        """
        if ask.operation in ("get", "wait"):
            if sum(each.rank_id == rank_id for each in self._waiting.values()) >= MOST_WAITING:
                raise InvalidDocument(f"more than {MOST_WAITING} asks of the store wait")
            self._count += 1
            yield from self._look(self._count, _Waiting(rank_id, ask))
        elif ask.operation == "give_up":
            self._drop(lambda each: (each.rank_id, each.ask.serial) == (rank_id, ask.serial))
        else:
            yield rank_id, self._at_once(ask)
            for number in sorted(self._for_key.pop(ask.keys[0], ())) if ask.keys[0] in self._values else ():
                if (waiting := self._waiting.pop(number, None)) is not None:
                    yield from self._look(number, waiting)

    def forget(self, rank_id: str) -> None:
        """It has ended: nobody waits there."""
        self._drop(lambda each: each.rank_id == rank_id)

    def _look(self, number: int, waiting: _Waiting) -> Iterator[tuple[str, StoreAnswer]]:
        """Answer, or have it wait for the first of its keys that is not there."""
        ask = waiting.ask
        missing = self._missing(ask.keys, waiting.at)
        if missing is None and waiting.at:
            missing = self._missing(ask.keys, 0)  # One may have been deleted meanwhile.
        if missing is None:
            value = self._values[ask.keys[0]] if ask.operation == "get" else ""
            yield waiting.rank_id, StoreAnswer(ask.serial, value)
        else:
            self._waiting[number] = replace(waiting, at=missing)
            self._for_key.setdefault(ask.keys[missing], set()).add(number)

    def _missing(self, keys: Sequence[str], begin: int) -> int | None:
        return next((index for index in range(begin, len(keys)) if keys[index] not in self._values), None)

    def _drop(self, which: Callable[[_Waiting], bool]) -> None:
        gone = {number for number, each in self._waiting.items() if which(each)}
        for number in gone:
            del self._waiting[number]
        for key in [key for key, numbers in self._for_key.items() if numbers & gone]:
            self._for_key[key] -= gone
            if not self._for_key[key]:
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
