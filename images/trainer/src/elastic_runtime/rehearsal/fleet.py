"""Machines of a trace, and the workers that a worker set keeps on them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from elastic_runtime.launcher.decision.decide import choose_keeper
from elastic_runtime.launcher.decision.facts import SlotFact, WorkerFact
from elastic_runtime.rehearsal.account import Cause
from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.timeline import Timeline
from elastic_runtime.rehearsal.trace import Notices, Stay, Trace


@dataclass(slots=True, eq=False)
class Machine:
    """One that is there."""

    stay: Stay
    usable: bool = False
    """A worker can start here."""
    noticed: bool = False


@dataclass(slots=True, eq=False)
class Worker:
    """One worker with one slot."""

    machine: Machine
    ready: bool = False
    leaving: bool = False
    released: bool = False
    ranks: int = 0
    """That have been on this machine and are over."""
    name: str = field(init=False)
    """The machine's."""
    rank_id: str = field(init=False)
    """Of the rank that is here, or the next one; each has a name of its own, as in the pool."""

    def __post_init__(self) -> None:
        self.name = self.machine.stay.name
        self.rank_id = f"{self.name}.0.{self.ranks}"

    def retire(self) -> None:
        """Its rank is over."""
        self.ranks += 1
        self.rank_id = f"{self.name}.0.{self.ranks}"


