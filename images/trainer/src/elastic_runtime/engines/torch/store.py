"""torch's store of a world, kept in the launcher: no rank listens for it, and no stranger can write there."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from typing_extensions import override

from elastic_runtime.engines.torch.channel import Channel
from elastic_runtime.engines.torch.messages import StoreAnswer, excess


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

    @override
    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, value=_text(value))

    def get(self, key: str) -> bytes:
        """Waits until it is there."""
        return base64.b64decode(self._ask("get", key).value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all are there."""
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
        if too_much := excess(keys, value, expected):
            raise ValueError(
                f"{too_much}. It is for addresses and small words: send more by a collective, or in a file"
            )
        seconds = (self._max_wait if max_wait is None else max_wait).total_seconds()
        return self._channel.ask(operation, *keys, seconds=seconds, value=value, expected=expected, **more)


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
