"""Which rank has failed first, and what it said: the cause, not the tenth consequence of it.

When one rank fails, those that wait for it fail a moment later, with errors of their connections. So the ranks that
failed since the last complete world are ordered by what their last lines on stderr tell, then by the time of their
ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from elastic_runtime.launcher.record.tracebacks import Cause, read_last_words, read_stack
from elastic_runtime.protocol.rank_names import RankName
from elastic_runtime.run.status import MAX_MESSAGE
from elastic_runtime.run.status_failure import FirstFailure

LINES, LINE = 100, 500
"""Lines on stderr that are kept of each rank, and characters of each."""
MAX_FAILED = 1000
"""Ranks that have failed since the last world, which are compared."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank that has failed."""

    cause: Cause
    failure: FirstFailure


def first_of(failed: Sequence[Failed]) -> FirstFailure | None:
    """The one for whose sake the others failed; of several that may be, the one that ended first."""
    chosen = min(failed, key=lambda each: (each.cause, each.failure.time), default=None)
    return chosen.failure if chosen else None


@dataclass(slots=True)
class _Spoken:
    rank_id: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))
    ended: datetime | None = None


class Failures:
    """Find the rank that failed first.

    Args:
        now: wall clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._spoken: dict[str, dict[int, _Spoken]] = {}
        self._failed: list[Failed] = []

    def heard(self, process: str, lines: Iterable[str]) -> None:
        """A rank's process has written these on stderr."""
        self._of(process).lines.extend(line[:LINE] for line in lines)

    def ended(self, process: str, ago: float) -> None:
        """A rank's process has ended, so many seconds ago."""
        self._of(process).ended = self._now() - timedelta(seconds=ago)

    def gone(self, worker: str) -> None:
        """Forget what ranks of this worker have written, because the worker is gone."""
        self._spoken.pop(worker, None)

    def failed(self, rank_id: str, code: int, worker: str, rank: int | None, step: int | None) -> None:
        """A rank has failed by itself."""
        spoken = self._of(rank_id)
        words = read_last_words(spoken.lines, code)
        time = spoken.ended or self._now()
        spoken.lines.clear()  # Or they would be those of its next process, too.
        spoken.ended = None
        if len(self._failed) < MAX_FAILED:
            failure = FirstFailure(rank, worker, rank_id, step, code, time, words.message, words.traceback)
            self._failed.append(Failed(words.cause, failure))

    def hung(self, rank_id: str, code: int, worker: str, rank: int | None, step: int | None) -> str | None:
        """A rank was ended, since others had waited for it; where it was still at work, if it may be the cause of that.

        One that waited for others itself, in a collective, is not; nor is any where another has failed by itself.
        """
        spoken = self._of(rank_id)
        stack = read_stack(spoken.lines)
        time = spoken.ended or self._now()
        spoken.lines.clear()
        spoken.ended = None
        if stack is None or stack.waits or any(each.cause < Cause.HUNG for each in self._failed):
            return None
        message = f"was still at work when others gave up waiting for it: {stack.at}"[:MAX_MESSAGE]
        if len(self._failed) < MAX_FAILED:
            failure = FirstFailure(rank, worker, rank_id, step, code, time, message, stack.text)
            self._failed.append(Failed(Cause.HUNG, failure))
        return stack.at

    def words(self, rank_ids: Collection[str]) -> str:
        """Return the last line of the rank that most likely failed first, and forget what these ranks wrote."""
        words = [read_last_words(self._of(rank_id).lines, 1) for rank_id in rank_ids]
        for rank_id in rank_ids:
            self._of(rank_id).lines.clear()
        return min(words, key=lambda each: each.cause).message if words else ""

    def world(self) -> None:
        """A new world is complete: what was is overcome."""
        self._failed.clear()

    def gave_up_peer(self, rank_id: str) -> bool:
        """Whether the last lines of a rank that has failed say that another one is gone."""
        return read_last_words(self._of(rank_id).lines, 1).cause is Cause.CONSEQUENCE

    @property
    def first(self) -> FirstFailure | None:
        """Since the last world was complete."""
        return first_of(self._failed)

    @property
    def is_consequence(self) -> bool:
        """Ranks have failed since the last world was complete, each because a peer was gone."""
        return bool(self._failed) and all(each.cause is Cause.CONSEQUENCE for each in self._failed)

    def _of(self, name: str) -> _Spoken:
        """By slot: a worker may claim as many ranks as it likes."""
        rank = RankName.parse(name).rank
        slots = self._spoken.setdefault(str(rank.worker), {})
        if rank.slot not in slots or slots[rank.slot].rank_id != str(rank):
            slots[rank.slot] = _Spoken(str(rank))
        return slots[rank.slot]
