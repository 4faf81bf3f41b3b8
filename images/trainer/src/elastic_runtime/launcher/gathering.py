"""Traces of a run that has ended: every worker saves what its ranks have left, then one merges the timelines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from elastic_runtime.launcher.worker_pool import Worker
from elastic_runtime.protocol.wire import SaveTraces, TracesSaved
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import MAX_PROFILES, EventKind, Status
from elastic_runtime.run.status_failure import without_quotes
from elastic_runtime.tracing.timeline import Mark
from elastic_runtime.tracing.traces import timeline_name

log = logging.getLogger(__name__)

SAVING, MERGING = 30.0, 70.0
"""Seconds that workers have to save what there is, and one of them to merge it: longer than agents take at most."""
MERGING_SAMPLES = 15.0
"""Seconds that the first of them has for samples, which nobody has asked for."""
_TOLD = frozenset(
    {
        EventKind.SIZE_ASKED,
        EventKind.NOTICE,
        EventKind.LEFT,
        EventKind.LOST,
        EventKind.RANK_FAILED,
        EventKind.HANDOVER,
        EventKind.CHECKPOINT,
        EventKind.SUSPENDED,
        EventKind.PAUSED,
        EventKind.RESUMED,
        EventKind.RESTARTED,
        EventKind.STANDSTILL,
        EventKind.RANKS_DIFFER,
    }
)
_LONGEST = 120
"""Characters of a mark."""


class Gathering:
    """Make workers save their traces at the end of a run, and merge the timelines.

    Args:
        spec: of the run.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._answers: dict[str, asyncio.Future[TracesSaved]] = {}
        self.timeline: str | None = None
        """URI of the merged one."""
        self.profiles: tuple[str, ...] = ()
        """URIs, of at most :data:`~elastic_runtime.run.status.MAX_PROFILES`."""

    def saved(self, worker: str, message: TracesSaved) -> None:
        """A worker's answer; one that nobody waits for is nothing."""
        answer = self._answers.pop(worker, None)
        if answer and not answer.done():
            answer.set_result(message)

    async def gather(self, workers: Iterable[Worker], status: Status) -> None:
        """Before they are released. Takes at most :data:`SAVING` and :data:`MERGING`; what is missing is a warning."""
        here = list(workers)
        if not self._spec.observe.saves or self._spec.checkpoint is None:
            return
        uri, fence = self._spec.checkpoint.uri.rstrip("/"), self._spec.checkpoint.fence
        answers = await self._ask(here, SaveTraces(), SAVING)
        names = sorted({name for answer in answers for name in answer.files})
        self.profiles = tuple(f"{uri}/{name}" for name in names[:MAX_PROFILES])
        if not self._spec.observe.timeline:
            return
        sampled = self._spec.observe.sampled
        for worker in here[:1] if sampled else here:
            max_wait = MERGING_SAMPLES if sampled else MERGING
            merged = await self._ask([worker], SaveTraces(marks(status), merge=True), max_wait)
            if merged and timeline_name(fence) in merged[0].files:
                self.timeline = f"{uri}/{timeline_name(fence)}"
                return
            if merged:
                break
        if sampled:
            return
        words = "the timeline is not merged; python -m elastic_runtime.tracing.traces %s %d does that from its pieces"
        log.warning(words, uri, fence)

    async def _ask(self, workers: Iterable[Worker], order: SaveTraces, max_wait: float) -> list[TracesSaved]:
        asked: list[asyncio.Future[TracesSaved]] = []
        for worker in workers:
            answer = self._answers[worker.name] = asyncio.get_running_loop().create_future()
            asked.append(answer)
            worker.connection.send(order)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait):
                await asyncio.gather(*asked, return_exceptions=True)
        self._answers.clear()
        return [answer.result() for answer in asked if answer.done() and not answer.cancelled()]

    def gone(self, worker: str) -> None:
        """Stop waiting for this worker's answer, because its connection is closed."""
        if answer := self._answers.pop(worker, None):
            answer.cancel()


def marks(status: Status) -> tuple[Mark, ...]:
    """Return the timeline's marks of a status: its worlds, and what happened to them. Pure."""
    worlds = [
        Mark(world.time.timestamp(), "world", world.generation, world.size) for world in status.history if world.size
    ]
    events = [
        Mark(event.time.timestamp(), f"{event.kind.value}: {without_quotes(event.message)}"[:_LONGEST])
        for event in status.events
        if event.kind in _TOLD
    ]
    return (*worlds, *events)
