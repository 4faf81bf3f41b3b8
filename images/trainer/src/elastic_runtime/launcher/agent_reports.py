"""Messages of agents, and their recipients: the pool of workers, the record, the log, the session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_runtime.engines.base import Session, SessionState, Stage
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.agents import AgentConnection
from elastic_runtime.launcher.decision.shard_queues import Lease, ShardQueues
from elastic_runtime.launcher.differences import Differences
from elastic_runtime.launcher.gathering import Gathering
from elastic_runtime.launcher.memory_watch import MemoryWatch
from elastic_runtime.launcher.platform import Platform
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.launcher.straggler_watch import StragglerWatch
from elastic_runtime.launcher.worker_pool import Worker, WorkerPool
from elastic_runtime.pace import Pace
from elastic_runtime.printable import printable
from elastic_runtime.protocol.plausible import check_rank
from elastic_runtime.protocol.rank_link import (
    BatchSize,
    Busy,
    CheckpointWritten,
    EngineWord,
    LocalRankRead,
    Metrics,
    OutputsSaved,
    OwnTime,
    Progress,
    RankMessage,
    Returned,
    Standing,
    TotalSteps,
    TrainingEnded,
    TrainingStopped,
    TrainsUnjoined,
    decode_rank_message,
)
from elastic_runtime.protocol.rank_names import rank_id_of
from elastic_runtime.protocol.shards import ShardWanted
from elastic_runtime.protocol.tallies import Tally
from elastic_runtime.protocol.wire import (
    AgentMessage,
    GiveShard,
    Heartbeat,
    NamedElsewhere,
    Output,
    RankExited,
    RankSaid,
    RankStarted,
    RankState,
    Ready,
    TracesSaved,
)
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.status import EventKind, WorkerState

log = logging.getLogger(__name__)

TIDINGS, TIDINGS_AT_ONCE = 1.0, 60.0
"""Words about checkpoints that the ranks of a worker may send in a second, and at once: each is an event and a line."""


ENGINE_WORDS, ENGINE_WORDS_AT_ONCE = 1000.0, 100_000.0
"""Words to their engine that the ranks of a worker may send in a second, and at once: a dozen of each for each peer."""
FIGURES_DELAY = 0.1
"""Seconds after which reported figures are in the status. Nothing is decided by them, and they may come with each step:
a pass of the launcher's loop for each would cost a training of two ranks on two cores some percent of its steps."""
_OF_RUNNING_RANKS = Busy | EngineWord | OwnTime | ShardWanted | Standing | Tally | TrainingStopped
"""What nobody says for a rank of another worker."""


