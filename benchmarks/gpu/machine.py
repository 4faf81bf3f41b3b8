"""The device that is checked, and a Horovod for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
BUILD_HOROVOD = ROOT / "images" / "trainer" / "build-horovod.sh"


@dataclass(frozen=True, slots=True)
class Device:
    """Where tensors lie."""

    kind: str
    """As torch calls it: ``cuda`` (AMD's too) or ``cpu``."""
    name: str
    """For people."""
    memory: int
    """Bytes."""

    @property
    def environment(self) -> dict[str, str]:
        """Of the ranks of a run on it. They share it: each worker is given the first one."""
        return {"DEVICE": self.kind} | ({"CUDA_VISIBLE_DEVICES": "0"} if self.kind == "cuda" else {})


def find_device(want_cpu: bool) -> Device:
    """The first GPU, or the processor.

    Raises:
        RuntimeError: torch sees no GPU.
    """
    if want_cpu:
        return Device("cpu", "no GPU: the processor", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU; --cpu goes through the same steps without one")
    properties = torch.cuda.get_device_properties(0)
    return Device("cuda", properties.name, properties.total_memory)


def build_with_nccl(folder: Path, say: Callable[[str], None]) -> Path:
    """Horovod with NCCL for this torch, in a folder to import it from; built once."""
    installed = folder / f"horovod-nccl-{torch.__version__}"
    if not installed.exists():
        say("building Horovod with NCCL, two to five minutes")
        wheels, unfinished = folder / "wheels", folder / "unfinished"
        with (folder / "build.log").open("wb") as log:
            install = (
                f"-m pip install --no-deps --no-index --upgrade --find-links={wheels} --target={unfinished} horovod"
            )
            for words in ([str(BUILD_HOROVOD), sys.executable, str(wheels)], [sys.executable, *install.split()]):
                environment = {**os.environ, "HOROVOD_GPU_OPERATIONS": "NCCL"}
                subprocess.run(words, check=True, stdout=log, stderr=log, env=environment)
        unfinished.rename(installed)
    return installed
