"""Notices that need no cloud: the agent is terminated, or a file says so."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.run.rundir import ReclaimNotice

FILE_INTERVAL = 0.05
"""Seconds between two looks for the file."""


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
