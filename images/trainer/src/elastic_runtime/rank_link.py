"""The line between a rank and the agent that started it: JSON lines over a socket pair that the rank inherits.

The agent puts the rank's end into the environment variable :data:`RANK_FD`. A rank that does not use it is fine. No
thread: the rank sends when it has something to say and looks for words of the agent at its commits.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from elastic_runtime import messages
from elastic_runtime.framing import LineReader

RANK_FD = "ELASTIC_RUNTIME_RANK_FD"
"""File descriptor of the rank's end."""
CHECKPOINT = "ELASTIC_RUNTIME_CHECKPOINT"
"""The run's :class:`~elastic_runtime.spec.CheckpointSpec` as JSON; unset when the run keeps no durable checkpoints."""
RUN_NAME = "ELASTIC_RUNTIME_RUN"
"""Name of the run."""
WORKER_NAME = "ELASTIC_RUNTIME_WORKER"
"""Name of the worker that the rank runs on."""
SLOT = "ELASTIC_RUNTIME_SLOT"
"""Index of the rank's slot in its worker, from 0; with several slots, CUDA_VISIBLE_DEVICES names its GPU alone."""

PEER_SILENCE = "ELASTIC_RUNTIME_PEER_SILENCE"
"""Seconds after which a rank whose machine does not answer any more is given up by the others."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The global step up to which training has committed. Sent by rank 0, at most a few times a second."""

    step: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """Values for people and for the next task, newest wins."""

    values: Mapping[str, float]
    step: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A durable checkpoint is complete and published."""

    uri: str
    step: int
    time: datetime
    handover: bool
    """Written because of a notice."""
    seconds: float
    """From its start to its publication."""


@dataclass(frozen=True, slots=True)
class CheckpointSkipped:
    """A torn or altered checkpoint was passed over when looking for one to resume from."""

    uri: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A durable checkpoint could not be written; training goes on."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """Rank 0 loaded this durable checkpoint before the first step."""

    uri: str
    step: int


RankMessage = Progress | Metrics | CheckpointWritten | CheckpointSkipped | CheckpointFailed | Resumed
_OF_RANKS: messages.Vocabulary[RankMessage] = messages.Vocabulary(RankMessage)


@dataclass(frozen=True, slots=True)
class HandoverWanted:
    """Agent to rank: some worker of the run will be taken; have a durable checkpoint before the deadline."""

    worker: str
    """Who leaves."""
    deadline: datetime


@dataclass(frozen=True, slots=True)
class LastCommitBy:
    """Agent to rank: every worker of the world will be taken; stop at a commit that is durable by then."""

    deadline: datetime | None
    """Of the first of them; of the keeper, if one is named. None takes it back: some will stay."""
    keeper: str = ""
    """While ranks wait for a world: the rank, by its id, that is to make its last commit durable."""


AgentWord = HandoverWanted | LastCommitBy
_OF_AGENTS: messages.Vocabulary[AgentWord] = messages.Vocabulary(AgentWord)
_OF_BOTH: messages.Vocabulary[RankMessage | AgentWord] = messages.Vocabulary(RankMessage | AgentWord)


def encode_rank_message(message: RankMessage | AgentWord) -> bytes:
    """One line."""
    return _OF_BOTH.write(message)


def decode_rank_message(plain: Mapping[str, object]) -> RankMessage | None:
    """None for a type that this version does not know. Raises InvalidDocument."""
    return _OF_RANKS.read(plain)


class RankLink:
    """The rank's end, which the training and the writer of checkpoints share.

    Args:
        sock: connected stream socket; owned from now on. None: nobody listens.
    """

    def __init__(self, sock: socket.socket | None) -> None:
        self._socket, self._sending, self._lines = sock, threading.Lock(), LineReader()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> RankLink:
        """The link that the agent handed down; nobody listens at it when no agent did."""
        descriptor = environ.get(RANK_FD)
        return cls(None if descriptor is None else socket.socket(fileno=os.dup(int(descriptor))))

    @property
    def connected(self) -> bool:
        """Whether there is an agent."""
        return self._socket is not None

    def send(self, message: RankMessage) -> None:
        """Tell the agent; from any thread. One that is gone is no error here: the rank will be ended anyway."""
        with self._sending:  # so that two lines do not run into each other
            if self._socket:
                try:
                    self._socket.sendall(encode_rank_message(message))
                except OSError:
                    self.close()

    def poll(self) -> Iterator[AgentWord]:
        """What the agent has said since the last call; never blocks."""
        while sock := self._socket:
            try:
                data = sock.recv(65536, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                return self.close()
            for plain in self._lines.feed(data):
                if word := _OF_AGENTS.read(plain):
                    yield word

    def close(self) -> None:
        """Idempotent."""
        sock, self._socket = self._socket, None
        if sock:
            sock.close()
