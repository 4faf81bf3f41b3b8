"""The line between a rank and the agent that started it: JSON lines over a socket pair that the rank inherits.

A rank may ignore its end (:mod:`elastic_runtime.protocol.rank_sockets`). The rank sends when it has something to
report, and reads messages of the agent at its commits. There is a thread only if an engine needs them at once
(:meth:`RankLink.set_engine_callbacks`), or for the writer of checkpoints (:meth:`RankLink.watch`). All helpers of a
rank share one link (:func:`shared_link`): a message that one of them reads is passed to all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

from elastic_runtime.at_exit import AtExit
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol import messages
from elastic_runtime.protocol.batched_lines import BatchedLines
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET, connected, inherited
from elastic_runtime.protocol.shards import SHARD_REPEAT, ShardGiven, ShardWanted
from elastic_runtime.protocol.tallies import Tally

CHECKPOINT = "ELASTIC_RUNTIME_CHECKPOINT"
"""The run's :class:`~elastic_runtime.run.spec.CheckpointSpec` as JSON; unset when the run keeps no durable
checkpoints."""
RUN_NAME = "ELASTIC_RUNTIME_RUN"
"""Name of the run."""
WORKER_NAME = "ELASTIC_RUNTIME_WORKER"
"""Name of the worker that the rank runs on."""
SLOT = "ELASTIC_RUNTIME_SLOT"
"""Index of the rank's slot in its worker, from 0; with several slots, CUDA_VISIBLE_DEVICES names its GPU alone."""
SCRIPTS = "ELASTIC_SCRIPTS"
"""Folder of the files that came with the run; unset when there are none."""
MAX_RETURNED = 8192
MAX_PLACE = 100
"""Characters of the place at which a rank stands, and of what it is busy with."""
_LAST_WORD = 1.0
"""Seconds that the link's thread has to end, once it is closed."""
FIXED_SIZE = "ELASTIC_RUNTIME_FIXED_SIZE"
"""Set where the world never has another size, whatever happens."""
OWN_TIME = "ELASTIC_RUNTIME_OWN_TIME"
"""Seconds between two :class:`OwnTime` of a rank; unset: they are not measured."""
OUTPUTS = "ELASTIC_RUNTIME_OUTPUTS"
"""Folder in which each rank of the worker has its folder of outputs."""
HOSTFILE = "ELASTIC_RUNTIME_HOSTFILE"
"""Path of the file with the hosts of the world: see ``hostfile`` of :class:`~elastic_runtime.run.spec.RunSpec`."""
MOST_LEAVING = 1000
"""Workers whose notices a rank remembers."""
RESTART_SIGNAL = "ELASTIC_RUNTIME_RESTART_SIGNAL"
"""Name of the signal by which a rank is asked to write its checkpoint and end, with engines that restart ranks."""
END_LOOK, END_REPEAT, END_TIMEOUT = 0.01, 1.0, 3600.0
"""Seconds between two looks of a rank whose training has ended, and between two times that it says so; and after which
it goes on without an answer: the launcher decides long before."""
OWN_LOCAL_RANK = "ELASTIC_RUNTIME_OWN_LOCAL_RANK"
"""Set where ``LOCAL_RANK`` counts within the worker, and other workers have ranks on the same host."""
PEER_SILENCE = "ELASTIC_RUNTIME_PEER_SILENCE"
"""Seconds after which a rank whose machine does not answer any more is given up by the others."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The global step of a call of ``commit()``. Sent by rank 0, at most a few times a second."""

    step: int


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Samples of a step, over all ranks, from now on; the mean where the last step of an epoch has fewer. By rank 0."""

    samples: float


@dataclass(frozen=True, slots=True)
class TotalSteps:
    """Global steps of the whole training, those that are done included. By rank 0."""

    steps: int
    by_script: bool
    """From ``report(of=…)``. False: counted by ``GlobalBatches``."""


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
    stalled: float = 0.0
    """Seconds for which the training stood still for it, up to now."""


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


@dataclass(frozen=True, slots=True)
class Returned:
    """The rank's function has returned this; of rank 0 it is a part of the result."""

    value: str
    """JSON, of at most :data:`MAX_RETURNED` characters."""


@dataclass(frozen=True, slots=True)
class OutputsSaved:
    """Rank 0's folder of outputs is in the run's store, as it is now."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TrainingEnded:
    """The rank's training is over; sent before any collective of the end."""

    step: int | None = None
    """Global step at which it ended; None: the state has none that all ranks share."""
    waits: bool = True
    """The rank waits for :class:`MayEnd`. False: the script itself ended the training, and goes on."""


@dataclass(frozen=True, slots=True)
class TrainingStopped:
    """All ranks of the world wait at their last commit, or the keeper holds it, and it is durable; sent repeatedly."""

    step: int


