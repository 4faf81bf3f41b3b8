"""torch's store of a world, kept in the launcher: no rank listens for it, and no stranger can write there."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from typing_extensions import override

from elastic_runtime.engines.torch.channel import Channel
from elastic_runtime.engines.torch.messages import StoreAnswer, excess

AHEAD = 32
"""Values that one rank waits for at a time; the launcher lets it wait for 64."""


class AgentStore(Store):
    """A ``torch.distributed.Store``, whose methods are also called from C++.

    Each raises ValueError for what is more than the store takes, and TimeoutError without an answer.

    Args:
        channel: to the session.
        max_wait: how long to wait for an answer, and for what another rank is to set.
    """

    def __init__(self, channel: Channel, max_wait: timedelta) -> None:
        super().__init__()
        self._channel, self._max_wait = channel, max_wait
        self._ahead: _Ahead | None = None

    @contextlib.contextmanager
    def connecting(self, rank: int, size: int) -> Iterator[None]:
        """While groups of the whole world connect: nobody waits for an answer to what is set.

        What each rank sets under its number, as ``NAME/RANK``, is asked for of the next :data:`AHEAD` others as soon as
        one is: Gloo asks for one after the other, and each answer takes a way to the launcher and back.
        """
        self._ahead = _Ahead(self._channel, rank, size, self._max_wait.total_seconds())
        try:
            yield
        finally:
            self._ahead = None

    @override
    def set(self, key: str, value: str | bytes) -> None:
        if self._ahead is not None:
            _check([key], _text(value))
            self._channel.begin("set", key, value=_text(value))
        else:
            self._ask("set", key, value=_text(value))

    def get(self, key: str) -> bytes:
        """Waits until it is there."""
        if self._ahead is not None:
            return base64.b64decode(self._ahead.get(key))
        return base64.b64decode(self._ask("get", key).value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all are there."""
        if self._ahead is not None:
            for key in keys:
                self._ahead.get(key)
        else:
            self._ask("wait", *keys, max_wait=timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        return bool(self._ask("check", *keys).number)

    def add(self, key: str, value: int) -> int:
        """Add to the number, and return the sum."""
        return self._ask("add", key, amount=value).number

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        """Returns what is there then."""
        return base64.b64decode(self._ask("compare_set", key, expected=_text(expected), value=_text(value)).value)

    def delete_key(self, key: str) -> bool:
        """Whether it was there."""
        return bool(self._ask("delete", key).number)

    def has_extended_api(self) -> bool:
        """No appending, and no several keys at once."""
        return False

    def _ask(
        self,
        operation: str,
        *keys: str,
        value: str = "",
        expected: str = "",
        max_wait: timedelta | None = None,
        **more: Any,
    ) -> StoreAnswer:
        _check(keys, value, expected)
        seconds = (self._max_wait if max_wait is None else max_wait).total_seconds()
        return self._channel.ask(operation, *keys, seconds=seconds, value=value, expected=expected, **more)


class _Ahead:
    """Values that other ranks set under their numbers, asked for before they are wanted."""

    def __init__(self, channel: Channel, rank: int, size: int, seconds: float) -> None:
        self._channel, self._rank, self._size, self._seconds = channel, rank, size, seconds
        self._asked: dict[str, int] = {}
        self._values: dict[str, str] = {}

    def get(self, key: str) -> str:
        """Base64. Gloo waits for a key, and gets it then."""
        if key not in self._values:
            for each in self._next(key):
                if each not in self._asked:
                    _check([each])
                    self._asked[each] = self._channel.begin("get", each)
            self._values[key] = self._channel.answer(self._asked[key], self._seconds).value
        return self._values[key]

    def _next(self, key: str) -> list[str]:
        name, _, number = key.rpartition("/")
        if key in self._asked or not (number.isdecimal() and self._rank != int(number) < self._size):
            return [key]
        ranks = range(int(number), min(int(number) + AHEAD, self._size))
        return [f"{name}/{rank}" for rank in ranks if rank != self._rank]


def _check(keys: Sequence[str], value: str = "", expected: str = "") -> None:
    if too_much := excess(keys, value, expected):
        raise ValueError(f"{too_much}. It is for addresses and small words: send more by a collective, or in a file")


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
