"""An elastic state that outlives the fleet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from elastic_runtime.at_exit import AtExit
from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints, Record, StoredCheckpoint
from elastic_runtime.checkpoint.receipts import UNTIL
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json
from elastic_runtime.errors import ElasticError, StatesDiffer
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import (
    CHECKPOINT,
    Progress,
    RankLink,
    TrainingEnded,
    TrainingStopped,
    shared_link,
)
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.script.standing import ledger, script_place
from elastic_runtime.training.batches.plan import BatchPlan
from elastic_runtime.training.checkpointing.between_commits import BetweenCommits
from elastic_runtime.training.checkpointing.notices import PAUSE, Notices
from elastic_runtime.training.checkpointing.parts import part_writers, read_parts
from elastic_runtime.training.checkpointing.writer import CheckpointWriter, Snapshot
from elastic_runtime.training.family import Family
from elastic_runtime.training.observing import observing
from elastic_runtime.training.receipt import StepLog
from elastic_runtime.training.state.collectives import Agreements, Signals
from elastic_runtime.training.state.fingerprint import Fingerprint, fingerprint
from elastic_runtime.training.state.handlers import ForeignHandler, check_storable
from elastic_runtime.training.state.resuming import take_newest
from elastic_runtime.training.state.save_cost import MOST_CALLS, SaveCost
from elastic_runtime.training.state.values import StateValues, check_names, check_parts, check_stored_step
from elastic_runtime.training.state.verification import CommitChecks, Verify, check_verify
from elastic_runtime.training.whole_numbers import whole_number
from elastic_runtime.world import current_world

PROGRESS_PAUSE = 0.25
"""Seconds between two words of progress to the agent."""
STOPPED_INTERVAL = 1.0
"""Seconds between two messages that training has stopped at a durable commit."""
CAUGHT = (
    "the script has caught the interrupt of a commit at which the world changes (%s): the rank stays in its world, "
    "and each further commit raises it again. Catch the exceptions that you expect there, and let others pass"
)
"""With the place of the next commit."""
LOADING = 3600.0
"""Seconds for which a load counts as one, and not as a standstill."""


class ProgressLine:
    """Rank 0's word of how far the training is, not too often.

    Args:
        link: to the agent.
        clock: monotonic seconds.
    """

    def __init__(self, link: RankLink, clock: Callable[[], float]) -> None:
        self._link, self._clock = link, clock
        self._sent: tuple[float, int] | None = None

    def tell(self, step: int, *, last: bool) -> None:
        """The step of the last commit; the last one in any case."""
        now = self._clock()
        if self._sent is not None:
            then, told = self._sent
            if step == told or not (last or now - then >= PROGRESS_PAUSE):
                return
        self._sent = (now, step)
        self._link.send(Progress(step=step))


def checkpoints_asked(checkpoint: CheckpointSpec | str | None) -> CheckpointSpec | None:
    """Return the checkpoints of a script's argument, or of the run that this process is a rank of, if it has any."""
    if isinstance(checkpoint, str):
        return CheckpointSpec(uri=checkpoint)
    if checkpoint is None and CHECKPOINT in os.environ:
        return from_json(CheckpointSpec, os.environ[CHECKPOINT])
    return checkpoint


_log = script_logger(__name__)


