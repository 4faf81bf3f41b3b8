#!/usr/bin/env python3
"""Try on a machine with a GPU what only a GPU can show, and write a table of it: see ``--help``."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "images" / "trainer" / "src")]

from benchmarks.gpu.check import main  # noqa: E402  # the path above has to be there first

sys.exit(main())
