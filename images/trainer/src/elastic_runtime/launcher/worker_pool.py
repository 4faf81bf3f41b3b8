"""The workers that are here, their slots, and the ranks that run in them."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from typing_extensions import override

from elastic_runtime.engines.base import RankRunner
from elastic_runtime.engines.exits import LOST
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.agents import AgentConnection
from elastic_runtime.launcher.decision.backoff import Backoff
from elastic_runtime.launcher.decision.decide import choose_keeper
from elastic_runtime.launcher.decision.facts import Ending, SlotFact, WorkerFact
from elastic_runtime.launcher.decision.stragglers import WorkerPace
from elastic_runtime.launcher.leave_time import LeaveTime
from elastic_runtime.launcher.platform import Machine
from elastic_runtime.launcher.stops import Stopped, Stops
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import OWN_TIME, RESTART_SIGNAL, CommitDeadline, Handover, TrainingEnded
from elastic_runtime.protocol.rank_names import RankName, WorkerName, rank_id_of, worker_name_of
from elastic_runtime.protocol.wire import (
    DumpStacks,
    Heartbeat,
    Host,
    Hosts,
    LetEnd,
    RankExited,
    Release,
    StartRank,
    StopRank,
    TellRank,
)
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.spec import RecoverySpec, RestartSpec

NEARER = 1.0
"""Seconds. Two sources of one deadline differ by less, as clouds give whole seconds."""


@dataclass(slots=True)
class Slot:
    """Room for one rank; each rank in it has a name of its own."""

    rank: RankName
    """The one that runs here, or the next."""
    usable_at: float = 0.0
    _named: tuple[RankName, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def rank_id(self) -> str:
        """Return the id of the rank."""
        if self._named is None or self._named[0] is not self.rank:
            self._named = self.rank, str(self.rank)
        return self._named[1]


@dataclass(slots=True, eq=False)
class Worker:
    """One worker whose agent is connected."""

    connection: AgentConnection
    slots: list[Slot]
    since: datetime
    ready: bool = False
    deadline: datetime | None = None
    """Deadline of its notice."""
    gone_at: float | None = None
    """The same, by the pool's clock."""
    punctual: bool = False
    """All its notices are (:attr:`.ReclaimNotice.punctual`)."""
    step_at_notice: int | None = None
    """That the training had reached when its notice came. None: nothing is handed over for it."""
    surplus: bool = False
    """When its notice came, as many others trained on as are wanted."""
    released: bool = False
    ranks: dict[str, int | None] = field(default_factory=dict)
    """Process ids of the rank processes here, by process name."""
    beat: Heartbeat | None = None
    """The last one."""
    machine: Machine | None = None
    """Machine of the worker, as far as its platform knows."""
    memory_limit: int | None = None
    """Bytes, likewise."""
    hosts: Hosts | None = None
    """That its agent was told last."""
    pace: WorkerPace | None = None
    """Of its ranks in the present world; None: not known."""

    @property
    def name(self) -> str:
        """Name that the launcher has assigned to the worker, unique in the run."""
        return self.connection.hello.worker

    @property
    def joined(self) -> bool:
        """Whether it joined by hand."""
        return is_joined(self.name)