@dataclass(frozen=True, slots=True)
class LocalRankRead:
    """The script has read its number among the ranks of its host, or may have, and it is 0 for each of them."""


@dataclass(frozen=True, slots=True)
class TrainsUnjoined:
    """The script makes steps in this rank, but is in no world; see :mod:`elastic_runtime.script.unjoined`."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The rank commits nothing for so long, and that is right: see :func:`elastic_runtime.script.standing.busy`."""

    what: str
    """For people; empty: it is busy no more."""
    seconds: float
    """From now on, :data:`.LONGEST_BUSY` at most; 0: it is over."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The rank's answer to :class:`AskStanding`."""

    commits: int
    """That it has begun in this world."""
    collectives: int | None = None
    """That it has begun in this world, of its framework's own groups. None: not known."""
    step: int | None = None
    """Global step of the newest commit that it has begun."""
    idle: float = 0.0
    """Seconds since that, or since the world began."""
    waits: bool = False
    """Whether its training thread is inside a framework, where ranks wait for each other."""
    place: str = ""
    """Lines of the script at which that thread stands, the innermost first; empty: not known."""
    in_commit: bool = False
    """Whether that thread is inside a commit."""
    blocked: bool = False
    """Whether it is in a call that ends when the others do their part, and in nothing that works meanwhile."""
    of_all: int | None = None
    beside: int = 0
    """Those of all ranks together: in the usual group, where that is known, and in other groups of all ranks."""


@dataclass(frozen=True, slots=True)
class OwnTime:
    """How the rank has spent the time since it said so last: see :mod:`elastic_runtime.script.own_time`."""

    seconds: float
    """Of that time."""
    waited: float
    """Seconds of these in which its training thread waited for other ranks."""
    steps: int
    """Global steps of that time; commits, if the state does not count steps."""


@dataclass(frozen=True, slots=True)
class EngineWord:
    """Message between the run's engine in the rank and in the launcher, in both directions. Only they can read it."""

    word: Mapping[str, Any]


RankMessage = (
    BatchSize
    | Busy
    | Progress
    | Metrics
    | EngineWord
    | LocalRankRead
    | TotalSteps
    | CheckpointWritten
    | CheckpointSkipped
    | CheckpointFailed
    | OutputsSaved
    | OwnTime
    | Resumed
    | Returned
    | ShardWanted
    | TrainingStopped
    | Standing
    | Tally
    | TrainingEnded
    | TrainsUnjoined
)
_OF_RANKS: messages.Vocabulary[RankMessage] = messages.Vocabulary(RankMessage)


@dataclass(frozen=True, slots=True)
class Handover:
    """Launcher to agent, agent to rank: some worker of the run will be taken; have a durable checkpoint by then."""

    worker: str
    """Who leaves."""
    deadline: datetime
    number: int = 0
    """Number of the notice, from 1, the same for all ranks. 0: the launcher does not count."""


@dataclass(frozen=True, slots=True)
class CommitDeadline:
    """Launcher to agent, agent to rank: every worker of the world will be taken; stop at a commit durable by then."""

    deadline: datetime | None
    """Deadline of the first of them, or of the keeper if one is named. None withdraws it: some will stay."""
    keeper: str = ""
    """While ranks wait for a world: the rank, by its id, that is to make its last commit durable."""
    stops: bool = False
    """The run is to be paused: stop at the next commit, however long it takes to be durable, without a deadline."""


@dataclass(frozen=True, slots=True)
class MayEnd:
    """Agent to rank, to :class:`TrainingEnded`: all others have ended theirs, or the world is broken; go on."""


@dataclass(frozen=True, slots=True)
class AskStanding:
    """Agent to rank: answer with :class:`Standing` at once, in the thread that reads this, after your stacks."""

    quiet: bool = False
    """Write no stacks."""


AgentWord = Handover | CommitDeadline | EngineWord | MayEnd | AskStanding | ShardGiven
_OF_AGENTS: messages.Vocabulary[AgentWord] = messages.Vocabulary(AgentWord)
_OF_BOTH: messages.Vocabulary[RankMessage | AgentWord] = messages.Vocabulary(RankMessage | AgentWord)


def encode_rank_message(message: RankMessage | AgentWord) -> bytes:
    """Return the message as one line."""
    return _OF_BOTH.write(message)


def plain_rank_message(message: RankMessage) -> dict[str, Any]:
    """Return the message as plain JSON, for another message."""
    return _OF_BOTH.plain(message)


def decode_rank_message(plain: Mapping[str, object]) -> RankMessage | None:
    """None for a type that is not in it. Raises InvalidDocument."""
    return _OF_RANKS.read(plain)


@dataclass(frozen=True, slots=True)
class _EngineCallbacks:
    """Messages to an engine, for :meth:`RankLink.set_engine_callbacks`."""

    hear: Callable[[Mapping[str, Any]], None]
    disconnected: Callable[[], None]
    noticed: Callable[[], None]