class Fleet:
    """Lets machines come and go, and starts a worker on each as long as fewer than wanted are there.

    As a ReplicaSet does, it replaces a worker once it is released, if there is a machine to spare. If fewer are wanted,
    the newest have to leave, those that cannot train yet first.

    Args:
        timeline: of the simulation.
        trace: which machines.
        notices: which of their losses are announced; None: nobody listens.
        costs: of starting, and of finding out.
        wanted: workers.
        on_notice: called with a worker that will be taken.
        on_vanished: called with a worker whose machine is gone; nobody knows yet.
        on_missed: called with it when it is known.
    """

    def __init__(
        self,
        timeline: Timeline,
        trace: Trace,
        notices: Notices,
        costs: Costs,
        wanted: int,
        *,
        listens: bool,
        on_notice: Callable[[Worker], None],
        on_vanished: Callable[[Worker], None],
        on_missed: Callable[[Worker], None],
    ) -> None:
        self._timeline, self._costs, self._wanted = timeline, costs, wanted
        self._detection = costs.detection(silent=notices.silent)
        self._on_notice, self._on_vanished, self._on_missed = on_notice, on_vanished, on_missed
        self._machines: dict[str, Machine] = {}
        self._workers: dict[str, Worker] = {}
        self.taken = self.announced = 0
        """Machines with a worker that were taken so far, and of these with a notice."""
        for stay in trace.stays:
            machine = Machine(stay)
            timeline.at(stay.begin, lambda machine=machine: self._come(machine))  # type: ignore[misc]  # mypy#1484
            timeline.at(stay.end, lambda machine=machine: self._go(machine))  # type: ignore[misc]  # mypy#1484
            moment = notices.moment(stay, trace) if listens else None
            if moment is not None:
                timeline.at(moment, lambda machine=machine: self._notice(machine))  # type: ignore[misc]  # mypy#1484

    @property
    def size(self) -> int:
        """Machines that are there."""
        return len(self._machines)

    @property
    def hired(self) -> int:
        """Workers that are there, from when they can train until their machine is gone: those that are paid for."""
        return sum(worker.ready and not worker.released for worker in self._workers.values() if self._is_there(worker))

    @property
    def has_notice(self) -> bool:
        """Whether a worker that is there will be taken."""
        return any(worker.leaving and not worker.released for worker in self._workers.values())

    @property
    def known(self) -> frozenset[str]:
        """Rank ids of the workers that nobody misses, dead or alive."""
        return frozenset(worker.rank_id for worker in self._workers.values() if not worker.released)

    @property
    def dead(self) -> frozenset[str]:
        """Rank ids of those among them that are gone all the same."""
        return frozenset(worker.rank_id for worker in self._workers.values() if not self._is_there(worker))

    def facts(self, running: Collection[str]) -> tuple[WorkerFact, ...]:
        """For the decision; ``running`` names the ranks that are in the world."""
        return tuple(
            WorkerFact(
                worker.name,
                worker.ready,
                (SlotFact(worker.rank_id),),
                leaving=worker.leaving,
                running=worker.rank_id in running,
                gone_at=worker.machine.stay.end if worker.machine.noticed else None,
                punctual=worker.machine.noticed,
            )
            for worker in self._workers.values()
            if not worker.released
        )

    def leaving(self, members: Collection[str]) -> list[float]:
        """When the machines of these will be taken, of those that have a notice."""
        machines = (worker.machine for worker in self._workers.values() if worker.rank_id in members)
        return [machine.stay.end for machine in machines if machine.noticed]

    def last_commit_by(self, listed: Collection[str]) -> float | None:
        """When nobody will hold the state any more: as ``elastic_runtime.launcher.worker_pool.WorkerPool`` says."""
        machines = [worker.machine for worker in self._workers.values() if worker.rank_id in listed]
        ends = [machine.stay.end for machine in machines if machine.noticed]
        return min(ends, default=None) if len(ends) == len(machines) else None

    def keeper(self, members: Collection[str]) -> str | None:
        """Who has to have the state durable, if these wait for a world: as the pool says, too."""
        machines = {worker.rank_id: worker.machine for worker in self._workers.values()}
        holders = {rank_id: machines[rank_id] for rank_id in members if rank_id in machines}
        return choose_keeper({rank_id: each.stay.end if each.noticed else None for rank_id, each in holders.items()})

    def idle(self, members: Collection[str]) -> dict[Cause, int]:
        """Machines that are there without a rank in the world, by the reason."""
        counts: dict[Cause, int] = {}
        for name, machine in self._machines.items():
            worker = self._workers.get(name)
            if worker and worker.rank_id in members:
                continue
            cause = self._reason(machine, worker)
            counts[cause] = counts.get(cause, 0) + 1
        return counts

    def want(self, workers: int) -> None:
        """Another number of workers is asked for."""
        self._wanted = workers
        self._fill()
        here = [worker for worker in self._workers.values() if not (worker.leaving or worker.released)]
        here.sort(key=lambda each: not each.ready)
        for worker in here[workers:]:
            worker.leaving = True

    def release(self, name: str) -> None:
        """This worker is not needed any more."""
        self._workers[name].released = True
        self._fill()

    def retire(self, rank_ids: Collection[str]) -> None:
        """These ranks are over; their workers are free for others."""
        for worker in self._workers.values():
            if worker.rank_id in rank_ids:
                worker.retire()

    def _is_there(self, worker: Worker) -> bool:
        return worker.name in self._machines

    @staticmethod
    def _reason(machine: Machine, worker: Worker | None) -> Cause:
        if machine.noticed:
            return Cause.LEFT_EARLY
        starting = not worker.ready if worker else not machine.usable
        return Cause.MACHINE_STARTING if starting else Cause.UNUSED

    def _come(self, machine: Machine) -> None:
        self._machines[machine.stay.name] = machine
        self._timeline.after(self._costs.machine_start, lambda: self._become_usable(machine))

    def _become_usable(self, machine: Machine) -> None:
        machine.usable = True
        self._fill()

    def _notice(self, machine: Machine) -> None:
        machine.noticed = True
        worker = self._workers.get(machine.stay.name)
        if worker:
            worker.leaving = True
            self._on_notice(worker)
        self._fill()

    def _go(self, machine: Machine) -> None:
        del self._machines[machine.stay.name]
        worker = self._workers.get(machine.stay.name)
        if worker:
            self.taken += machine.noticed or not worker.released
            self.announced += machine.noticed
            self._on_vanished(worker)
            # One that was noticed is expected to go, and says goodbye.
            self._timeline.after(0.0 if machine.noticed else self._detection, lambda: self._miss(worker))

    def _miss(self, worker: Worker) -> None:
        del self._workers[worker.name]
        self._on_missed(worker)
        self._fill()

    def _fill(self) -> None:
        hosts = [
            machine
            for name, machine in self._machines.items()
            if machine.usable and not machine.noticed and (name not in self._workers or self._workers[name].released)
        ]
        missing = self._wanted - sum(not worker.released for worker in self._workers.values())
        for machine in hosts[: max(0, missing)]:
            before = self._workers.pop(machine.stay.name, None)
            worker = self._workers[machine.stay.name] = Worker(machine, ranks=before.ranks + 1 if before else 0)
            self._timeline.after(self._costs.worker_start, lambda worker=worker: self._start(worker))  # type: ignore[misc]  # mypy#1484

    @staticmethod
    def _start(worker: Worker) -> None:
        worker.ready = True
