"""Durable checkpoints beside the training: when one is due, and one thread that writes it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime

from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartWriter, Record, StoredCheckpoint
from elastic_runtime.checkpoint.joint import Joint
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.protocol.rank_link import CheckpointFailed, CheckpointWritten, RankLink
from elastic_runtime.script import kept_outputs
from elastic_runtime.training.checkpointing.metric_lines import MetricLines

HANDOVER_PAUSE = 1.0
"""Seconds. Ranks hear of one notice at slightly different commits; a handover that is not older than this serves. And
the pause after a handover that failed, before the next try."""
REFUSED = (StoreUnavailable, InvalidSettings)
"""Errors of a store after which training continues: rights that were taken away are no reason to lose what is there."""
_log = script_logger(__name__)
SOON = 0.0001
"""Seconds after which a thread that needs the interpreter asks for it."""
_HALF = 0.5e-6
"""Python cuts the interval to whole microseconds, and 5e-05 to 49 of them: half of one more makes it 50."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed state that nobody writes to any more."""

    serial: int
    """Serial of the save that it is a copy of."""
    step: int
    """Global step."""
    time: datetime
    parts: Mapping[str, PartWriter]
    """Functions that write its parts."""
    give_back: Callable[[], None] = lambda: None
    """To be called when it is written, or cannot be."""
    wait: Callable[[], None] = lambda: None
    """To be called before it is written: comes back when all of it is in host memory."""
    joint: Joint | None = None
    """Where other ranks write their parts of the same checkpoint."""
    record: Record | None = None
    """To be called before it is published: the receipt's."""


