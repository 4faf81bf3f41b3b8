"""Progress of a run for its status: the steps that its script tells of, and an estimate of the time that is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from elastic_runtime.launcher.record.paces import Paces
from elastic_runtime.launcher.record.time_left import Situation, TimeLeft, time_left
from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.protocol.rank_link import TotalSteps
from elastic_runtime.run.spec import RecoveryMode, RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.run.status_figures import LostTime
from elastic_runtime.run.status_progress import Progress

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Ranks of a run."""

    ranks: int
    """That train now."""
    wanted: int
    """That are asked for."""
    planned: Sequence[tuple[datetime, int]]
    """Those that the size plan asks for later, ascending, and from when on."""
    leaving: Sequence[tuple[datetime, int]]
    """Notices: the deadline, and ranks of the present world that it takes."""


class ProgressRecord:
    """Told what happens, in the order of happening.

    Args:
        spec: of the run.
        now: when this launcher begins.
        warn: called once if the script has made more steps than it told of, with words for people.
        previous: status of the launcher before, whose progress is continued.
    """

    def __init__(
        self, spec: RunSpec, now: datetime, warn: Callable[[str], None], previous: Status | None = None
    ) -> None:
        self._workers, self._warn = spec.workers, warn
        self._fixed = spec.recovery.mode is RecoveryMode.FIXED
        known = previous.progress if previous else None
        self._total = known.steps if known else None
        self._by_script = known is not None and known.by_script
        self.paces = Paces(previous.paces if previous else ())
        """Measured so far."""
        self._situation: Situation | None = None
        """Of the newest status. None: the steps that are left are not known, or the run is over."""
        self._stepped: datetime | None = None
        """When the present world has told its last step."""
        self._short_of, self._short_since = 0, now
        self._beyond = self._shrunk = False

    def total(self, message: TotalSteps) -> None:
        """Rank 0 has told how many steps the training has. What a script reports counts more than its batches."""
        if self._by_script and not message.by_script:
            return
        before, self._total = self._total, message.steps
        if message.by_script == self._by_script and before is not None and message.steps < before and not self._shrunk:
            self._shrunk = True
            log.info("the script tells of %d steps in all, %d before; the newest is used", message.steps, before)
        self._by_script = message.by_script

    def world(self, ranks: int) -> None:
        """Another world of so many ranks is complete. 0: none trains."""
        self.paces.world(ranks)
        self._stepped = None

    def stepped(self, step: int, now: datetime) -> None:
        """A rank has reported that step."""
        self.paces.stepped(step, now)
        self._stepped = now
        if self._total is not None and step > self._total and not self._beyond:
            self._beyond = True
            self._warn(
                f"the script has made more than the {self._total} steps that it told of (of= of report, or the epochs "
                "of GlobalBatches), so the time left is unknown"
            )

    def told(
        self,
        step: int | None,
        phase: Phase,
        sizes: Sizes,
        lost: Mapping[str, float],
        now: datetime,
    ) -> Progress | None:
        """Return the progress for the status. None: the script has told of no step, or not how many it has.

        Args:
            step: newest that was reported.
            phase: of the run.
            sizes: of the run.
            lost: seconds lost by cause, as in the status.
            now: time of the status.
        """
        missing = max(0, sizes.wanted - sizes.ranks)
        if missing > self._short_of:
            self._short_since = now
        self._short_of, self._situation = missing, None
        if self._total is None or step is None:
            return None
        step = max(0, step)
        percent = round(100 * min(1.0, step / self._total), 2)
        found = Progress(self._total, percent, by_script=self._by_script)
        if phase.final:
            return found
        if step > self._total:
            return replace(found, basis="more steps were made than the script told of")
        trained = sum(each.seconds for each in self.paces.told())
        between = lost.get(LostTime.RESIZE, 0.0) + lost.get(LostTime.RECOVERY, 0.0)
        self._situation = Situation(
            left=self._total - step,
            ranks=sizes.ranks,
            wanted=sizes.wanted,
            planned=tuple((_between(now, begin), ranks) for begin, ranks in sizes.planned),
            minimum=sizes.wanted if self._fixed else self._workers.minimum * self._workers.slots,
            short=_between(self._short_since, now) if missing else 0.0,
            leaving=tuple((_between(now, deadline), taken) for deadline, taken in sizes.leaving),
            since_step=_between(self._stepped, now) if self._stepped else 0.0,
            interrupted=between / trained if trained else 0.0,
        )
        left = time_left(self.paces.measured(), self._situation)
        if not isinstance(left, TimeLeft):
            return replace(found, basis=left)
        seconds, least, most = (round(each, 1) for each in (left.seconds, left.least, left.most))
        return replace(found, seconds=seconds, least=least, most=most, basis=left.basis)

    @property
    def steps_known(self) -> bool:
        """Whether it is known how many steps are left, as of the newest status."""
        return self._situation is not None

    @property
    def missing(self) -> bool:
        """Whether fewer ranks trained than were wanted, at the newest status."""
        return self._situation is not None and self._situation.ranks < self._situation.wanted

    def with_ranks(self, ranks: int) -> TimeLeft | None:
        """Estimate the time left as of the newest status, if so many ranks were wanted. None: there is no estimate."""
        if self._situation is None:
            return None
        then = replace(self._situation, wanted=ranks, minimum=ranks if self._fixed else self._situation.minimum)
        left = time_left(self.paces.measured(), then)
        return left if isinstance(left, TimeLeft) else None


def leaving_ranks(workers: Iterable[Worker], ranks: Mapping[str, int]) -> list[tuple[datetime, int]]:
    """Return the notices of workers that are here: the deadline, and how many ranks of the present world are there."""
    return [
        (worker.deadline, sum(slot.rank_id in ranks for slot in worker.slots))
        for worker in workers
        if worker.deadline is not None
    ]


def _between(begin: datetime, end: datetime) -> float:
    """Not negative when the clock was set back."""
    return max(0.0, (end - begin).total_seconds())
