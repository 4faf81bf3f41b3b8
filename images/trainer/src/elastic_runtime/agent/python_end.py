"""End of a Python program in a process that ends by ``os._exit``: what the interpreter does before its own end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

FLUSH_FAILED = 120
"""Exit code of the interpreter if output is lost at its end."""


def end_like_python(run: Callable[[], None], hidden: Collection[str] = ()) -> NoReturn:
    """Run to the end as the interpreter would, but for the dismantling of its modules.

    That takes a second with torch, since it touches, and so copies, every page shared with the parent;
    multiprocessing's forked children leave it out, too.

    Args:
        run: the program.
        hidden: files that lead to the program, so tracebacks leave them out.
    """
    hidden = (__file__, "<frozen runpy>", *hidden)
    code = 1
    try:
        code = _run(run, hidden)
        if not _finish(hidden):
            code = FLUSH_FAILED
    finally:
        os._exit(code & 0xFF)


def _run(run: Callable[[], None], hidden: Collection[str]) -> int:
    """Return the exit code of the program. If stderr is closed, the reason of a failure is left out."""
    try:
        run()
    except SystemExit as end:
        return _exit_code(end.code)
    except BaseException as error:  # noqa: BLE001 - reported and turned into the exit status, as the interpreter does
        with contextlib.suppress(BaseException):
            _report(error, hidden)
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code if -(2**63) <= code < 2**63 else -1
    with contextlib.suppress(BaseException):
        stream = sys.__stderr__ if getattr(sys, "stderr", None) is None else sys.stderr
        print(code, file=stream)
    return 1


def _finish(hidden: Collection[str]) -> bool:
    """Return whether all output is written.

    Each step is tried, whatever becomes of the others. A signal's handler may raise an exception at any of them. The
    interpreter ignores it then, so it does not change the exit code.
    """
    flushed: list[bool] = []

    def flush(name: str) -> None:
        flushed.append(_flush(name, hidden))

    steps: list[tuple[object, Callable[[], None]]] = [
        (threading, threading._shutdown),  # type: ignore[attr-defined]  # waits for threads that are no daemons
        (atexit, atexit._run_exitfuncs),
        # If the program has replaced a stream, the original may still hold the begin of a line.
        *((name, partial(flush, name)) for name in ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")),
    ]
    where: object = None
    while steps:
        try:
            while steps:
                where, step = steps.pop(0)
                step()
        except BaseException as error:  # noqa: BLE001 - ignored, as by the interpreter
            _report_ignored(where, error, hidden)
    return all(flushed)


def _flush(name: str, hidden: Collection[str]) -> bool:
    """Flush that stream, and return whether that succeeded. A missing or closed one has nothing to write."""
    stream: Any = getattr(sys, name.removeprefix("sys."), None)
    with contextlib.suppress(Exception):
        if stream is None or stream.closed:
            return True
    try:
        stream.flush()
    except BaseException as error:  # noqa: BLE001 - ignored, as by the interpreter
        if "out" in name:
            _report_ignored(stream, error, hidden)
        return False
    return True


def _report(error: BaseException, hidden: Collection[str]) -> None:
    """From the script's first frame on, as the interpreter does: what leads there says nothing of what went wrong."""
    if sys.stderr is not None:  # In its place, traceback would write to stdout.
        traceback.print_exception(error.with_traceback(_shown(error, hidden)))


def _report_ignored(where: object, error: BaseException, hidden: Collection[str]) -> None:
    with contextlib.suppress(BaseException):
        if sys.stderr is not None:
            sys.stderr.write(f"Exception ignored in: {where!r}\n")
            _report(error, hidden)


def _shown(error: BaseException, hidden: Collection[str]) -> TracebackType | None:
    shown = error.__traceback__
    while shown and shown.tb_next and shown.tb_frame.f_code.co_filename in hidden:
        shown = shown.tb_next
    if isinstance(error, SyntaxError) and shown and shown.tb_frame.f_code.co_filename in hidden:
        return None  # Code that cannot be compiled has no frame of its own.
    return shown
