"""``breakpoint()`` left in a script: a rank has no terminal, so Python's debugger would end it with ``bdb.BdbQuit``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from elastic_runtime.errors import InvalidSettings

_CHOSEN = "PYTHONBREAKPOINT"


def refuse_breakpoints() -> None:
    """Have ``breakpoint()`` raise InvalidSettings, unless the environment chooses a debugger (``PYTHONBREAKPOINT``)."""
    if not os.environ.get(_CHOSEN):
        sys.breakpointhook = _refuse


def _refuse(*_arguments: object, **_named: object) -> NoReturn:
    caller = sys._getframe(1)
    place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
    remedy = f"Remove it, or name a debugger that needs no terminal in {_CHOSEN}; 0 skips all breakpoints"
    raise InvalidSettings("breakpoint()", f"{place} calls it, and a rank has no terminal", remedy)
