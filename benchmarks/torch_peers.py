"""Our engine ``torch`` against ``torchrun`` and TorchFT, side by side on this machine. See README.md in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.harness.main import compare  # noqa: E402  # the path above has to be there first
from benchmarks.harness.report import TORCH_HEAD  # noqa: E402
from benchmarks.harness.sections import Section  # noqa: E402
from benchmarks.harness.torch_scenarios import torch_scenarios  # noqa: E402
from benchmarks.harness.torchft import is_installed  # noqa: E402

if __name__ == "__main__":
    if not is_installed():
        print("TorchFT is left out: there is no .venv-torchft (make setup-torchft)")
    sys.exit(compare(torch_scenarios(), Section.TORCH, TORCH_HEAD))