class AgentReports:
    """Pass messages of agents on to pool, record, log and session.

    Args:
        pool, record, output, platform, gathering, standstills, stragglers, differences, memory: where it goes.
        session: the present one; None while there is none.
        wanted: workers that are asked for now.
        on_change: called when there may be something to decide.
    """

    def __init__(
        self,
        pool: WorkerPool,
        record: RunRecord,
        output: OutputLog,
        platform: Platform,
        session: Callable[[], Session | None],
        wanted: Callable[[], int],
        on_change: Callable[[], None],
        gathering: Gathering,
        standstills: Standstills,
        stragglers: StragglerWatch,
        differences: Differences,
        memory: MemoryWatch,
    ) -> None:
        self._pool, self._record, self._output, self._platform = pool, record, output, platform
        self._session, self._wanted, self._on_change, self._gathering = session, wanted, on_change, gathering
        self._standstills, self._stragglers, self._differences = standstills, stragglers, differences
        self._memory = memory
        self._shards = ShardQueues()
        self._showing: asyncio.TimerHandle | None = None
        """Lets the launcher write reported figures."""
        self._tidings: dict[str, Pace] = {}
        self._engine_words: dict[str, Pace] = {}

    def came(self, connection: AgentConnection) -> None:
        """A worker is here, which cannot start ranks yet."""
        worker = self._pool.add(connection, utc_now())
        self._platform.workers.came(worker.name)
        if worker.joined:
            words = f"{worker.name} (by hand, from {connection.address}) has joined"
            self._record.event(EventKind.JOINED, words, worker.name)
        now = asyncio.get_running_loop().time
        self._tidings[connection.hello.worker] = Pace(TIDINGS, TIDINGS_AT_ONCE, now)
        self._engine_words[connection.hello.worker] = Pace(ENGINE_WORDS, ENGINE_WORDS_AT_ONCE, now)
        self._on_change()

    def said(self, connection: AgentConnection, message: AgentMessage) -> None:  # noqa: C901, PLR0912  # one case a message
        """Handle a connected worker's message, in the order of sending. Raise InvalidDocument if it is implausible."""
        worker = self._pool.workers[connection.hello.worker]
        match message:
            case Output(process, stream, lines, time):
                self._output.write(time, worker.name, self._rank(process), stream, lines)
                if stream == "stderr":
                    self._record.failures.heard(process, lines)
                return
            case Heartbeat():
                worker.beat = message
                self._record.beat(worker.name, message)
                return
            case Ready() if worker.ready:
                return
            case Ready(warm, detail):
                worker.ready = True
                if detail:
                    log.warning("ranks of %s start cold: %s", worker.name, printable(detail))
                log.debug("%s is ready, %s", worker.name, "warm" if warm else "cold")
            case RankStarted(process, pid):
                self._pool.rank_started(worker, process, pid)
            case RankExited(process, ago=ago, out_of_memory=starved):
                self._record.failures.ended(process, ago)
                if starved:
                    self._pool.check_running(worker, process)
                    self._memory.rank_ended(rank_id_of(process), worker.name)
                self._pool.rank_exited(worker, message)
            case RankSaid(process, plain):
                if not self._rank_said(worker, process, plain):
                    return
            case RankState(process, stopped):
                self._pool.check_running(worker, process)
                self._standstills.runs(rank_id_of(process), stopped=stopped)
            case TracesSaved():
                self._gathering.saved(worker.name, message)
                return
            case NamedElsewhere(named):
                self._record.named_elsewhere(worker.name, connection.hello, named)
                return
            case ReclaimNotice(source, deadline, punctual):
                self.will_be_taken(worker, source, deadline, punctual=punctual)
        self._on_change()

    def gone(self, connection: AgentConnection) -> None:
        """A worker has disconnected, or is silent; its ranks are given up."""
        worker = self._pool.workers[connection.hello.worker]
        orderly = worker.released or (worker.deadline is not None and not worker.ranks)
        self._pool.remove(worker.name)
        self._platform.workers.gone(worker.name)
        del self._tidings[worker.name], self._engine_words[worker.name]
        self._gathering.gone(worker.name)
        self._record.gone(worker, WorkerState.LEFT if orderly else WorkerState.LOST)
        if (joining := self._platform.joining) and (worker.released or worker.deadline is not None):
            joining.revoke(worker.name)
        how = "has left" if orderly else "was lost" if connection.given_up else "was lost without a word"
        if worker.deadline is not None and not orderly:
            how = f"was lost {'before' if utc_now() < worker.deadline else 'at'} its deadline"
            self._platform.workers.replace(worker.name)
        if connection.given_up:
            how = f"{how}: {connection.given_up}; {self._platform.workers.end(worker.name)}"
        self._record.event(EventKind.LEFT if orderly else EventKind.LOST, f"{worker.name} {how}", worker.name)
        self._on_change()

    def _rank_said(self, worker: Worker, process: str, plain: Mapping[str, Any]) -> bool:
        """Returns whether there may be something to decide."""
        message = decode_rank_message(plain)
        if message is None:
            return False  # Whatever a script has written there.
        check_rank(message)
        if isinstance(message, _OF_RUNNING_RANKS):
            self._pool.check_running(worker, process)
        if isinstance(message, OwnTime):
            self._stragglers.said(rank_id_of(process), message)
        elif isinstance(message, ShardWanted):
            self._shard_wanted(worker, process, message)
        else:
            self._tells(worker, process, message)
            if not isinstance(message, Metrics | BatchSize | TotalSteps):
                return True
            self._show_soon()
        return False

    def _show_soon(self) -> None:
        """Have the status written with figures that decide nothing, which may come with every step."""
        if self._showing is None or self._showing.when() <= asyncio.get_running_loop().time():
            self._showing = asyncio.get_running_loop().call_later(FIGURES_DELAY, self._on_change)

    def _tells(self, worker: Worker, process: str, message: RankMessage) -> None:
        if isinstance(message, EngineWord):
            self._engine_word(worker, process, message)
            return
        if isinstance(message, TrainingEnded | TrainingStopped):
            self._waits(worker, process, message)
            return
        if isinstance(message, Busy | Standing | Tally | LocalRankRead | TrainsUnjoined):
            self._script_does(worker, process, message)
            return
        if isinstance(message, Progress) and (session := self._session()):
            session.committed()
            if self._rank(process) == 0:
                self._pool.progressed(message.step)
        if not isinstance(message, Progress | Metrics | BatchSize | TotalSteps) and self._tidings[worker.name].pay(1):
            raise InvalidDocument("more words about checkpoints than there can be checkpoints")
        if isinstance(message, OutputsSaved | Returned | TotalSteps) and self._rank(process) != 0:
            return
        self._record.rank_said(message, worker.name)
        if isinstance(message, CheckpointWritten):
            self._pool.leave_time.wrote(message.seconds)

    def _waits(self, worker: Worker, process: str, message: TrainingEnded | TrainingStopped) -> None:
        if isinstance(message, TrainingEnded):
            self._pool.training_ended(worker, process, message)
        else:
            self._pool.stands = True
            self._standstills.stopped()

    def _script_does(
        self, worker: Worker, process: str, message: Busy | Standing | Tally | LocalRankRead | TrainsUnjoined
    ) -> None:
        if isinstance(message, Busy | Standing):
            self._standstills.said(rank_id_of(process), message)
        elif isinstance(message, Tally):
            if session := self._session():
                self._differences.told(rank_id_of(process), message, session.rank_of)
        elif isinstance(message, TrainsUnjoined):
            self._record.trains_unjoined()
        elif self._pool.shares_host(worker):
            self._record.local_rank_read()

    def _shard_wanted(self, worker: Worker, process: str, message: ShardWanted) -> None:
        session, rank_id = self._session(), rank_id_of(process)
        if session and rank_id in session.rank_of:  # Else its world is over, and it is about to be ended.
            fact = session.fact
            broken = fact.state is SessionState.FORMING and fact.stage is Stage.RETURNING
            now = asyncio.get_running_loop().time()
            given = self._shards.take((session, fact.world), rank_id, message, now, broken=broken)
            worker.connection.send(GiveShard(process, given))

    def stops(self, rank_ids: Sequence[str]) -> None:
        """Ranks are being stopped because others wait for them."""
        self._shards.stop(rank_ids, asyncio.get_running_loop().time())

    def leases(self) -> tuple[Lease, ...]:
        """Return :attr:`.Facts.leases`."""
        if (session := self._session()) is None:
            return ()
        busy = self._standstills.busy_until
        found = self._shards.leases((session, session.fact.world))
        return tuple(replace(each, renewed=max(each.renewed, busy(each.rank_id))) for each in found)

    def _engine_word(self, worker: Worker, process: str, message: EngineWord) -> None:
        if self._engine_words[worker.name].pay(1):
            raise InvalidDocument("more words to the engine than ranks have to say")
        if session := self._session():
            session.heard(rank_id_of(process), message.word)

    def will_be_taken(self, worker: Worker, source: str, deadline: datetime, *, punctual: bool = False) -> None:
        """Have every rank hear that a worker will be taken, and again when its deadline has come nearer.

        Not of one that leaves because fewer are wanted: the others keep the state in memory, and would write it for
        nothing, beside their first steps.
        """
        if worker.released:
            return  # Its own end, which we have asked for ourselves.
        left, is_first = max(timedelta(0), deadline - utc_now()).total_seconds(), worker.deadline is None
        if not self._pool.record_deadline(worker, deadline, left, punctual=punctual):
            return  # Everybody has heard.
        if is_first:
            session = self._session()
            trained_on = self._pool.train_on(session.rank_of if session else {})
            own = [each for each in trained_on if not each.joined]
            # Nothing takes the place of one that joined: any other that trains on is enough.
            worker.surplus = bool(trained_on) if worker.joined else len(own) >= self._wanted()
            worker.step_at_notice = None if worker.surplus else self._record.step
            why = "fewer are wanted; " if worker.surplus and not worker.joined else ""
            words = f"{worker.name} will be taken in {left:.0f} s ({why}{printable(source, 60)})"
            self._record.event(EventKind.NOTICE, words, worker.name)
        if not worker.surplus:
            self._pool.hand_over(worker.name, deadline)

    def _rank(self, process: str) -> int | None:
        """The rank that a process has in the present world, or had in the last."""
        session = self._session()
        return session.rank_of.get(rank_id_of(process)) if session else None
