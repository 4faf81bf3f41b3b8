"""Word that this worker will be taken: from SIGTERM, from a file, from the cloud's metadata service.

Every source is a coroutine that waits, and in the end returns one
:class:`~elastic_runtime.run.rundir.ReclaimNotice`, or None when it will never have anything to say. :func:`sources`
lists them, :func:`collect` listens to all of them until the worker's time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from elastic_runtime.agent.notices.clouds import Metadata, cloud_notice
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.run.rundir import ReclaimNotice

log = logging.getLogger(__name__)

Source = Coroutine[Any, Any, ReclaimNotice | None]
FILE_INTERVAL = 0.05
"""Seconds between two looks for the file."""


def sources(terminated: asyncio.Event, grace: float, file: Path | None, metadata: Metadata) -> tuple[Source, ...]:
    """Everything that may announce the end of this worker.

    Args:
        terminated: set when this process gets SIGTERM.
        grace: seconds from SIGTERM to SIGKILL, as whoever sends it keeps them.
        file: path that a notice may be written to, atomically.
        metadata: which metadata service to ask.
    """
    return sigterm(terminated, grace), written(file), cloud_notice(metadata)


async def collect(sources: Iterable[Source], tell: Callable[[ReclaimNotice], None]) -> None:
    """Tell of every notice as it comes, and return when the earliest of their deadlines is here.

    A later notice matters too: a machine whose spot capacity is withdrawn in two minutes may be drained before that.

    Args:
        sources: to listen to; all have ended when this returns or is cancelled.
        tell: called with each notice.
    """
    queue: asyncio.Queue[ReclaimNotice] = asyncio.Queue()
    listening = [asyncio.create_task(_listen(source, queue)) for source in sources]
    deadline: datetime | None = None
    try:
        while True:
            try:
                async with asyncio.timeout(None if deadline is None else _seconds_until(deadline)):
                    notice = await queue.get()
            except TimeoutError:
                log.warning("the deadline of the reclaim notice is here")
                return
            log.debug("reclaim notice from %s, deadline %s", printable(notice.source, 60), notice.deadline)
            tell(notice)
            deadline = notice.deadline if deadline is None else min(deadline, notice.deadline)
    finally:
        for task in listening:
            task.cancel()
        await asyncio.gather(*listening, return_exceptions=True)


async def _listen(source: Source, queue: asyncio.Queue[ReclaimNotice]) -> None:
    try:
        notice = await source
    except Exception:  # Whatever is wrong with one source must harm neither the training nor the other sources.
        log.exception("a source of reclaim notices has failed, and is not listened to any more")
        return
    if notice is not None:
        queue.put_nowait(notice)


def _seconds_until(moment: datetime) -> float:
    return max(0.0, (moment - utc_now()).total_seconds())


# Notices that need no cloud: the agent is terminated, or a file says so.


async def sigterm(terminated: asyncio.Event, grace: float) -> ReclaimNotice:
    """SIGTERM: of kubelet when the pod is deleted or its node is drained, of the local worker set when it scales in.

    Args:
        terminated: set by the signal's handler.
        grace: seconds from SIGTERM to SIGKILL, as whoever sends it keeps them.
    """
    await terminated.wait()
    return ReclaimNotice("sigterm", utc_now() + timedelta(seconds=grace))


async def written(file: Path | None) -> ReclaimNotice | None:
    """A :class:`ReclaimNotice` as JSON; for drills and tests.

    Args:
        file: path at which it may appear, atomically.
    """
    if file is None:
        return None
    while (notice := _read(file)) is None:  # noqa: ASYNC110 - it is somebody else who writes it
        await asyncio.sleep(FILE_INTERVAL)
    return notice


def _read(file: Path) -> ReclaimNotice | None:
    try:
        return from_json(ReclaimNotice, file.read_bytes())
    except FileNotFoundError:
        return None
    except InvalidDocument:
        return ReclaimNotice("file", utc_now())  # Somebody wanted something; the earliest deadline is the safe reading.
