"""Our launcher against plain ``horovodrun``, side by side on this machine. See README.md in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.harness.main import compare  # noqa: E402  # the path above has to be there first
from benchmarks.harness.report import LAUNCHER_HEAD  # noqa: E402
from benchmarks.harness.scenarios import scenarios  # noqa: E402
from benchmarks.harness.sections import Section  # noqa: E402

if __name__ == "__main__":
    sys.exit(compare(scenarios(), Section.LAUNCHER, LAUNCHER_HEAD))
