"""Where and with what the figures were taken."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

import elastic_runtime


def description(packages: Sequence[str] = ("torch", "horovod")) -> dict[str, str]:
    """Name and value of everything that a reader of the figures has to know.

    Args:
        packages: installed distributions whose versions matter.
    """
    memory = psutil.virtual_memory().total / 2**30
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in packages},
        "elastic_runtime": elastic_runtime.__version__,
        "load average before": f"{os.getloadavg()[0]:.2f} (1 min)",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
