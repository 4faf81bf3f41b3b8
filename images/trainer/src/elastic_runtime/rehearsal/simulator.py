"""Runs the launcher's real decision over a trace, on virtual time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from elastic_runtime.engines.base import SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import (
    Action,
    AskRanks,
    Clocks,
    CloseSession,
    DecisionSettings,
    EndDifference,
    EndStandstill,
    EndWorkers,
    Facts,
    Finish,
    GiveUpWorker,
    HoldSize,
    ListRanks,
    OpenSession,
    ReformWorld,
    RefusePause,
    RefuseSize,
    ReleaseWorker,
    StepDown,
    StopTraining,
)
from elastic_runtime.launcher.leave_time import time_to_leave
from elastic_runtime.rehearsal.account import Account, Cause
from elastic_runtime.rehearsal.checkpoints import Checkpoints
from elastic_runtime.rehearsal.fleet import Fleet, Worker
from elastic_runtime.rehearsal.policy import Job, Policy, oracle_rate
from elastic_runtime.rehearsal.progress import Progress
from elastic_runtime.rehearsal.session import Session
from elastic_runtime.rehearsal.steering import Steering
from elastic_runtime.rehearsal.timeline import Event, Timeline
from elastic_runtime.rehearsal.trace import Notices, Trace
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec, Timing, WorkersSpec

TICK = 1.0
"""Seconds: the launcher decides so often when something may come due (:attr:`elastic_runtime.run.spec.Timing.tick`)."""
ROUNDS = 20
"""Decisions at one moment; more of them would be a launcher that goes round in circles."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run fared on a trace. Work is in seconds of a worker that trains alone."""

    account: Account
    useful: float
    """Work done and kept."""
    steps: int
    """Global steps done and kept."""
    lost_steps: int
    """Whole steps done in vain: they had not been committed, or the commit went with the last who held it."""
    planned_resets: int
    forced_resets: int
    """By a loss."""
    sessions: int
    """Sessions: the first, and one for each restart."""
    checkpoints: int
    losses: int
    """Workers whose machine was taken."""
    announced: int
    """Workers of these that had a notice."""
    seconds: float
    """From the run's begin to its end."""
    finished: bool
    """Whether all steps were done that the job has; False also where it has no number of them."""
    end: str | None
    """Why the run had to end before the trace did, by a limit."""
    failure: FailureKind | None
    """Which limit that was."""
    paid: tuple[tuple[float, int], ...]
    """(seconds, workers that are there), an entry for each change: see :attr:`.fleet.Fleet.hired`."""
    history: tuple[tuple[float, int, int], ...]
    """(seconds, machines there, ranks that train), an entry for each change."""

    @property
    def goodput(self) -> float:
        """Share of the oracle's work that was done and kept."""
        return self.useful / self.account.oracle if self.account.oracle else 0.0


def simulate(trace: Trace, policy: Policy, job: Job, notices: Notices) -> Outcome:
    """Replay it to its end."""
    return _Simulation(trace, policy, job, notices).run()