class RankLink:
    """The rank's end, which the training and the writer of checkpoints share.

    Args:
        sock: connected stream socket; owned from now on. None: nobody listens.
    """

    def __init__(self, sock: socket.socket | None) -> None:
        self._socket, self._lines = sock, LineReader()
        self._sender = BatchedLines(self._writer, self._close_connection)
        self.had_agent = sock is not None
        """Whether there is an agent, or was one: this process is a rank of a run."""
        self.listener: Callable[[RankMessage], None] = lambda _message: None
        """Hears what is sent, too, in the sender's thread."""
        self.writes_checkpoints = False
        """Whether this process does, with the outputs after each: then those do not hold up a hand-over."""
        self.hearers: list[Callable[[Handover | CommitDeadline], None]] = []
        """Called with each word about workers that leave by :meth:`hear`."""
        self.leaving: dict[str, datetime] = {}
        """Workers that were said to be taken, and when."""
        self.last_commit = CommitDeadline(None)
        """The newest of these words."""
        self.on_asked: Callable[[bool], None] = lambda _quiet: None
        """Called in the link's thread, if there is one, upon :class:`AskStanding`."""
        self._may_end = False
        self._read_ahead: queue.SimpleQueue[AgentWord] | None = None
        """What a thread has read that :meth:`hear` is to find; None: there is no such thread."""
        self._reader: threading.Thread | None = None
        self._reader_of = 0
        """The process that has this thread."""
        self._watchers: list[Callable[[Handover], None]] = []
        self._engine: _EngineCallbacks | None = None
        self._is_over = False
        """The thread has read the last word."""
        self._handing, self._reading = threading.Lock(), threading.Lock()
        self._hearing = set[int]()
        """Threads that are in :meth:`hear`."""
        self._asking, self._shards = threading.Lock(), queue.SimpleQueue[ShardGiven]()
        self._asked = itertools.count(1)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> RankLink:
        """The link that the agent handed down; nobody listens at it when no agent did."""
        return cls(inherited(environ))

    def connect(self, environ: Mapping[str, str] = os.environ) -> None:
        """Connect to the agent of the rank that has started this process, unless the rank's end was inherited.

        The agent then sends what it has for the rank to this process. Does nothing where no agent is.

        Raises:
            ConnectionError: the rank has ended, or this process runs as another user.
        """
        path = environ.get(RANK_SOCKET)
        if self.connected or path is None:
            return
        self._socket, self.had_agent = connected(path), True

    @property
    def connected(self) -> bool:
        """Whether there is an agent."""
        return self._socket is not None

    def send(self, message: RankMessage) -> None:
        """Tell the agent; from any thread. One that is gone is no error here: the rank will be ended anyway."""
        self.listener(message)
        if self._socket:
            self._sender.send(encode_rank_message(message))

    def send_soon(self, message: RankMessage) -> None:
        """As :meth:`send`, within 0.1 s of another together with others: for what may come with every step.

        A process that is killed, or ends by ``os._exit``, loses what waits.
        """
        self.listener(message)
        if self._socket:
            self._sender.send_soon(encode_rank_message(message))

    def _writer(self) -> Callable[[bytes], int] | None:
        sock = self._socket
        return sock.send if sock else None

    def hear(self) -> None:
        """Take in what the agent has said since the last call; never blocks. By the thread that trains.

        A signal's handler that interrupts such a call takes in nothing: it cannot wait for its own thread.
        """
        if (thread := threading.get_ident()) in self._hearing:
            return
        try:
            self._hearing.add(thread)
            for word in self._poll():
                self._take(word)
        finally:
            self._hearing.discard(thread)

    def _take(self, word: AgentWord) -> None:
        match word:
            case MayEnd():
                self._may_end = True
            case CommitDeadline():
                self.last_commit = word
            case Handover(worker, deadline) if worker in self.leaving or len(self.leaving) < MOST_LEAVING:
                self.leaving[worker] = deadline
        if isinstance(word, Handover | CommitDeadline):
            for hearer in self.hearers:
                hearer(word)

    def end_together(self, step: int | None, while_waiting: Callable[[], None]) -> None:
        """Tell that the training function has returned, and wait until this rank may go on to the end's collectives.

        They would be matched with those of ranks that still train. By the thread that trains; without an agent nothing.

        Args:
            step: see :class:`TrainingEnded`.
            while_waiting: called every so often meanwhile.
        """
        self._may_end = False
        deadline, told = time.monotonic() + END_TIMEOUT, 0.0
        while self.connected and not self._may_end and (now := time.monotonic()) < deadline:
            if now - told >= END_REPEAT:
                told = now
                self.send(TrainingEnded(step))
            self.hear()
            while_waiting()
            if not self._may_end:
                time.sleep(END_LOOK)

    def take_shard(self, wanted: ShardWanted) -> ShardGiven:
        """Ask for a shard, and wait for the answer; from any thread.

        Args:
            wanted: its serial is set here.

        Raises:
            ConnectionError: the agent is gone, and with it the run.
        """
        with self._asking:
            wanted = replace(wanted, serial=next(self._asked))
            self._read_in_thread()
            while self.connected:
                self.send(wanted)
                with contextlib.suppress(queue.Empty):
                    while True:  # A request that was repeated has two answers.
                        given = self._shards.get(timeout=SHARD_REPEAT)
                        if given.serial == wanted.serial:
                            return given
        raise ConnectionError("the agent of this rank is gone")

    def set_engine_callbacks(
        self, hear: Callable[[Mapping[str, Any]], None], disconnected: Callable[[], None], noticed: Callable[[], None]
    ) -> None:
        """Have an engine's words heard as they come, in a thread of their own.

        Args:
            hear: called in that thread with each word.
            disconnected: called there once nothing will come any more; at once where no agent is.
            noticed: called there when :meth:`hear` will find another word.
        """
        with self._handing:
            self._engine = _EngineCallbacks(hear, disconnected, noticed)
            is_over = self._is_over
        if is_over:
            disconnected()
        else:
            self._read_in_thread()

    def watch(self, noticed: Callable[[Handover], None]) -> None:
        """Have notices told as they come, too, in a thread of the link; :meth:`hear` finds them as ever.

        By the thread that trains.

        Args:
            noticed: called there with each of them; returns at once, for an engine may wait for the next word.
        """
        self._watchers.append(noticed)
        if self._socket is not None:
            self._read_in_thread()

    def _read_in_thread(self) -> None:
        if self._read_ahead is None:
            self._read_ahead = queue.SimpleQueue()
            self._reader_of = os.getpid()
            self._reader = threading.Thread(target=self._listen, name="rank-link", daemon=True)
            self._reader.start()

    def _listen(self) -> None:
        try:
            while sock := self._socket:
                with contextlib.suppress(OSError):  # Read below, too, where it ends the link.
                    sock.recv(1, socket.MSG_PEEK)
                engine = self._engine
                for word in self._read_more():
                    if isinstance(word, EngineWord):
                        if engine is not None:
                            engine.hear(word.word)
                        continue
                    if isinstance(word, AskStanding):
                        self.on_asked(word.quiet)
                        continue
                    if isinstance(word, Handover):
                        for watcher in tuple(self._watchers):
                            watcher(word)
                    if engine is not None and not isinstance(word, MayEnd):
                        engine.noticed()
        finally:
            with self._handing:
                self._is_over, engine = True, self._engine
            if engine is not None:
                engine.disconnected()

    def _read_more(self) -> list[AgentWord]:
        """What there is now, of which notices are kept for :meth:`hear`."""
        ahead = self._read_ahead
        assert ahead is not None, "set before the thread starts"
        with self._reading:
            words = list(self._read(socket.MSG_DONTWAIT))
            for word in words:
                if not isinstance(word, EngineWord | AskStanding):
                    ahead.put(word)
        return words

    def _poll(self) -> Iterator[AgentWord]:
        if self._read_ahead is None:
            yield from (word for word in self._read(socket.MSG_DONTWAIT) if not isinstance(word, EngineWord))
        else:
            if self._engine is None:
                self._read_more()  # The thread may not have come to it; an engine's words are that thread's.
            with contextlib.suppress(queue.Empty):
                while True:
                    yield self._read_ahead.get_nowait()

    def _read(self, flags: int) -> Iterator[AgentWord]:
        while sock := self._socket:
            try:
                data = sock.recv(65536, flags)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                return self._close_connection()
            for plain in self._lines.feed(data):
                word = _OF_AGENTS.read(plain)
                if isinstance(word, ShardGiven):
                    self._shards.put(word)
                elif word:
                    yield word

    def close(self) -> None:
        """Idempotent. A thread that reads for watchers alone has ended when this returns."""
        self._sender.close()
        self._close_connection()
        if self._reader is not None and self._engine is None and self._reader is not threading.current_thread():
            self._reader.join(_LAST_WORD)

    def _close_connection(self) -> None:
        sock, self._socket = self._socket, None
        if sock:
            if self._reader_of == os.getpid():  # In a fork the thread is not there, and the parent's goes on.
                with contextlib.suppress(OSError):  # Its thread hears the end.
                    sock.shutdown(socket.SHUT_RDWR)
            sock.close()


@cache
def shared_link() -> RankLink:
    """The process's link to its agent, opened on first use."""
    link = RankLink.from_environment()
    AtExit(link.close, of_finalizers=False).ask()  # Threads of such a child may go on; what waits is sent.
    return link
