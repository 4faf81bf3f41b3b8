"""End of a Python program in a process that ends by ``os._exit``: what the interpreter does before its own end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from typing import NoReturn


def end_like_python(run: Callable[[], None], hidden: Collection[str] = ()) -> NoReturn:
    """Run to the end as the interpreter would, but for the dismantling of its modules.

    That takes a second with torch, since it touches, and so copies, every page shared with the parent;
    multiprocessing's forked children leave it out, too.

    Args:
        run: the program.
        hidden: files that lead to the program, so tracebacks leave them out.
    """
    code: object = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # noqa: BLE001 - reported and turned into the exit status, as the interpreter does
        _report(error, (__file__, "<frozen runpy>", *hidden))
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((code or 0) & 0xFF)


def _report(error: BaseException, hidden: Collection[str]) -> None:
    """From the script's first frame on, as the interpreter does: what leads there says nothing of what went wrong."""
    shown = error.__traceback__
    while shown and shown.tb_next and shown.tb_frame.f_code.co_filename in hidden:
        shown = shown.tb_next
    traceback.print_exception(error.with_traceback(shown))