class _Simulation:
    """The launcher's loop (:class:`elastic_runtime.launcher.loop.Launcher`) with a modelled world around it."""

    def __init__(self, trace: Trace, policy: Policy, job: Job, notices: Notices) -> None:
        self._trace, self._policy, self._job = trace, policy, job
        fixed = policy.mode is RecoveryMode.FIXED
        most = job.fixed if fixed else job.maximum
        start = most if job.start is None else job.start
        recovery = RecoverySpec(
            policy.mode,
            max_wait=job.max_wait,
            start_timeout=trace.duration if job.start_timeout is None else job.start_timeout,
            reset_limit=job.reset_limit,
        )
        workers = WorkersSpec(min(job.minimum, most), start, most)
        self._settings = DecisionSettings(workers, recovery, Timing(lease=0.0, gather=policy.gather))
        self._wanted = start
        self._timeline, self._account = Timeline(), Account()
        self._progress = Progress(job.step_work)
        self._checkpoints = Checkpoints(self._timeline, self._progress, policy.costs, kept=job.durable)
        self._fleet = Fleet(
            self._timeline,
            trace,
            notices,
            policy.costs,
            self._wanted,
            listens=policy.listens,
            on_notice=self._noticed,
            on_vanished=self._vanished,
            on_missed=self._missed,
        )
        self._steering: Steering | None = None
        if job.deadline is not None:
            assert job.steps is not None  # of a Job with a deadline
            self._steering = Steering(job.deadline, workers, recovery, job.steps)
        self._session: Session | None = None
        self._tick: Event | None = None
        self._trained = False
        self._clocks = Clocks(launched=0.0)
        self._end: str | None = None
        self._failure: FailureKind | None = None
        self._sessions = self._planned_resets = self._forced_resets = 0
        self._history: list[tuple[float, int, int]] = []
        self._paid: list[tuple[float, int]] = []
        self._finished: float | None = None

    def run(self) -> Outcome:
        self._timeline.at(0.0, lambda: None)  # The launcher decides from the begin on, also without any machine.
        if self._steering:
            self._steer(self._steering)
        self._timeline.run(self._trace.duration, passes=self._pass, happened=self._happened)
        self._count_resets()
        self._account.redo(self._progress.lost_work)
        return Outcome(
            account=self._account,
            useful=self._progress.work,
            steps=self._progress.steps,
            lost_steps=self._progress.lost_steps,
            planned_resets=self._planned_resets,
            forced_resets=self._forced_resets,
            sessions=self._sessions,
            checkpoints=self._checkpoints.written,
            losses=self._fleet.taken,
            announced=self._fleet.announced,
            seconds=self._timeline.now if self._finished is None else self._finished,
            finished=self._finished is not None,
            end=self._end,
            failure=self._failure,
            paid=tuple(self._paid),
            history=tuple(self._history),
        )

    # Time

    def _pass(self, seconds: float) -> None:
        hired = self._fleet.hired
        if not self._paid or self._paid[-1][1] != hired:
            self._paid.append((self._timeline.now, hired))
        if (until := self._until_finished()) <= seconds:
            seconds = until
            self._finished = self._timeline.now + until
            self._timeline.stop()
        oracle, session = oracle_rate(self._fleet.size, self._job), self._session
        if self._steering:
            self._steering.worker_seconds += hired * seconds
        if session and session.trains:
            before = self._progress.position
            self._progress.train(seconds * session.rate)
            if self._steering:
                self._steering.trained(before, self._progress.position, self._timeline.now, seconds)
            self._account.train(seconds, oracle, session.rate, self._fleet.idle(session.members))
        else:
            self._account.pause(seconds, oracle, self._cause())

    def _until_finished(self) -> float:
        """Seconds, if the world goes on as it is."""
        session, job = self._session, self._job
        if job.steps is None or not session or not session.trains:
            return math.inf
        return max(0.0, job.steps * job.step_work - self._progress.work) / session.rate

    def _cause(self) -> Cause:
        if self._end is not None:
            return Cause.STOPPED
        if not self._trained:
            return Cause.STARTING
        if self._session:
            return self._session.cause
        return Cause.RESTARTING if self._clocks.gathering_since is not None else Cause.WAITING

    def _happened(self) -> None:
        self._decide_until_nothing_is_left()
        ranks = len(self._session.members) if self._session and self._session.trains else 0
        entry = (self._timeline.now, self._fleet.size, ranks)
        if not self._history or self._history[-1][1:] != entry[1:]:
            self._history.append(entry)

    def _steer(self, steering: Steering) -> None:
        """Have the deadline set the size, from now on and again."""
        session = self._session
        ranks = session.members if session and session.fact.state is SessionState.SETTLED else ()
        wanted = steering.look(
            self._timeline.now, self._progress.steps, len(ranks), self._fleet.leaving(ranks), self._account.paused
        )
        if wanted != self._wanted:
            self._wanted = wanted
            self._fleet.want(wanted)
        self._timeline.after(steering.next_look, lambda: self._steer(steering))

    # The launcher's loop

    def _decide_until_nothing_is_left(self) -> None:
        for _ in range(ROUNDS):
            if self._end is not None:
                return
            facts, now = self._collect(), self._timeline.now
            self._clocks = observe(self._clocks, facts, self._settings, now)
            decision = decide(facts, self._clocks, self._settings, now)
            for action in decision.actions:
                self._carry_out(action, decision.reason)
            if self._session:
                self._session.last_commit_by(self._fleet.last_commit_by(self._session.fact.listed))
                self._session.keep(self._fleet.keeper(self._session.members))
            if not decision.actions:
                self._wake_up()
                return
        raise AssertionError(f"the launcher goes round in circles at {self._timeline.now} s")

    def _collect(self) -> Facts:
        session = self._session
        return Facts(
            wanted=self._wanted,
            workers=self._fleet.facts(session.members if session else ()),
            session=session.fact if session else None,
            trained=self._trained,
            forced_resets=self._forced_resets + (session.forced_resets if session else 0),
            leave_time=self._leave_time(),
            over_budget=self._steering.over_budget(self._fleet.hired) if self._steering else None,
        )

    def _leave_time(self) -> float:
        """Where each takes what it always takes."""
        costs, step = self._policy.costs, self._job.step_work / oracle_rate(self._wanted, self._job)
        return time_to_leave(step, costs.checkpoint_write, costs.leave)

    def _wake_up(self) -> None:
        """While the world stands, nothing comes due but a worker's time to leave, and what is an event anyway."""
        settled = self._session and self._session.fact.state is SessionState.SETTLED and not self._fleet.has_notice
        if not settled and (self._tick is None or self._tick.at <= self._timeline.now):
            self._tick = self._timeline.after(TICK, lambda: None)

    def _carry_out(self, action: Action, reason: str) -> None:
        match action:
            case OpenSession(ranks, minimum):
                self._open(ranks, minimum)
            case ListRanks(ranks, minimum):
                assert self._session is not None  # or there were no ranks to list
                self._session.list_ranks(ranks, minimum)
            case ReformWorld():
                assert self._session is not None  # or no world was forming
                self._session.reform()
            case CloseSession():
                self._count_resets()
                self._session = None
            case ReleaseWorker(name):
                self._fleet.release(name)
            case Finish(failure=failure):
                self._count_resets()
                self._session, self._end, self._failure = None, reason, failure
                if self._job.steps is not None:  # Without, what the oracle does meanwhile counts, to the trace's end.
                    self._timeline.stop()
            case (
                StepDown() | RefuseSize() | HoldSize() | GiveUpWorker() | AskRanks() | EndStandstill() | EndDifference()
            ):
                raise AssertionError("ranks that stand still, or differ, are not simulated")
            case StopTraining() | EndWorkers() | RefusePause():
                raise AssertionError("no run is paused in a simulation")
            case _:
                assert_never(action)

    def _open(self, ranks: tuple[str, ...], minimum: int) -> None:
        costs = self._policy.costs
        self._session = Session(
            self._timeline,
            self._fleet,
            self._progress,
            self._checkpoints,
            costs,
            self._job.scaling,
            most=lambda: self._wanted,
            in_place=self._policy.in_place,
            on_world=self._world_complete,
        )
        self._sessions += 1
        read = costs.checkpoint_read if self._progress.durable else 0.0
        self._session.open(ranks, minimum, costs.session_start + read)

    def _count_resets(self) -> None:
        if self._session:
            self._planned_resets += self._session.planned_resets
            self._forced_resets += self._session.forced_resets

    # What is heard

    def _world_complete(self) -> None:
        self._trained = True
        if self._steering and self._session:
            self._steering.world(len(self._session.members))

    def _noticed(self, _worker: Worker) -> None:
        if self._session:
            self._session.hand_over()

    def _vanished(self, worker: Worker) -> None:
        if self._session:
            self._session.vanished(worker.rank_id)

    def _missed(self, worker: Worker) -> None:
        if self._session:
            # The launcher hears first that an agent is gone, and decides; then all ranks stand at the barrier.
            self._decide_until_nothing_is_left()
        if self._session:
            self._session.missed(worker.rank_id)