class DurableState:
    """Elastic state with durable checkpoints. Each framework's package has one for its own tensors.

    It uses the :class:`~elastic_runtime.world.World` of the rank, made by any engine.

    In a run with a checkpoint store (from the environment that the launcher sets, or ``checkpoint``), rank 0

    * loads the newest valid checkpoint when the state is created, so ``state.step`` is right from then on,
    * writes the newest commit in the background every so many seconds, and at once before a worker is taken, also if
      the training thread is busy with an evaluation and reaches no other commit in time,
    * writes the last commit when training ends: in :meth:`finish`, or at the end of the state's ``with`` block. After a
      function under ``hvd.elastic.run``, the launcher's ranks do that by themselves, and at the latest when the process
      ends.

    Without a store, its new ranks are exact, too, and its commits copy in place. Under Horovod, each commit costs one
    small collective.

    Args:
        model: Model, kept by its state.
        optimizer: Optimizer, kept by its state; ``hvd.DistributedOptimizer``, too.
        checkpoint: Where and how often to write, or only the URI. None: from the environment.
        verify: When ranks compare fingerprints of the state. ``"commits"``: all of it after each sync, and parameters,
            optimizers and the step at some commits, in 0.4 % of the time. ``"syncs"``: only after each sync, for
            machines that round differently. ``"never"``.
        commit_every: Calls of :meth:`commit` from one commit to the next, 1 to 10,000; rank 0's counts. A call between
            them copies nothing, unless the ranks agree there that the world changes or a worker will be taken, so
            resizes and notices lose no step. A lost worker costs what was trained in up to so many calls.
        link: Link to the agent. None: from the environment.
        clock: Monotonic seconds.
        **attributes: Further values to keep: anything with ``state_dict`` and ``load_state_dict`` (a learning-rate
            scheduler, a gradient scaler), tensors, and plain values: numbers, strings, lists, tuples and dicts.
            ``step`` counts optimizer steps. It always exists, and begins with 0.

    Raises:
        InvalidSettings: an attribute cannot be kept, the store is unknown, or the checkpoint does not fit the model.
        StatesDiffer: from :meth:`sync` and :meth:`commit`, if ranks do not have the same state.
        OwnershipLost: the run has a newer owner.
        StoreUnavailable: the store does not answer.
    """

    family: ClassVar[Family]
    _agrees_always: ClassVar[bool] = False
    model: Any
    optimizer: Any
    step: int

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        checkpoint: CheckpointSpec | str | None = None,
        verify: Verify = "commits",
        commit_every: int = 1,
        link: RankLink | None = None,
        clock: Callable[[], float] = time.monotonic,
        **attributes: Any,
    ) -> None:
        given = {name: value for name, value in (("model", model), ("optimizer", optimizer)) if value is not None}
        kept = {"step": 0, **given, **attributes}
        check_names(type(self), kept)
        self.model = self.optimizer = None
        for name, value in kept.items():
            setattr(self, name, value)
        check_verify(verify)
        self._verify, self._calls = verify, 0
        self._commit_every = whole_number("DurableState.commit_every", commit_every, MOST_CALLS)
        self._values = StateValues(self.family, self, kept, checks=verify != "never")
        self._receipt = StepLog()
        self._until = int(os.environ[UNTIL]) if UNTIL in os.environ else None
        self._checks = CommitChecks(clock) if verify == "commits" else None
        self._world = current_world()
        self._agreements = Agreements(self._world, always=self._agrees_always)
        # Time stamps: of the newest change of hosts, and up to which they were acted upon.
        self._changed = self._seen = 0.0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._link, self._clock = link or shared_link(), clock
        self._progress = ProgressLine(self._link, clock)
        self._cost, self._copied, self._at_exit = SaveCost(), (0.0, 0.0), AtExit(self._write_last)
        self._serial, self._told_stopped = 0, float("-inf")
        """Number of saves; when it was told last that the state stands."""
        self._taken_at = utc_now()
        self._is_writer = self._has_commits = self._has_prepared = self._has_warned = self._leaves = False
        self._left_at_commit = False  # Its last world; and no object that is kept was replaced since then.
        self._may_resume, self._notices = True, Notices(self._link, self._world.name, clock)
        self._spec = spec = checkpoints_asked(checkpoint)
        self._checkpoints: Checkpoints | None = None
        self._writer: CheckpointWriter | None = None
        check_storable(self.family, self._values.handlers, durable=self._spec is not None)
        self._between: BetweenCommits | None = None
        self._turn = threading.RLock()
        """Held by the thread that saves the state or uses its writer; never in a collective."""
        if spec is not None:
            check_parts(self._values.part_names)
            self._checkpoints = Checkpoints(open_store(spec.uri), spec.fence, spec.keep, spec.owner)
            self._writer = writer = CheckpointWriter(self._checkpoints, spec.every, self._link, clock)
            commits = self._notices.last_commit.commits
            self._between = BetweenCommits(
                self._turn,
                writer,
                self._link,
                lambda: self._serial,
                self._notices.is_handled,
                commits,
                self._write_between,
                clock,
            )
        if self._world.connected:
            self._resume()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What else was given to be kept."""

    def __setattr__(self, name: str, value: Any) -> None:
        values = self.__dict__.get("_values")
        if values is not None and name in values.handlers:
            self._pause_between()  # Until the next commit what is saved is of no one moment.
            self._left_at_commit = False
            values.handlers[name].set_value(value)
        super().__setattr__(name, value)

    @property
    def commit_every(self) -> int:
        """Calls of :meth:`commit` from one commit to the next."""
        return self._commit_every

    # What the engine calls

    def on_hosts_updated(self, timestamp: float, _update: object = None) -> None:
        """Hosts have changed; in any thread. The next :meth:`commit` takes the rank to another world."""
        self._changed = max(self._changed, timestamp)

    def on_reset(self) -> None:
        """This rank is in another world, and will sync."""
        self._leaves = False
        self._pause_between()
        self._changed = self._seen
        for callback in self._reset_callbacks:
            callback()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Have these called in each new world, on all ranks alike, before the sync, which not each world needs."""
        self._reset_callbacks.extend(callbacks)

    def save(self) -> None:
        """Copy everything, each tensor on its own device, into the memory of the save before."""
        with self._turn:
            begin = self._clock()
            self._values.save()
            self._copied = begin, self._clock()
            self._serial += 1
            self._taken_at = utc_now()

    def restore(self) -> None:
        """Back to the last save."""
        self._pause_between()
        self._values.restore()

    def sync(self) -> None:
        """Take rank 0's state; a collective. Rank 0 itself does not change."""
        self._resume()  # again, for a rank that has become the first one since it was made
        passed_over = self._checkpoints.passed_over if self._checkpoints else []
        said = {"receipt": self._receipt.note(), "commit_every": self._commit_every}
        self._values.said = {**said, "passed_over": passed_over}
        trusts = self._verify == "commits"  # Else ranks may differ, and are made the same here.
        self._has_commits = self._values.sync(self._world, self._has_commits, trusts=trusts)
        if self._world.rank != 0:
            self._receipt.take(self._values.said["receipt"])
            self._commit_every = self._values.said["commit_every"]
            if self._checkpoints:
                self._checkpoints.pass_over(self._values.said["passed_over"])
        self.save()
        self._in_sync()

    @property
    def is_replicated(self) -> bool:
        """Whether ranks at the same commit need no sync: no handler puts theirs together, and they are compared."""
        has_foreign = any(isinstance(handler, ForeignHandler) for handler in self._values.handlers.values())
        return self._verify == "commits" and not has_foreign

    def on_same_state(self) -> None:
        """This rank is in a world whose ranks all have left the one before at the same call of the state."""
        if self._reset_callbacks or not self._left_at_commit:
            self.save()
        self._in_sync()

    def _in_sync(self) -> None:
        self._is_writer = self._world.rank == 0
        self._may_resume, self._calls = False, 0
        self._agreements.always = False  # Newcomers know of none, and all agree at the first call.
        self._receipt.in_world()
        if self._checks:
            self._checks.begin()
        self._notices.last_commit.commits.begin()
        if self._between is not None and self._is_writer and self._has_commits:
            self._between.go()

    def trains_on(self, plan: BatchPlan, unit: str) -> None:
        """For the training receipt: by which plan the samples of the next steps are chosen. Batches call it."""
        self._receipt.trains_on(plan, unit, int(self.step))

    def commit(self) -> None:
        """Save the state, report progress, write a durable checkpoint if one is due, and handle changed hosts.

        If every worker will be taken and this is the last commit that can be durable before that, all ranks wait here
        for others that take over, or for their own end.

        Raises:
            BaseException: the engine's interrupt, unless it takes the rank to another world here
                (:func:`elastic_runtime.torch.elastic.run` with ``in_place=True``). A script that catches it gets it
                again from the next call.
            OwnershipLost: on rank 0, if a checkpoint was refused because the run has a newer owner.
            StatesDiffer: on all ranks, if they were compared and do not have the same state.
        """
        ledger().commits(int(self.step), self._objects)
        observing().committed(int(self.step), self.family)
        if self._world.rank == 0:
            self._notices.last_commit.commits.committed(self._clock())
        self._calls += 1
        commits = self._calls >= self._commit_every or self._agreements.always or self._leaves
        if commits:
            self._make_commit()
        if self._world.rank == 0:
            self._progress.tell(int(self.step), last=False)
        while self._receive(committed=commits, may_commit=True):
            commits = True  # Else nobody would stand here.
            time.sleep(PAUSE)
        if self._until is not None and self.step >= self._until:
            self._end_replay()

    def _make_commit(self) -> None:
        """All ranks, at the same call of :meth:`commit`."""
        if self._spec is not None:
            check_stored_step(int(self.step))
        self._calls = 0
        self.save()
        if (words := self._cost.saved(*self._copied, self._commit_every)) and self._world.rank == 0:
            _log.warning("%s", words)
        self._receipt.committed(self._values.step, self._world.size)
        self._check_commit()
        self._has_commits = True
        self._is_writer = self._world.rank == 0
        self._at_exit.ask()
        if self._is_writer and self._writer is not None:
            self._write_ahead(self._writer)

    def _end_replay(self) -> None:
        """All ranks, at the commit up to which steps are trained again."""
        self.finish()
        if self._world.size > 1:
            self._world.barrier()
        raise SystemExit(0)

    def _objects(self) -> list[object]:
        """Return the optimizers that are kept, beside others."""
        return [handler.value for handler in self._values.handlers.values()]

    def _check_commit(self) -> None:
        if self._checks is None or not self._checks.due() or self._world.size == 1:
            return
        try:
            self._checks.run(self._world, self.family, self._replicated, f"At the commit of step {self._values.step}")
        except StatesDiffer:
            self._has_commits = False  # Nothing of it becomes durable when the process ends.
            if self._between is not None:
                self._between.pause()
            raise

    def _replicated(self) -> Fingerprint:
        return fingerprint(self.family, self._values.replicated())

    def _write_ahead(self, writer: CheckpointWriter) -> None:
        with self._turn:
            if not self._has_prepared:
                self._has_prepared = True
                writer.ahead(self._prepare)
            if writer.due():
                self._begin_write()
        if self._between is not None:
            self._between.go()

    def check_host_updates(self) -> None:
        """Hear, on all ranks at once, what any rank was told; a collective.

        Raises:
            BaseException: hosts have changed, so the engine makes another world (Horovod's ``HostsUpdatedInterrupt``).
        """
        self._receive(committed=False)

    def _receive(self, *, committed: bool, may_commit: bool = False) -> bool:
        """Handle messages for :meth:`check_host_updates`, with a commit if they ask for one.

        Returns whether to wait, having committed.
        """
        self._notices.receive()
        agreed = self._agree(committed) if self._agreements.due() else Signals(self._seen, self._seen)
        if may_commit and not committed and agreed.asks:
            self._make_commit()
            committed = True
            agreed = agreed.and_then(self._agree(committed))  # Whether to stand here, and to write it.
        self._seen = agreed.updated
        is_new = self._notices.handle(agreed.handover)
        if is_new and self._between is not None:
            self._between.overdue.handled()
        self._write_agreed(agreed.write)
        if self._writer is not None and self._world.rank == 0:
            self._write_handover(self._writer, wanted=is_new)
        if agreed.updated > agreed.seen or self._leaves:
            self._change_world(committed=committed)
            return False
        return agreed.stand

    def _change_world(self, *, committed: bool) -> None:
        if self._leaves and not self._has_warned:
            self._has_warned = True
            _log.warning("%s", CAUGHT % script_place())
        self._pause_between()
        self._leaves, self._left_at_commit = True, committed  # Until it is in another world.
        self._leave_world(committed=committed)
        self._world.change()

    def _write_handover(self, writer: CheckpointWriter, *, wanted: bool) -> None:
        with self._turn:
            if wanted:
                writer.want_handover()
            if writer.handover_due():
                self._at_exit.ask()
                self._begin_write(handover=True)

    def _agree(self, committed: bool) -> Signals:
        stand, handover = committed and self._stands(), self._notices.to_handle
        always = self._notices.last_commit.is_expected
        # A newcomer has acted upon nothing yet. That ranks agree on that number too keeps it from raising alone.
        return self._agreements.agree(Signals(self._changed, self._seen, handover, stand, self._write_wanted(), always))

    def _stands(self) -> bool:
        """On rank 0: whether all have to wait at the commit that was just made; it is then made durable."""
        writer = self._writer
        if writer is None or self._world.rank != 0:
            return False
        with self._turn:
            writer.collect()
            if not self._notices.last_commit.is_here(self._clock(), writer.seconds, writer.under_way):
                return False
            if not writer.takes_care_of(self._serial) and not writer.holds_off:
                self._begin_write(handover=True)
            self._tell_stopped(writer)
        return True

    def _tell_stopped(self, writer: CheckpointWriter) -> None:
        """By the rank that writes: nothing is lost if all end now, once that is so."""
        now = self._clock()
        if writer.has_written(self._serial) and now >= self._told_stopped + STOPPED_INTERVAL:
            self._told_stopped = now
            self._link.send(TrainingStopped(self._values.step))

    def on_wait(self) -> None:
        """For who resets: to be called every so often while this rank waits for the next world. No collective.

        Nobody commits then. When all that have the state will be taken, the chosen rank writes its last commit.

        Raises:
            OwnershipLost: it was refused because the run has a newer owner.
        """
        self._notices.receive()
        writer = self._writer
        if writer is None or not self._has_commits or not self._notices.is_keeper:
            return
        with self._turn:
            if not writer.takes_care_of(self._serial) and not writer.holds_off:
                self._at_exit.ask()
                self._begin_write(handover=True, if_absent=True)
            self._tell_stopped(writer)

    def _write_between(self, handover: bool) -> None:
        """In the thread that does so between two commits: of the last save, which is a commit."""
        self._begin_write(handover=handover, if_absent=True)

    def _pause_between(self) -> None:
        if self._between is not None:
            self._between.pause()

    # The end

    def finish(self) -> None:
        """Save, and on rank 0 have it durable when this returns. Harmless on other ranks, and when repeated.

        Raises:
            OwnershipLost: the run has a newer owner.
            StoreUnavailable: the last checkpoint could not be written.
        """
        # If this rank leaves while others train, the launcher can say who left, and at which step.
        self._link.send(TrainingEnded(int(self.step), waits=False))
        self._commit_last()
        self._end()

    def _commit_last(self) -> None:
        self.save()
        self._receipt.committed(self._values.step, self._world.size)
        self._has_commits = True
        self._is_writer = self._world.rank == 0

    def on_run_end(self) -> None:
        """For who wraps the training function: to be called on every rank after it has returned; a collective.

        No rank leaves before the last checkpoint is durable, so none looks as if it had ended early.
        """
        self.finish()
        if self._world.size > 1:
            self._world.barrier()

    def __enter__(self) -> DurableState:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        """Finish; after an exception, with the last commit instead of the state as it is."""
        if kind is None:
            self.finish()
        else:
            self._write_last()

    def _write_last(self) -> None:
        try:
            self._end()
        except ElasticError as error:
            _log.error("the last commit, of step %d, is not in the checkpoint store: %s", self._values.step, error)

    def _end(self) -> None:
        """Whoever was rank 0 at the last commit has it durable; no thread is left. Works after ``hvd.shutdown`` too."""
        self._at_exit.cancel()
        if self._between is not None:
            self._between.close()
        is_mine = self._is_writer and self._has_commits
        if is_mine:
            self._progress.tell(self._values.step, last=True)
        if self._writer is not None:
            self._writer.close()
            if is_mine and not self._writer.has_written(self._serial):
                self._writer.write(self._snapshot())

    # For states of which each rank has a part

    def _write_wanted(self) -> float:
        """What :meth:`_write_agreed` is called with on all ranks: the maximum of all."""
        return 0.0

    def _write_agreed(self, wanted: float) -> None:
        """All ranks are at the same save."""

    def _leave_world(self, *, committed: bool) -> None:
        """All ranks are about to, just after a commit or anywhere; a collective."""

    def _begin_write(self, *, handover: bool = False, if_absent: bool = False) -> None:
        """Of the last save; see :meth:`CheckpointWriter.begin`."""
        assert self._writer is not None
        self._writer.begin(self._snapshot(), handover=handover, if_absent=if_absent)

    def _read(self, stored: StoredCheckpoint) -> dict[str, Any]:
        return read_parts(self.family, stored)

    def _resume(self) -> None:
        if not self._may_resume or self._spec is None or self._checkpoints is None or self._world.rank != 0:
            return
        self._may_resume = False
        self._checkpoints.claim()
        with ledger().busy("loading a checkpoint", LOADING):
            own = not self._spec.resume  # After a loss of all ranks.
            found = take_newest(self._checkpoints, self._read, self._values, self._link, own=own)
        if found:
            self._receipt.resume(found)
            self.save()

    def _snapshot(self) -> Snapshot:
        """Return the last save, as the checkpoint writer takes it."""
        loan = self._values.lend()
        parts = part_writers(self.family, loan.tree, self._values.plain)
        return Snapshot(
            self._serial, self._values.step, self._taken_at, parts, loan.give_back, loan.wait, record=self._record()
        )

    def _record(self) -> Record:
        """Return what notes a checkpoint of the last save in the receipt."""
        assert self._checkpoints is not None
        return self._receipt.recorder(self._checkpoints.store, self._checkpoints.fence)

    def _prepare(self) -> None:
        """Have ready what the first checkpoint needs: the store, and memory for the commits beside it."""
        if self._checkpoints is not None:
            self._checkpoints.prepare()
        self._values.reserve()