class CheckpointWriter:
    """Writes snapshots, one at a time, in the order given. No thread until the first one, none after :meth:`close`.

    Its methods are called by one thread at a time.

    Args:
        checkpoints: where to.
        every: seconds between the starts of two periodic ones.
        link: to the agent, which is told from the writing thread too; what goes over it is kept as metrics.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        every: float,
        link: RankLink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoints = checkpoints
        self._every = every
        self._link, self._send = link, link.send
        self._lines = MetricLines(checkpoints.store, checkpoints.fence)
        link.listener = self._lines.add
        link.writes_checkpoints = True
        self._clock = clock
        self._started = clock()
        self._handover: float | None = None
        self._wanted = False
        self._failed: float | None = None
        self._durable: int | None = None
        self._begun: int | None = None
        self._looked = self._started
        self._stalled = 0.0
        self._seconds = 0.0
        self._write_since: float | None = None
        self._urgent = -1
        """Serial of the newest save that was given for a notice."""
        self._executor: ThreadPoolExecutor | None = None
        self._submitting = 0
        """The thread that gives the executor something, which has a lock for that."""
        self._writing: list[Future[None]] = []

    def due(self) -> bool:
        """Whether to give :meth:`begin` a periodic snapshot now: the last one is written, and old enough."""
        self.collect()
        self._looked = self._clock()
        return not self._writing and self._looked - self._started >= self._every

    @property
    def seconds(self) -> float:
        """That the last one took to write, or that the present one has taken so far if that is longer; at first 0."""
        since = self._write_since
        return self._seconds if since is None else max(self._seconds, self._clock() - since)

    def has_written(self, serial: int) -> bool:
        """Whether the snapshot of this save, or of a later one, is published; those under way do not count."""
        return self._durable is not None and self._durable >= serial

    @property
    def next_due(self) -> float:
        """Time from which on a periodic snapshot is due."""
        return self._started + self._every

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot is being written. Unlike :meth:`collect` this raises nothing."""
        return not all(writing.done() for writing in self._writing)

    @property
    def wants_handover(self) -> bool:
        """Whether a notice has none yet."""
        return self._wanted

    @property
    def under_way(self) -> int:
        """Number of checkpoints that are being written."""
        return len(self._writing)

    def takes_care_of(self, serial: int) -> bool:
        """Whether the snapshot of this save, or of a later one, is published, on its way, or has just failed."""
        self.collect()
        self._looked = self._clock()
        begun = self._begun is not None and self._begun >= serial
        recently = bool(self._writing) or self._clock() - self._started < HANDOVER_PAUSE
        return (begun and recently) or self.has_written(serial)

    def want_handover(self) -> None:
        """Note a reclaim notice, unless a handover taken a moment ago serves it."""
        if self._handover is None or self._clock() - self._handover > HANDOVER_PAUSE:
            self._wanted = True

    def handover_due(self) -> bool:
        """Whether to give :meth:`begin` a snapshot for a notice now: at most one is queued after one under way."""
        self.collect()
        self._looked = self._clock()
        return self._wanted and len(self._writing) <= 1 and not self.holds_off

    @property
    def holds_off(self) -> bool:
        """Whether a handover has failed a moment ago, and the store should have a pause."""
        return self._failed is not None and self._clock() - self._failed <= HANDOVER_PAUSE

    def ahead(self, prepare: Callable[[], None]) -> None:
        """Call it in the writing thread, after what is under way."""
        self._submit(prepare)

    def begin(self, snapshot: Snapshot, *, handover: bool = False, if_absent: bool = False) -> None:
        """Write it in the background, after those that are under way.

        Args:
            snapshot: of the newest save.
            handover: whether a notice is the reason.
            if_absent: write nothing if the store has this step already, but tell of it, and retire nothing. For a rank
                outside a commit: another rank may have written before it, or still be writing.
        """
        self._started, self._begun = self._clock(), snapshot.serial
        if not if_absent:
            self._stalled += self._started - self._looked  # in which the snapshot was taken
        if handover:
            self._handover, self._urgent = self._started, snapshot.serial
            self._wanted = False
        switch_interval.begin()
        self._writing.append(self._submit(self._write_and_go_on, snapshot, handover, if_absent))

    def collect(self) -> None:
        """Forget what is written. Raises what went wrong, as OwnershipLost; an unavailable store does not count."""
        # One thread writes in the order given: what is done is at the front. Asked once each, for it may end meanwhile.
        while (writing := self._writing[:1]) and writing[0].done():
            with contextlib.suppress(ValueError):  # A signal's handler has collected it.
                self._writing.remove(writing[0])
            writing[0].result()

    def close(self) -> None:
        """Wait for what is under way, and end the thread; metrics are written, too. Raises as :meth:`collect`."""
        self._shut()
        self._link.writes_checkpoints = False
        self._lines.upload()
        kept_outputs.upload()

    def _shut(self) -> None:
        if self._submitting == threading.get_ident():  # In a signal's handler, which cannot wait for its own thread.
            wait(self._writing)
        elif self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        self.collect()

    def write(self, snapshot: Snapshot) -> None:
        """Write it here and now, after those that are under way.

        Raises:
            OwnershipLost: the run has a newer owner; nothing was published.
            StoreUnavailable: it was not written.
        """
        since = self._clock()
        self._shut()
        self._write(snapshot, handover=False, since=since)

    def _submit(self, function: Callable[..., None], *arguments: object) -> Future[None]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._submitting = threading.get_ident()
        try:
            return self._executor.submit(function, *arguments)
        finally:
            self._submitting = 0

    def _write_and_go_on(self, snapshot: Snapshot, handover: bool, if_absent: bool) -> None:
        try:
            self._write(snapshot, handover=handover, if_absent=if_absent)
        except REFUSED as error:
            _log.warning("training goes on without the checkpoint of step %d: %s", snapshot.step, printable(error))
            if handover:
                self._failed, self._wanted = self._clock(), True  # again, with what is newest then
        finally:
            switch_interval.end()

    def _write(
        self, snapshot: Snapshot, *, handover: bool, if_absent: bool = False, since: float | None = None
    ) -> None:
        """``since``: the training stands still for it from then on."""
        self._write_since = started = self._clock()
        try:
            if if_absent and (found := self._checkpoints.reached(snapshot.step)):
                self._durable = snapshot.serial
                self._send(_written(found, handover=handover))  # Who wrote it may have been lost before it could.
                return
            snapshot.wait()
            stored = self._checkpoints.write(
                snapshot.step,
                snapshot.time,
                snapshot.parts,
                handover=handover,
                joint=snapshot.joint,
                record=snapshot.record,
            )
        except REFUSED as error:
            self._send(CheckpointFailed(step=snapshot.step, reason=printable(error)))
            raise
        finally:
            snapshot.give_back()
            self._write_since = None
        self._durable = snapshot.serial
        self._seconds = seconds = self._clock() - started
        stalled, self._stalled = self._stalled, 0.0
        if since is not None:
            stalled += self._clock() - since
        if stored is not None:  # Else the first writer tells it.
            self._send(_written(stored, handover=handover, seconds=seconds, stalled=stalled))
            if not if_absent:
                self._checkpoints.retire(stored)
        if not self._wanted and self._urgent <= snapshot.serial:  # A hand-over that is wanted, or queued, comes first.
            self._lines.upload()
            kept_outputs.upload()


def _written(
    stored: StoredCheckpoint, *, handover: bool, seconds: float = 0.0, stalled: float = 0.0
) -> CheckpointWritten:
    manifest = stored.manifest
    return CheckpointWritten(stored.uri, manifest.step, manifest.time, handover, seconds, stalled)


# Threads take turns sooner while a checkpoint is written beside the training.
#
# A thread that needs Python's interpreter asks the one that has it to let go after ``sys.getswitchinterval()``, 5 ms.
# A commit that meets the writing thread would stand as long: ten times what a small model's checkpoint costs
# otherwise.


class SwitchInterval:
    """Between :meth:`begin` and :meth:`end`, which may be called in different threads; several may overlap."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal's handler may come here, too.
        self._begun = 0
        self._before = SOON

    def begin(self) -> None:
        """Turns are quick from now on; they stay as they are where the script has made them quicker."""
        with self._lock:
            if self._begun == 0:
                self._before = sys.getswitchinterval()
                if self._before > SOON:
                    sys.setswitchinterval(SOON + _HALF)
            self._begun += 1

    def end(self) -> None:
        """After the last one that has begun: turns are as before."""
        with self._lock:
            self._begun -= 1
            if self._begun == 0:
                sys.setswitchinterval(self._before + _HALF)


switch_interval = SwitchInterval()
"""The process's own, as the interval is."""
