"""The log of a run, at a terminal; nobody else's right to stream it into a task's log is touched."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

from elastic_training.clusters.types import LOG_START, LogLines, Quiet
from elastic_training.console.command.finding import Chosen
from elastic_training.console.command.output import print_error, print_line
from elastic_training.redaction.free_text import Hide

_BEAT = 2.0
"""Seconds of silence after which all that was there has come."""
_PAUSE = 1.0
"""The same, once some has come and the run tells of something else."""
_WHOLE = 60.0
"""Seconds that reading what is there may take, of a run that never stops printing."""


async def print_log(chosen: Chosen, hide: Hide, *, follow: bool, last: int | None) -> None:
    """Print the log so far, then what arrives.

    Args:
        chosen: the run.
        hide: takes its secrets out of a line.
        follow: go on until it is over.
        last: of what is there, only so many lines; None: all.

    Raises:
        RunNotFound: the run is gone.
        ClusterUnavailable: the place does not answer.
    """
    kept: deque[str] = deque(maxlen=last)
    caught_up = False
    try:
        # Closed here and now: what reads the log may be several tasks, and the loop ends with the command.
        async with asyncio.timeout(None if follow else _WHOLE), aclosing(_pieces(chosen)) as pieces:
            async for lines in pieces:
                if lines is None and not caught_up:
                    caught_up = True
                    _print(kept, hide)
                    if not follow:
                        return
                elif lines is not None and (caught_up or last is None):
                    for line in lines:
                        print_line(hide(line))
                elif lines is not None:
                    kept.extend(lines)
    except TimeoutError:
        print_error("it prints faster than it is read; --follow goes on with it")
    _print(kept, hide)


def _print(kept: deque[str], hide: Hide) -> None:
    while kept:
        print_line(hide(kept.popleft()))


async def _pieces(chosen: Chosen) -> AsyncGenerator[tuple[str, ...] | None, None]:
    """Lines; None: there are no more of them for the moment."""
    now, spoke = asyncio.get_running_loop().time, None
    async with aclosing(chosen.cluster.watch(chosen.ref, LOG_START, _BEAT)) as updates:
        async for update in updates:
            if isinstance(update, LogLines):
                spoke = now() if update.lines else spoke
                yield update.lines
            elif isinstance(update, Quiet) or (spoke is not None and now() >= spoke + _PAUSE):
                yield None