class WorkerPool(RankRunner):
    """Keep the connected workers, their slots and their ranks."""

    def __init__(
        self,
        recovery: RecoverySpec,
        stop_grace: float,
        now: Callable[[], float],
        restart: RestartSpec = RestartSpec(),  # noqa: B008  # frozen
        number: Callable[[], int] = lambda: 0,
    ) -> None:
        """Keep none yet. ``number`` is that of the present world, or of the one that forms."""
        self._stop_grace, self._now, self._restart, self._number = stop_grace, now, restart, number
        self.workers: dict[str, Worker] = {}
        self._tells_every = recovery.tells_every
        self._backoff = Backoff(recovery)
        self._exits: dict[str, asyncio.Future[int]] = {}
        self._stopped: set[str] = set()
        self._by_themselves: set[str] = set()
        """See :meth:`ended_by_itself`."""
        self._held_back: set[str] = set()
        """Rank ids whose slots wait, since these have failed."""
        self.stops = Stops()
        """How ranks have ended that were asked to."""
        self._world: tuple[str, ...] = ()
        self._hosts = Hosts(())
        self._ended: dict[str, tuple[int, int | None]] = {}
        """Worlds in which training has ended, each with the step, by rank id; None: by an exit with 0 alone."""
        self._waits: set[str] = set()
        """Processes that wait until all others have ended, too."""
        self._let: set[str] = set()
        """Those that were told to go on."""
        self._progress: int | None = None
        self.stands = False
        """Ranks of the present world wait at a commit that is durable, as far as is known."""
        self.leave_time = LeaveTime(now)
        """Of the ranks of a worker."""
        self._notices = 0

    def add(self, connection: AgentConnection, since: datetime) -> Worker:
        """Add a worker whose agent has connected, and return it with its slots."""
        hello = connection.hello
        ranks = [RankName(WorkerName.parse(hello.worker), index) for index in range(hello.slots)]
        slots = [Slot(rank, self._backoff.usable_at(rank.lasting_slot)) for rank in ranks]
        worker = Worker(connection, slots, since)
        self.workers[hello.worker] = worker
        return worker

    def record_deadline(self, worker: Worker, deadline: datetime, left: float, *, punctual: bool) -> bool:
        """Record a preemption notice: the worker is reclaimed in ``left`` seconds. The earliest deadline counts.

        Returns:
            Whether ranks have to hear of it: it is the first, or earlier by more than :data:`NEARER` seconds.
        """
        known = worker.deadline
        worker.punctual = punctual and (known is None or worker.punctual)
        if known is None or deadline < known:
            worker.deadline, worker.gone_at = deadline, self._now() + left
        return known is None or (known - deadline).total_seconds() > NEARER

    def remove(self, name: str) -> Worker:
        """A worker is gone; so are its ranks."""
        worker = self.workers.pop(name)
        for process in list(worker.ranks):
            self._by_themselves.add(rank_id_of(process))
            self._resolve(worker, process, LOST)
        return worker

    def facts(self) -> tuple[WorkerFact, ...]:
        """Return the workers for the decision."""
        return tuple(
            WorkerFact(
                worker.name,
                worker.ready,
                tuple(SlotFact(slot.rank_id, slot.usable_at) for slot in worker.slots),
                leaving=worker.deadline is not None,
                running=bool(worker.ranks),
                gone_at=worker.gone_at,
                punctual=worker.punctual,
                joined=worker.joined,
            )
            for worker in self.workers.values()
            if not worker.released
        )

    def heard(self) -> dict[str, float]:
        """When each worker that is not given up was heard last, by the loop's clock."""
        workers = self.workers.values()
        return {each.name: each.connection.heard for each in workers if not each.connection.given_up}

    def rank_started(self, worker: Worker, process: str, pid: int) -> None:
        """An agent says so. Raises InvalidDocument for one that it was not told to start."""
        self.check_running(worker, process)
        worker.ranks[process] = pid

    def rank_exited(self, worker: Worker, message: RankExited) -> None:
        """An agent says so. Raises InvalidDocument for one that does not run there."""
        self.check_running(worker, message.rank_id)
        if message.by_itself or message.out_of_memory:
            self._by_themselves.add(rank_id_of(message.rank_id))
        self._resolve(worker, message.rank_id, message.code)

    def release(self, name: str, reason: str) -> None:
        """Tell a worker to end."""
        if worker := self.workers.get(name):
            worker.released = True
            worker.connection.send(Release(reason))

    def let_go(self) -> None:
        """They will go, each in order: another launcher has them from now on."""
        for worker in self.workers.values():
            worker.released = True

    def hand_over(self, leaving: str, deadline: datetime) -> None:
        """Have every rank hear that a worker will be taken."""
        self._notices += 1
        for worker in self.workers.values():
            worker.connection.send(Handover(leaving, deadline, self._notices))

    def train_on(self, ranks: Mapping[str, int]) -> list[Worker]:
        """Return workers with ranks of the present world that nobody takes.

        Args:
            ranks: rank by rank id, of that world.
        """
        members = {worker.name: worker for rank_id in ranks if (worker := self.worker_of(rank_id))}
        return [each for each in members.values() if each.deadline is None and not each.released]

    def last_commit_by(self, listed: Iterable[str]) -> datetime | None:
        """When nobody will have the state any more: the first deadline, where each worker of a world has one.

        Args:
            listed: the world's ranks, by rank id.
        """
        world = set(listed)
        holders = [worker for worker in self.workers.values() if any(slot.rank_id in world for slot in worker.slots)]
        deadlines = [worker.deadline for worker in holders if worker.deadline is not None]
        return min(deadlines, default=None) if len(deadlines) == len(holders) else None

    def last_word(self, holders: Iterable[str], by: datetime | None = None) -> CommitDeadline:
        """Return the word for waiting ranks: which of them makes the state durable if all of them will go.

        Args:
            holders: rank ids that have the state, by rank.
            by: when all of them will go; None: as their workers' notices say.
        """
        places = {rank_id_of(name): worker for worker in self.workers.values() for name in worker.ranks}
        ends = {rank_id: by or places[rank_id].deadline for rank_id in holders if rank_id in places}
        keeper = choose_keeper({rank_id: end.timestamp() if end else None for rank_id, end in ends.items()})
        return CommitDeadline(ends[keeper], keeper) if keeper else CommitDeadline(None)

    def tell_last_commit(self, word: CommitDeadline) -> None:
        """Have every rank hear by when to have stopped at a commit, or that it need not stop."""
        for worker in self.workers.values():
            worker.connection.send(word)

    def tell_hosts(self, ranks: Mapping[str, int]) -> None:
        """Have every worker know where the ranks of a world are, once; those of an image from before are not told.

        Args:
            ranks: of the world, by rank id; none: workers that have come since are told of the last world.
        """
        if (members := tuple(sorted(ranks, key=ranks.__getitem__))) and members != self._world:
            self._world = members
            homes = [worker.connection.hello.address for each in members if (worker := self.worker_of(each))]
            slots = Counter(filter(None, homes))  # in the order in which each was met first
            self._hosts = Hosts(tuple(Host(address, count) for address, count in slots.items()))
        for worker in self.workers.values():
            if self._hosts.hosts and worker.connection.hello.address and worker.hosts != self._hosts:
                worker.hosts = self._hosts
                worker.connection.send(self._hosts)

    def dump_stacks(self, *, ask: bool = False, quiet: bool = False) -> int:
        """Have every rank write where it stands, if not ``quiet``; with ``ask`` also say so. Returns their number."""
        for worker in self.workers.values():
            worker.connection.send(DumpStacks(ask, quiet))
        return sum(len(worker.ranks) for worker in self.workers.values())

    def training_ended(self, worker: Worker, process: str, said: TrainingEnded) -> None:
        """A rank says so; again, if it has no answer. Raises InvalidDocument for one that does not run there."""
        self.check_running(worker, process)
        rank_id = rank_id_of(process)
        # Ranks that wait say so every second.
        number = self._ended[rank_id][0] if process in self._waits and rank_id in self._ended else self._number()
        self._ended[rank_id] = number, said.step
        if said.waits:
            self._waits.add(process)
            self._let.discard(process)

    def progressed(self, step: int) -> None:
        """Rank 0 of the present world has come to a call of ``commit()`` with this step."""
        self._progress = step
        self.stands = False
        self.leave_time.committed()

    def new_world(self) -> None:
        """Forget who has ended in those before. In this one some may have, whose agents were faster than others'."""
        number = self._number()
        self._ended = {rank_id: ended for rank_id, ended in self._ended.items() if ended[0] == number}
        self._waits = {process for process in self._waits if rank_id_of(process) in self._ended}
        self._let &= self._waits
        self._progress = None
        self.stands = False
        self.leave_time.new_world()

    def ending(self, ranks: Mapping[str, int]) -> Ending | None:
        """Ranks of a world, by rank id, that wait for the end of the others' training.

        Returns:
            None: no rank waits, or the world lacks a rank: then they fail in the collectives of the end, and come back.
        """
        running = {rank_id_of(name): name for worker in self.workers.values() for name in worker.ranks}
        if not ranks.keys() <= running.keys():
            return None
        return self._ending(ranks, {each for each in ranks if running[each] in self._waits})

    def all_run(self, ranks: Collection[str]) -> bool:
        """Whether processes of all these rank ids do."""
        return {rank_id_of(name) for worker in self.workers.values() for name in worker.ranks}.issuperset(ranks)

    def ended(self, ranks: Mapping[str, int]) -> Ending | None:
        """Ranks of a world that is over whose training had ended; None: none."""
        return self._ending(ranks, self._ended.keys() & ranks.keys())

    def _ending(self, ranks: Mapping[str, int], ended: Collection[str]) -> Ending | None:
        order = sorted(ranks, key=ranks.__getitem__)
        steps = tuple((ranks[each], self._ended[each][1]) for each in order if each in ended)
        return (
            Ending(steps, tuple(ranks[each] for each in order if each not in ended), self._progress) if steps else None
        )

    def let_end(self) -> None:
        """Tell those that have ended their training to go on: all have, or their world is none any more."""
        for worker in self.workers.values():
            for process in worker.ranks:
                if process in self._waits and process not in self._let:
                    self._let.add(process)
                    worker.connection.send(LetEnd(process))

    @property
    def has_ranks(self) -> bool:
        """Whether any rank's process runs, or is about to."""
        return any(worker.ranks for worker in self.workers.values())

    @override
    def interface(self, rank_id: str) -> str | None:
        place = self._place(rank_id)
        return place[0].connection.hello.interface if place else None

    @override
    def host(self, rank_id: str) -> str:
        """Return the worker's address: each pod has its own, and the workers of this machine share one."""
        worker = self.worker_of(rank_id)
        return (worker.connection.hello.address or worker.name) if worker else ""

    def shares_host(self, worker: Worker) -> bool:
        """Whether several ranks run where this worker is, of its own or of other workers."""
        where = worker.connection.hello.address or worker.name
        here = [each for each in self.workers.values() if (each.connection.hello.address or each.name) == where]
        return sum(len(each.ranks) for each in here) > 1

    @override
    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str]) -> int:
        place = self._place(rank_id)
        if place is None:
            self._by_themselves.add(rank_id)
            return LOST
        worker, slot = place
        process = str(replace(slot.rank, attempt=attempt))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._exits[process] = future
        worker.ranks[process] = None
        self._by_themselves.discard(rank_id)
        given = {**environment, RESTART_SIGNAL: self._restart.signal}
        if self._tells_every is not None:
            given[OWN_TIME] = str(self._tells_every)
        worker.connection.send(StartRank(process, slot.rank.slot, given))
        begun = self._now()
        code = await future
        # Nobody is held back for what we have done ourselves, or for a machine that was taken away.
        if code != 0 and process not in self._stopped and worker.deadline is None:
            slot.usable_at = self._backoff.failed(slot.rank.lasting_slot, self._now(), self._now() - begun)
            self._held_back.add(rank_id)
        self._stopped.discard(process)
        return code

    def runs(self, rank_id: str) -> bool:
        """Whether a process of that rank does."""
        return any(rank_id_of(process) == rank_id for worker in self.workers.values() for process in worker.ranks)

    @override
    def ended_by_itself(self, rank_id: str) -> bool:
        return rank_id in self._by_themselves

    @override
    def tell(self, rank_id: str, word: Mapping[str, Any]) -> None:
        if worker := self.worker_of(rank_id):
            for process in worker.ranks:
                if rank_id_of(process) == rank_id:
                    worker.connection.send(TellRank(process, word))

    @override
    def stop_rank(self, rank_id: str, *, stacks: bool = False) -> None:
        self._stop(lambda process: rank_id_of(process) == rank_id, stacks=stacks)

    def kill_rank(self, rank_id: str) -> None:
        """Kill its processes: a handler of SIGTERM might end one with 0, as if its training were over."""
        self._stop(lambda process: rank_id_of(process) == rank_id, 0.0)

    @override
    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        self._stop(lambda process: rank_id_of(process) in stacks, stacks=True)
        self._stop(lambda process: rank_id_of(process) not in stacks)

    @override
    def interrupt_ranks(self) -> None:
        self._stop(lambda _process: True, self._restart.grace, signal.Signals[self._restart.signal])

    @override
    def kill_ranks(self, *, stacks: bool = False) -> None:
        self._stop(lambda _process: True, 0.0, stacks=stacks)

    def _stop(
        self, wanted: Callable[[str], bool], grace: float | None = None, interrupt: int = 0, *, stacks: bool = False
    ) -> None:
        now = self._now()
        for worker in self.workers.values():
            for process in filter(wanted, worker.ranks):
                self._stopped.add(process)
                time = self._stop_grace if grace is None else grace
                rank_id = rank_id_of(process)
                self.stops.asked(process, Stopped(rank_id, worker.name, now, time, interrupt, stacks))
                worker.connection.send(StopRank(process, time, interrupt, stacks))

    def forgive(self, rank_id: str) -> None:
        """This rank has failed for another's sake: its slot need not wait."""
        place = self._place(rank_id)
        if place and rank_id in self._held_back:
            place[1].usable_at = self._backoff.forgive(place[1].rank.lasting_slot)
        self._held_back.discard(rank_id)

    def retire(self, rank_id: str) -> None:
        """This rank is over: the next one in its slot gets another name."""
        self._held_back.discard(rank_id)
        self._by_themselves.discard(rank_id)
        for slot in self._slots():
            if slot.rank_id == rank_id:
                slot.rank = replace(slot.rank, incarnation=slot.rank.incarnation + 1)

    def worker_of(self, rank_id: str) -> Worker | None:
        """Where the rank's slot is, if that worker is still here."""
        return self.workers.get(worker_name_of(rank_id))

    def _slots(self) -> Iterator[Slot]:
        return (slot for worker in self.workers.values() for slot in worker.slots)

    def _place(self, rank_id: str) -> tuple[Worker, Slot] | None:
        worker = self.worker_of(rank_id)
        found = [slot for slot in worker.slots if slot.rank_id == rank_id] if worker else []
        return (worker, found[0]) if worker and found else None

    @staticmethod
    def check_running(worker: Worker, process: str) -> None:
        """Raises InvalidDocument for a process that does not run there."""
        if process not in worker.ranks:
            raise InvalidDocument(f"no rank {printable(process)} runs on {worker.name}")

    def _resolve(self, worker: Worker, process: str, code: int) -> None:
        worker.ranks.pop(process, None)
        self.stops.ended(process, code, self._now())
        rank_id = rank_id_of(process)
        if code == 0 and self._ended.get(rank_id, (-1, None))[0] != (number := self._number()):
            self._ended[rank_id] = number, None
        self._waits.discard(process)
        self._let.discard(process)
        future = self._exits.pop(process, None)
        if future and not future.done():
            future.set_result(code)


class TellingAgain:
    """Repeats open notices once in each new world.

    The rank that was to write may be lost, and the next rank 0 was not notified, or takes the notice as handled.
    """

    def __init__(self) -> None:
        self._told = 0
        """The generation that knows."""
        self._writer = ""
        """Rank 0 of that generation."""

    def due(
        self, generation: int, ranks: Sequence[str], *, trains: bool, is_open: bool, runs: Callable[[str], bool]
    ) -> bool:
        """Whether to tell them now; asked in each round of the launcher.

        Args:
            generation: counts the run's complete worlds.
            ranks: of the present world, by rank.
            trains: it is complete.
            is_open: nothing durable has yet what there was at a notice.
            runs: whether that rank's process does.
        """
        if generation == self._told:
            self._writer = ranks[0] if ranks and trains else self._writer
            return False
        if is_open and self._writer not in ranks and runs(self._writer):
            return False  # It leaves, and ends its write before it does.
        self._told = generation
        return is_open
