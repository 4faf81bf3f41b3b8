"""What a rank's state talks to: a clock that passes when told, and the agent's end of its link."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_link import (
    AgentWord,
    EngineWord,
    Handover,
    RankLink,
    RankMessage,
    decode_rank_message,
    encode_rank_message,
)


class Clock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


READER_END = 30.0


class Agent:
    """The other end of a rank's link."""

    def __init__(self) -> None:
        self._socket, rank_end = socket.socketpair()
        self.link = RankLink(rank_end)
        self._lines = LineReader()

    def heard(self) -> list[RankMessage]:
        """Everything sent since the last call."""
        messages: list[RankMessage] = []
        while True:
            try:
                data = self._socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            messages += self._decode(data)

    def until(self, kind: type[Any]) -> Any:
        """The next message of this kind; what comes before it is lost."""
        while True:
            data = self._socket.recv(65536)  # as long as it takes: a test has a timeout
            for message in self._decode(data):
                if isinstance(message, kind):
                    return message

    def next_words(self) -> list[Mapping[str, Any]]:
        """What the rank's engine has said, as soon as there is something."""
        return [each.word for each in self._decode(self._socket.recv(65536)) if isinstance(each, EngineWord)]

    def _decode(self, data: bytes) -> list[RankMessage]:
        decoded = [decode_rank_message(plain) for plain in self._lines.feed(data)]
        return [message for message in decoded if message is not None]

    def give_notice(self) -> None:
        self.say(Handover("worker-1", datetime(2026, 11, 21, tzinfo=UTC)))

    def say(self, word: AgentWord) -> None:
        self._socket.sendall(encode_rank_message(word))

    def close(self) -> None:
        self.link.close()
        self._socket.close()
        if reader := self.link._reader:
            reader.join(READER_END)  # It tells the engine of the end, which may look at sockets then.
