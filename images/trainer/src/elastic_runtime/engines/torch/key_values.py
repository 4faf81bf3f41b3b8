"""The store of one world, in the launcher: what torch.distributed's ``Store`` promises, as values in and out.

No I/O: an ask is answered at once, or once others have set what it waits for. Values are base64, and are not looked
into, but for those that ``add`` counts with (decimal, as torch's own stores have them).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from elastic_runtime.engines.torch.messages import StoreAnswer, StoreAsk
from elastic_runtime.errors import InvalidDocument

MOST_KEYS = 100_000
MOST_CHARACTERS = 64 << 20
"""Of all values together."""
MOST_WAITING = 64
"""Asks of one rank at a time."""
_LARGEST = 2**63


class KeyValues:
    """See the module."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._characters = 0
        self._waiting: list[tuple[str, StoreAsk]] = []

    def ask(self, rank_id: str, ask: StoreAsk) -> Iterator[tuple[str, StoreAnswer]]:
        """Whom to answer what, now.

        Args:
            rank_id: who asks.
            ask: it.

        Raises:
            InvalidDocument: it cannot be, or is more than is kept.
        """
        if ask.operation in ("get", "wait"):
            if sum(who == rank_id for who, _ in self._waiting) >= MOST_WAITING:
                raise InvalidDocument(f"more than {MOST_WAITING} asks of the store wait")
            self._waiting.append((rank_id, ask))
        elif ask.operation == "give_up":
            self._waiting = [each for each in self._waiting if (each[0], each[1].serial) != (rank_id, ask.serial)]
        else:
            yield rank_id, self._at_once(ask)
        yield from self._answerable()

    def forget(self, rank_id: str) -> None:
        """It has ended: nobody waits there."""
        self._waiting = [(who, ask) for who, ask in self._waiting if who != rank_id]

    def _answerable(self) -> Iterator[tuple[str, StoreAnswer]]:
        still = []
        for who, ask in self._waiting:
            if all(key in self._values for key in ask.keys):
                value = self._values[ask.keys[0]] if ask.operation == "get" else ""
                yield who, StoreAnswer(ask.serial, value)
            else:
                still.append((who, ask))
        self._waiting = still

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
