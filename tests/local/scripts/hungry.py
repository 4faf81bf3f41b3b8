"""``exact.py``, whose rank 1 needs more memory from step 20 on: the megabytes that the first argument says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from pace import Pace

from elastic_runtime.world import current_world

megabytes = int(sys.argv.pop(1))
kept: list[bytes] = []
hold = Pace.hold


def hold_more(self: Pace, state: Any) -> None:
    if state.step >= 20 and current_world().rank == 1 and not kept:
        kept.append(b"1" * (megabytes << 20))
    hold(self, state)


Pace.hold = hold_more  # type: ignore[method-assign]
runpy.run_path(str(Path(__file__).with_name("exact.py")), run_name="__main__")
