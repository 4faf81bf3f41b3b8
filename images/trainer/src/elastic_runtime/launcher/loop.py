"""The launcher: one loop that collects facts, decides, acts, and writes the status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from elastic_runtime.clock import utc_now
from elastic_runtime.engines.base import Session, SessionCallbacks, SessionState
from elastic_runtime.engines.exits import describe
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.agent_reports import AgentReports
from elastic_runtime.launcher.agents import AgentServer
from elastic_runtime.launcher.certificate_expiry import CertificateExpiry
from elastic_runtime.launcher.deadline_watch import DeadlineWatch
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
from elastic_runtime.launcher.decision.sizing import Sizing
from elastic_runtime.launcher.differences import Differences
from elastic_runtime.launcher.gathering import Gathering
from elastic_runtime.launcher.memory_watch import MemoryWatch
from elastic_runtime.launcher.notebook import check_jupyter
from elastic_runtime.launcher.observing import scraping
from elastic_runtime.launcher.platform import Platform, Share
from elastic_runtime.launcher.record.askers import Askers
from elastic_runtime.launcher.record.output import OutputLog, ProgressLines
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.saving import ASKED_FOR, HANDOVER_TIMEOUT, Saving
from elastic_runtime.launcher.script_imports import check_frameworks
from elastic_runtime.launcher.stack_dumps import StackDumps
from elastic_runtime.launcher.standstills import Standstills
from elastic_runtime.launcher.straggler_watch import StragglerWatch
from elastic_runtime.launcher.worker_pool import TellingAgain, Worker, WorkerPool
from elastic_runtime.net import certificates
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import CommitDeadline
from elastic_runtime.run.shipment import unpack
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import EventKind, Phase, Status
from elastic_runtime.run.status_failure import LAST_WORDS
from elastic_runtime.run.waits import LOOK_BEATS

log = logging.getLogger(__name__)
_NAMED = (FailureKind.STANDSTILL, FailureKind.RANKS_DIFFER, FailureKind.OUT_OF_MEMORY)
"""Failures whose reasons name the ranks, or the worker."""

PUBLISH_INTERVAL = 0.2
"""Seconds between two writings of the status, at least; the final one is written at once."""
FIGURES_INTERVAL = 1.0
"""The same where nothing but figures is new: with many workers, a writing takes a hundredth of a second."""


class Launcher:
    """Runs one run to its end.

    Args:
        spec: what to run.
        platform: the place where the workers run.
        output: where the ranks' lines go.
        tls: folder with the launcher's certificate.
        address: to listen on, for agents and for ranks.
        port: for agents; 0 for any.
        previous: what another launcher of this run has published last; it is gone, and its run is continued.
        own_image: whether ranks run elsewhere, so that what is installed here says nothing of what they have.

    Raises:
        InvalidSettings: the spec's engine, the framework of its script, Jupyter, or what it wants to be observed with,
            is not installed; the time zone of its
            size plan is not known here; there is no token for Prometheus.
        InvalidDocument: the files that came with the run are not what can be shipped.
    """

    def __init__(
        self,
        spec: RunSpec,
        platform: Platform,
        output: OutputLog,
        tls: Path,
        address: str,
        port: int = 0,
        previous: Status | None = None,
        *,
        own_image: bool = False,
    ) -> None:
        if spec.scripts:
            unpack(spec.scripts)  # Or each agent would find out, and end, again and again.
        if not own_image:
            check_frameworks(spec)
            if spec.jupyter:
                check_jupyter()
        self._spec, self._platform, self._output = spec, platform, output
        self._tls, self._address, self._port = tls, address, port
        self._settings = DecisionSettings(spec.workers, spec.recovery, spec.timing, restart_grace=spec.restart.grace)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._pool = WorkerPool(
            *(spec.recovery, spec.timing.stop_grace, self._loop.time, spec.restart),
            lambda: self._session.fact.world if self._session else 0,
        )
        self._record = RunRecord(spec, utc_now, previous)
        used = previous.worker_seconds if previous else ()
        self._engine = find_engine(spec.engine)
        self._session: Session | None = None
        self._saving = Saving(spec, self._pool, self._record, platform, lambda: self._session, self._new_change)
        self._gathering = Gathering(spec)
        self._standstills, self._differences = Standstills(self._loop.time), Differences()
        self._stragglers = StragglerWatch(self._settings, self._pool, self._record, self._standstills, self._loop.time)
        self._memory = MemoryWatch(spec.recovery, platform.workers, self._pool, self._record)
        self._scraping = scraping(spec.observe, self._status)
        self._reports = AgentReports(
            self._pool,
            self._record,
            output,
            platform,
            lambda: self._session,
            lambda: self._share.workers,
            self._changed.set,
            self._gathering,
            self._standstills,
            self._stragglers,
            self._differences,
            self._memory,
        )
        reports = self._reports
        self._server = AgentServer(
            spec,
            reports.came,
            reports.said,
            reports.gone,
            used,
            platform.workers.expects,
            platform.workers.prove,
            platform.workers.admit,
            platform.joining,
        )
        self._clocks = Clocks(launched=self._loop.time())
        self._disturbed = False
        self._sizing = Sizing(spec, previous.plan_window, previous.pause) if previous else Sizing(spec)
        self._deadline = DeadlineWatch(spec, self._record, self._sizing, utc_now, previous)
        self._wanted, self._share, self._askers = spec.workers.start, Share(spec.workers.start), Askers()
        self._last_commit_told: tuple[CommitDeadline, int] = (CommitDeadline(None), 0)
        self._telling_again, self._published = TellingAgain(), 0.0
        self._stacks = StackDumps(platform, self._pool, self._record, self._loop.time)
        self._progress = ProgressLines(self._loop.time)
        self._stop_by: datetime | None = None
        """Since ranks are to stop for a pause: when that is given up."""
        self._state_lost = ""
        """What became of the state when the last session was closed, where it is lost."""
        self._told: object = None
        """What was new at the last writing."""

    async def run(self) -> Status:
        """Until the run has ended, or this launcher has to make way for another one.

        Returns:
            The last status; final when the run has ended, and then every worker is gone.

        Raises:
            OwnershipLost: another launcher has the run.
        """
        if self._scraping:
            await self._scraping.start(self._address)
        expiry = CertificateExpiry(certificates.expiry(self._tls), self._record, utc_now)
        port = await self._server.start(self._tls, self._address, self._port)
        self._platform.open(port, self._changed.set)
        try:
            while True:
                self._changed.clear()
                self._note_stops()
                facts, now = self._collect(), self._loop.time()
                self._clocks = observe(self._clocks, facts, self._settings, now)
                decision = decide(facts, self._clocks, self._settings, now)
                self._record.stand(decision.phase, decision.reason)
                for action in decision.actions:
                    if isinstance(action, Finish):
                        return await self._finish(action, decision.reason)
                    if isinstance(action, StepDown):
                        return await self._step_down(action.handover)
                    await self._carry_out(action)
                self._stop(StopTraining() in decision.actions)
                if facts.may_end:
                    self._pool.let_end()
                self._tell_last_commit()
                self._pool.tell_hosts(self._session.rank_of if self._session else {})
                self._stacks.look()
                expiry.look()
                self._progress.look(self._record, self._output.lines)
                self._deadline.look()
                self._stragglers.look(facts, self._replace)
                self._publish()
                await self._next_change()
        finally:
            await self._close()

    def _collect(self) -> Facts:
        self._look_at_size()
        self._look_at_workers()
        ranks = self._session.rank_of if self._session else {}
        session = self._session.fact if self._session else None
        if session and session.static and not self._spec.fixed_size:
            self._record.trains_static()
        if session and session.again:
            self._record.trains_again()
        facts = Facts(
            wanted=self._share.workers,
            workers=self._pool.facts(),
            session=session,
            trained=self._record.trained,
            rank_failures=self._record.rank_failures,
            forced_resets=self._record.forced_resets,
            cancel=self._platform.cancel(),
            lease_age=self._platform.lease_age(),
            watched=self._platform.watched(),
            leadership=self._platform.leadership(),
            refusal=self._platform.workers.refusal(),
            refused_sizes=self._record.lives.refused,
            handover_open=self._handover_is_open(),
            heard=self._pool.heard(),
            commits=self._pool.leave_time.commits,
            leave_time=self._pool.leave_time.seconds(),
            ending=self._pool.ending(ranks) if session and session.state is SessionState.SETTLED else None,
            ended=self._pool.ended(ranks),
            all_run=session is not None and session.state is SessionState.FORMING and self._pool.all_run(ranks),
            excused=self._standstills.excused(ranks),
            inquiry=self._standstills.inquiry(ranks),
            stalls=self._standstills.stalls,
            leases=self._reports.leases(),
            difference=self._differences.present,
            differences=self._differences.past,
            over_budget=self._deadline.over_budget(len(self._pool.workers)),
            out_of_memory=self._memory.refused,
            starved=self._memory.starved,
            is_consequence=self._record.failures.is_consequence,
            pause=self._record.pause_fact(),
            stands=self._pool.stands,
        )
        if not facts.has_world:
            self._record.no_world()
        return facts

    def _handover_is_open(self) -> bool:
        """Whether ranks are to write because of a notice, and no durable checkpoint has what there was to keep then."""
        leaving = [worker for worker in self._pool.workers.values() if worker.deadline is not None]
        if self._spec.checkpoint is None or not leaving:
            return False
        durable = self._record.checkpoint.step if self._record.checkpoint else -1
        return any(worker.step_at_notice is not None and worker.step_at_notice > durable for worker in leaving)

    def _look_at_size(self) -> None:
        asked, requests = self._platform.asked(), self._platform.requests()
        wish = self._askers.newest(requests)
        before = self._sizing.pause
        note = self._sizing.look(asked, utc_now(), wish)
        then = self._deadline.size_seen(asked=note is not None)
        if note:
            who = self._askers.who(requests, asked)
            if wish and before != self._sizing.pause:
                who = wish.by
            self._record.event(EventKind.SIZE_ASKED, f"{note}, by {who}{then}" if who else f"{note}{then}")
        self._record.asked_to_pause(self._sizing.pause)
        if self._sizing.pause and not self._spec.can_pause:
            self._refuse_pause("there is no checkpoint store, so the state would be lost")
        wanted = self._sizing.wanted
        if self._sizing.write:
            self._platform.ask(wanted)
        if wanted != self._wanted:
            self._record.lives.asked(wanted * self._spec.workers.slots)
        self._wanted, share = wanted, self._platform.workers.share(wanted)
        if share != self._share and share.words:
            self._record.event(EventKind.SIZE_ASKED, share.words)
        self._share = share

    def _refuse(self, size: int, before: int) -> None:
        """Go back to the size that worked, if the other was asked for; else it is that of workers that were left."""
        ranks = self._session.rank_of if self._session else {}
        words, slots = self._record.failures.words(tuple(ranks)), self._spec.workers.slots
        self._record.lives.refuse(size)
        self._platform.workers.only(before // slots)
        if size == self._wanted * slots:
            self._sizing.order(before // slots)
        self._record.event(
            EventKind.WARNING,
            f"the script failed in a world of {size} ranks before its first step: {words[:200]}. The run goes back to "
            f"{before}, which had worked; {size} is tried again when somebody asks for it anew",
        )

    def _hold(self, workers: int) -> None:
        """Have no more of them, until somebody asks for another size: which is answered likewise."""
        asked = self._share.workers
        self._platform.workers.only(workers)
        self._record.lives.refuse(asked * self._spec.workers.slots)
        self._sizing.order(workers)
        words = f"the script has no elastic state, and cannot use {asked} workers: the run stays at {workers}"
        self._record.event(EventKind.WARNING, words)

    def _refuse_pause(self, reason: str) -> None:
        self._record.pause_refused(reason)
        self._sizing.refuse_pause()

    def _stop(self, stops: bool) -> None:
        """Have ranks stop for a pause, or go on; :meth:`_tell_last_commit` tells them."""
        if not stops:
            self._stop_by = None
            self._pool.stands = False
        elif self._stop_by is None:
            self._stop_by = utc_now() + timedelta(seconds=self._spec.recovery.max_wait)

    def _end_all_workers(self) -> None:
        """For a pause. Whoever sets another size meanwhile is overruled: to resume the run is the way."""
        if self._platform.asked() != 0:
            self._platform.ask(0)
        for worker in self._pool.workers.values():
            if not worker.released:
                self._pool.release(worker.name, "the run is paused")

    def _note_stops(self) -> None:
        """What is to be known of ranks that were asked to end."""
        self._record.stopped(self._pool.stops.take(), self._session.rank_of if self._session else {})

    def _look_at_workers(self) -> None:
        """What the platform knows of them."""
        for words in self._platform.workers.warnings():
            self._record.event(EventKind.WARNING, words)
        self._memory.look()
        for worker in self._pool.workers.values():
            if not worker.connection.given_up and (stray := self._platform.workers.stray(worker.name)):
                worker.connection.give_up(stray)
            worker.machine = worker.machine or self._platform.workers.machine(worker.name)
            deadline = self._platform.workers.deadline(worker.name)
            if deadline is not None and (worker.deadline is None or deadline < worker.deadline):
                self._reports.will_be_taken(worker, "the cluster", deadline)

    def _replace(self, worker: Worker) -> None:
        deadline = utc_now() + timedelta(seconds=self._spec.timing.leave_grace)
        self._reports.will_be_taken(worker, "it holds the others back", deadline)

    def _tell_last_commit(self) -> None:
        """To be told again to each new world, some ranks of which are new."""
        fact = self._session.fact if self._session else None
        if self._telling_again.due(
            self._record.generation,
            tuple(self._session.rank_of) if self._session else (),
            trains=fact is not None and fact.state is SessionState.SETTLED,
            is_open=self._handover_is_open(),
            runs=self._pool.runs,
        ):
            for worker in self._pool.workers.values():
                if worker.deadline is not None:
                    self._pool.hand_over(worker.name, worker.deadline)
        listed, stops = fact.listed if fact else (), self._stop_by is not None
        word = self._saving.last_word(fact, self._stop_by)
        word = word or CommitDeadline(self._pool.last_commit_by(listed), stops=stops)
        told = (word, self._record.generation if word.deadline or stops else 0)
        if told != self._last_commit_told:
            self._last_commit_told = told
            self._pool.tell_last_commit(word)

    async def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912  # one case an action
        log.debug("%s", printable(action))
        match action:
            case OpenSession(ranks, minimum):
                if self._record.trained:
                    self._record.restarted(len(ranks), self._state_lost)
                self._state_lost = ""
                callbacks = SessionCallbacks(
                    self._changed.set,
                    self._world_complete,
                    self._rank_exited,
                    self._rank_over,
                    self._record.starts,
                    self._record.lives.worked_before,
                    self._record.failures.gave_up_peer,
                )
                self._session = self._engine.session(self._pool, self._address, 0, callbacks)
                self._session.open(ranks, minimum)
            case ListRanks(ranks, minimum):
                if self._session:
                    fact = self._session.fact
                    if fact.state is SessionState.SETTLED and set(ranks) < set(fact.listed):
                        self._pool.leave_time.asked()
                    self._session.list_ranks(ranks, minimum)
            case GiveUpWorker(name, reason):
                self._pool.workers[name].connection.give_up(reason)
            case ReformWorld():
                if self._session:
                    self._session.reform()
            case AskRanks():
                self._ask_ranks(action)
            case EndStandstill(stall, rank_ids, reason):
                self._standstills.acts(stall)
                self._kill_ranks(rank_ids, EventKind.STANDSTILL, reason, stall.step)
            case EndDifference(difference, reason):
                self._differences.acts()
                self._kill_ranks(difference.rank_ids, EventKind.RANKS_DIFFER, reason, difference.step)
            case RefuseSize(size, before):
                self._refuse(size, before)
            case HoldSize(workers):
                self._hold(workers)
            case CloseSession():
                self._state_lost = "" if self._pool.stands else await self._saving.save_state(None)
                await self._end_session()
            case ReleaseWorker(name):
                self._pool.release(name, "no rank of this worker is in the world any more")
                self._platform.workers.replace(name)
            case _:
                self._carry_out_pause(action)

    def _carry_out_pause(self, action: Action) -> None:
        match action:
            case EndWorkers():
                self._end_all_workers()
            case RefusePause(reason):
                self._refuse_pause(reason)
            case _:
                assert isinstance(action, StopTraining), "the others are handled by the loop"

    def _ask_ranks(self, asked: AskRanks) -> None:
        self._standstills.asks(self._record.step, quiet=asked.quiet, early=asked.early)
        count = self._pool.dump_stacks(ask=True, quiet=asked.quiet)
        if not asked.quiet:
            self._record.event(EventKind.STANDSTILL, f"{asked.reason}; the stacks of {count} ranks are in the log")

    def _kill_ranks(self, rank_ids: Sequence[str], kind: EventKind, reason: str, step: int | None) -> None:
        """Kill ranks, so that the others form another world; or have all form another, if these are none."""
        self._record.event(kind, reason, step=step)
        self._reports.stops(rank_ids)
        for rank_id in rank_ids:
            self._pool.kill_rank(rank_id)
        if self._session and not rank_ids:
            self._session.break_up()

    async def _finish(self, action: Finish, reason: str) -> Status:
        reason += await self._saving.save_state(action.failure)
        await self._end_session()
        self._record.no_world()
        self._platform.publish(self._status())
        await self._platform.flush()  # Or it is another launcher that needs the workers.
        await self._gathering.gather(self._pool.workers.values(), self._status())
        for name in list(self._pool.workers):
            self._pool.release(name, "the run has ended")
        await self._platform.end_workers()
        await self._server.close()
        self._output.end()
        self._record.finish(action.phase, self._with_cause(action, reason), action.failure)
        status = self._status()
        self._platform.publish(status)
        await self._platform.flush()
        return status

    async def _step_down(self, handover: bool) -> Status:
        """The workers stay; their agents dial again, and find the next launcher."""
        if handover and self._session and self._session.fact.restarts:
            await self._saving.have_script_save(self._session)
        elif handover and self._spec.checkpoint:
            await self._saving.hand_over(HANDOVER_TIMEOUT)
        self._output.end()
        status = self._status()
        self._platform.publish(status)
        self._pool.let_go()
        await self._server.close()
        return status

    def _with_cause(self, end: Finish, reason: str) -> str:
        if end.phase is not Phase.FAILED or end.failure in (*ASKED_FOR, *_NAMED):
            return reason
        if first := self._record.failures.first:
            return f"{reason}; {first.summary}{self._record.advice}"
        words = self._output.last_error(of_peers=end.failure is not FailureKind.EARLY_EXIT)
        return f"{reason}{LAST_WORDS}{words}" if words else reason

    async def _end_session(self) -> None:
        if self._session:
            await self._session.close(self._spec.timing.stop_grace)
            self._note_stops()
            self._session = None
            self._changed.set()

    async def _close(self) -> None:
        await self._end_session()
        if self._scraping:
            await self._scraping.close()
        await self._server.close()
        await self._platform.close()

    async def _new_change(self) -> None:
        self._changed.clear()
        await self._next_change()

    async def _next_change(self) -> None:
        timing = self._spec.timing
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_BEATS * timing.heartbeat if self._clocks.silent else timing.tick):
                await self._changed.wait()

    def _status(self) -> Status:
        ranks = self._session.rank_of if self._session else {}
        wanted, coming = self._wanted, self._sizing.coming(utc_now())
        if self._record.is_paused:
            wanted, coming = 0, ()
        status = self._record.status(self._pool.workers.values(), ranks, wanted, coming)
        traces = self._gathering
        told = replace(status, plan_window=self._sizing.window, deadline=self._deadline.told())
        return replace(told, timeline=traces.timeline, profiles=traces.profiles)

    def _publish(self) -> None:
        news = self._record.news, self._pool.facts(), self._wanted, self._share
        interval = PUBLISH_INTERVAL if news != self._told else FIGURES_INTERVAL
        if self._loop.time() - self._published < interval:
            if news != self._told:
                self._loop.call_later(PUBLISH_INTERVAL, self._changed.set)
            return
        self._published, self._told = self._loop.time(), news
        self._platform.publish(self._status())

    # What the session tells.

    def _world_complete(self, members: list[str]) -> None:
        self._record.forced_resets += self._disturbed
        self._disturbed = False
        self._pool.new_world()
        self._standstills.new_world(members)
        self._stragglers.new_world(members)
        self._differences.new_world()
        self._memory.new_world([each for each in members if not self._pool.runs(each)])
        self._record.world(members)

    def _rank_exited(self, rank_id: str, code: int, expected: bool) -> None:
        if expected:
            log.debug("rank %s ended with %s", rank_id, describe(code))
            self._pool.forgive(rank_id)
            return
        self._disturbed = True
        self._record.disturbed()
        worker = self._pool.worker_of(rank_id)
        taken = worker is not None and worker.deadline is not None and code in (-signal.SIGTERM, -signal.SIGKILL)
        explained = self._memory.explains(rank_id)
        if worker is not None and not (taken or explained):  # Its worker is still here, so it ended by itself.
            rank = self._session.rank_of.get(rank_id) if self._session else None
            self._record.rank_failed(rank_id, code, worker.name, rank)

    def _rank_over(self, rank_id: str) -> None:
        self._pool.retire(rank_id)
        self._changed.set()
