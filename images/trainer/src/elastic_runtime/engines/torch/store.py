"""torch's store of a world, kept in the launcher: no rank listens for it, and no stranger can write there."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store

from elastic_runtime.engines.torch.channel import Channel


class AgentStore(Store):
    """See ``torch.distributed.Store``, which calls these methods from C++, too.

    Args:
        channel: to the session.
        patience: how long to wait for what another rank is to set.
    """

    def __init__(self, channel: Channel, patience: timedelta) -> None:
        super().__init__()
        self._channel, self._patience = channel, patience

    def set(self, key: str, value: str | bytes) -> None:
        """See ``Store``."""
        self._channel.ask("set", key, value=_text(value))

    def get(self, key: str) -> bytes:
        """Waits until it is there."""
        return base64.b64decode(self._channel.ask("get", key, seconds=self._patience.total_seconds()).value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all are there."""
        patience = self._patience if timeout is None else timeout
        self._channel.ask("wait", *keys, seconds=patience.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        return bool(self._channel.ask("check", *keys).number)

    def add(self, key: str, value: int) -> int:
        """Returns the sum."""
        return self._channel.ask("add", key, amount=value).number

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        """Returns what is there then."""
        answer = self._channel.ask("compare_set", key, expected=_text(expected), value=_text(value))
        return base64.b64decode(answer.value)

    def delete_key(self, key: str) -> bool:
        """Whether it was there."""
        return bool(self._channel.ask("delete", key).number)

    def has_extended_api(self) -> bool:
        """No appending, and no several keys at once."""
        return False


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
