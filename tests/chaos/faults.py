"""Does to a living run what a plan says, at its times."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psutil

from elastic_runtime.run.status import Phase, Status, WorkerStatus
from tests.chaos.judge import Applied
from tests.chaos.places import RoundRun
from tests.chaos.plan import Fault, FaultKind

SEARCH = 2.0
"""Seconds for which a fault waits for somebody whom it could hit, before it is left out."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a fault hits."""

    workers: tuple[str, ...]
    signalled: tuple[int, ...]
    """Pids."""
    taken_along: tuple[int, ...] = ()
    """Pids of processes that end if the signalled ones are killed."""


OF_THE_RUN: Mapping[FaultKind, Callable[[RoundRun, Fault], object]] = {
    FaultKind.RESIZE: lambda run, fault: run.resize(fault.size),
    FaultKind.PAUSE: lambda run, _: run.pause(),
    FaultKind.DELETE_LAUNCHER: lambda run, _: run.delete_launcher(),
    FaultKind.LOSE_LAUNCHER: lambda run, _: run.lose_launcher(),
}
"""Those that hit no process of this machine."""


@dataclass
class Injector:
    """Applies faults; call :meth:`tick` often.

    Args:
        run: that is disturbed.
        faults: what is to be done, with times from ``begin`` on.
        begin: when the first world began.
    """

    run: RoundRun
    faults: Sequence[Fault]
    begin: float
    applied: list[Applied] = field(default_factory=list)
    missed: list[Fault] = field(default_factory=list)
    """Those that found nobody to hit."""

    def __post_init__(self) -> None:
        self._pending = [(self.begin + fault.at, fault) for fault in self.faults]
        self._takings: list[tuple[float, str]] = []
        self._stopped: list[tuple[float, int, psutil.Process]] = []
        self._paused: list[tuple[float, int]] = []
        self._launching: list[int] = []

    def tick(self, now: float, status: Status) -> None:
        """Do what is due."""
        self._let_go_on(now)
        self._resume(now, status)
        for index in self._launching:  # The status is the next launcher's, and it has a first world.
            self.applied[index] = replace(self.applied[index], until=now)
        self._launching.clear()
        for at, worker in [taking for taking in self._takings if taking[0] <= now]:
            self._takings.remove((at, worker))
            self._take(now, worker, status)
        for due in [each for each in self._pending if each[0] <= now]:
            at, fault = due
            if fault.stored and self.run.stored() < fault.stored:
                continue
            if self._apply(now, fault, status):
                self._pending.remove(due)
            elif now > at + SEARCH:
                self._pending.remove(due)
                self.missed.append(fault)

    def release(self, now: float) -> None:
        """Whatever stands still goes on; the run is over, or given up."""
        self._let_go_on(now, due_only=False)

    def _apply(self, now: float, fault: Fault, status: Status) -> bool:
        if of_the_run := OF_THE_RUN.get(fault.kind):
            of_the_run(self.run, fault)
            if fault.kind is FaultKind.LOSE_LAUNCHER:
                self._launching.append(len(self.applied))
            if fault.kind is FaultKind.PAUSE:
                self._paused.append((now + fault.seconds, len(self.applied)))
            self.applied.append(Applied(fault, now))
            return True
        target = choose(fault, [worker for worker in status.workers if self._is_here(worker)])
        if target is None:
            return False
        if fault.kind.notices:
            return self._notice(now, fault, target)
        return self._signal(now, fault, target)

    def _is_here(self, worker: WorkerStatus) -> bool:
        return not worker.state.gone and bool(worker.pids) and self._process(worker.pids[0]) is not None

    def _notice(self, now: float, fault: Fault, target: Target) -> bool:
        for worker in target.workers:
            self.run.reclaim(worker, fault.seconds)
            if fault.taken:
                self._takings.append((now + fault.seconds, worker))
        self.applied.append(Applied(fault, now, workers=target.workers))
        return True

    def _take(self, now: float, worker: str, status: Status) -> None:
        here = [each for each in status.workers if each.name == worker and self._is_here(each)]
        fault = Fault(now - self.begin, FaultKind.KILL_AGENT)
        if target := choose(fault, here):
            self._signal(now, fault, target)

    def _signal(self, now: float, fault: Fault, target: Target) -> bool:
        number = signal.SIGSTOP if fault.kind.stops else signal.SIGKILL
        hit = [process for pid in target.signalled if (process := self._process(pid)) and _sent(process, number)]
        if not hit:
            return False
        pids = (*(process.pid for process in hit), *(() if fault.kind.stops else target.taken_along))
        until = now + fault.seconds if fault.kind.stops else None
        if until is not None:
            self._stopped.append((until, len(self.applied), hit[0]))
        self.applied.append(Applied(fault, now, pids, target.workers, until))
        return True

    def _let_go_on(self, now: float, *, due_only: bool = True) -> None:
        for stop in [stop for stop in self._stopped if stop[0] <= now or not due_only]:
            self._stopped.remove(stop)
            _, index, process = stop
            _sent(process, signal.SIGCONT)
            self.applied[index] = replace(self.applied[index], until=now)

    def _resume(self, now: float, status: Status) -> None:
        for pause in [pause for pause in self._paused if pause[0] <= now and _is_paused(status)]:
            self._paused.remove(pause)
            self.run.resume()
            self.applied[pause[1]] = replace(self.applied[pause[1]], until=now)

    def _process(self, pid: int) -> psutil.Process | None:
        try:
            process = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return None
        return process if self.run.owns(process) else None


def choose(fault: Fault, here: Sequence[WorkerStatus]) -> Target | None:
    """Whom of these workers the fault hits; None: nobody whom it could."""
    ranks = [(worker, pid) for worker in here for pid in worker.pids[1:]]
    match fault.kind:
        case FaultKind.KILL_RANK | FaultKind.STOP_RANK if ranks:
            worker, pid = ranks[int(fault.pick * len(ranks))]
            return Target((worker.name,), (pid,))
        case FaultKind.KILL_ALL_RANKS if ranks:
            return Target(tuple({worker.name: None for worker, _ in ranks}), tuple(pid for _, pid in ranks))
        case FaultKind.NOTICE_ALL if here:
            return Target(tuple(worker.name for worker in here), ())
        case FaultKind.KILL_AGENT | FaultKind.STOP_AGENT | FaultKind.NOTICE if here:
            worker = here[int(fault.pick * len(here))]
            return Target((worker.name,), worker.pids[:1], worker.pids[1:])
    return None


def _is_paused(status: Status) -> bool:
    return status.phase is Phase.PAUSED and all(worker.state.gone for worker in status.workers)


def _sent(process: psutil.Process, number: signal.Signals) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True
