"""A model under ``fully_shard``: our ``ShardedState`` against ``torchrun``. See README.md in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.harness.main import compare  # noqa: E402  # the path above has to be there first
from benchmarks.harness.report import SHARDED_HEAD  # noqa: E402
from benchmarks.harness.sections import Section  # noqa: E402
from benchmarks.harness.torch_scenarios import sharded_scenarios  # noqa: E402

if __name__ == "__main__":
    sys.exit(compare(sharded_scenarios(), Section.SHARDED, SHARDED_HEAD))
