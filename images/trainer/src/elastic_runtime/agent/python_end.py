"""End of a Python program in a process that ends by ``os._exit``: what the interpreter does before its own end."""

from __future__ import annotations

import atexit
import contextlib
import io
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
        with contextlib.suppress(BaseException):  # Of a signal's handler, between two steps.
            code = _run(run, hidden)
        if not _finish(hidden):
            code = FLUSH_FAILED
    finally:
        os._exit(code & 0xFF)


def _run(run: Callable[[], None], hidden: Collection[str]) -> int:
    """Return the exit code of the program."""
    try:
        run()
    except SystemExit as end:
        return _exit_code(end.code)
    except BaseException as error:  # noqa: BLE001 - reported and turned into the exit status, as the interpreter does
        failure = error
    else:
        return 0
    return _report(failure, hidden)  # Not while it is handled: it would be the context of what a hook raises.


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
        flushed.append(False)
        flushed[-1] = _flush(name, hidden)

    steps: list[tuple[object, Callable[[], None]]] = [
        (threading, threading._shutdown),  # type: ignore[attr-defined]  # waits for threads that are no daemons
        (atexit, atexit._run_exitfuncs),
        ("files of the script", _flush_files),
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
            _print(f"Exception ignored in: {where!r}", error, hidden)
    return all(flushed)


def _flush_files() -> None:
    """Write what files that variables of the script hold have not written yet: the interpreter closes these."""
    for value in list(vars(sys.modules["__main__"]).values()):
        if isinstance(value, io.IOBase) and not value.closed:
            with contextlib.suppress(Exception):
                value.flush()


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
            _print(f"Exception ignored in: {stream!r}", error, hidden)
        return False
    return True


def _report(error: BaseException, hidden: Collection[str]) -> int:
    """Call the program's ``sys.excepthook``, and return the exit code. If the hook fails, both errors are printed."""
    error = error.with_traceback(_shown(error, hidden))
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        _print("sys.excepthook is missing", error, hidden)
    elif sys.excepthook is sys.__excepthook__:
        _print(None, error, hidden)
    else:
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as end:
            return _exit_code(end.code)
        except BaseException as another:  # noqa: BLE001 - reported, too
            failure = another
        else:
            return 1
        _print("Error in sys.excepthook:", failure, hidden)
        _print("\nOriginal exception was:", error, hidden)
    return 1


def _print(title: str | None, error: BaseException, hidden: Collection[str]) -> None:
    """From the script's first frame on, as the interpreter does: what leads there says nothing of what went wrong."""
    if getattr(sys, "stderr", None) is None:  # In its place, traceback would write to stdout.
        return
    with contextlib.suppress(BaseException):  # It is closed, or full.
        if title:
            sys.stderr.write(f"{title}\n")
        traceback.print_exception(error.with_traceback(_shown(error, hidden)))


def _shown(error: BaseException, hidden: Collection[str]) -> TracebackType | None:
    shown = error.__traceback__
    while shown and shown.tb_next and shown.tb_frame.f_code.co_filename in hidden:
        shown = shown.tb_next
    if isinstance(error, SyntaxError) and shown and shown.tb_frame.f_code.co_filename in hidden:
        return None  # Code that cannot be compiled has no frame of its own.
    return shown
