"""Where several ranks of a host have the local rank 0, the run says so: once, and only where a script may go by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.launcher.record.run_record import LOCAL_RANK
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)

LONG = 150.0
"""Seconds for a whole run, with the start of its processes on a busy machine."""
HOROVOD = "import torch, horovod.torch as hvd\nhvd.init()\n{}\nhvd.allreduce(torch.ones(1), name='together')\n"
TORCH = """
import torch
torch.accelerator.is_available = lambda: {}
from elastic_runtime.torch import elastic
elastic.init()
"""
TORCHRUN = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
READS = "assert hvd.local_rank() == hvd.local_rank() == 0"
GPUS = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}


@pytest.mark.parametrize(
    ("engine", "script", "workers", "environment", "warnings"),
    [
        pytest.param("horovod", HOROVOD.format(READS), 2, {}, [LOCAL_RANK], id="Horovod's is read"),
        pytest.param("horovod", HOROVOD.format(""), 2, {}, [], id="Horovod's is not read"),
        pytest.param("horovod", HOROVOD.format(READS), 1, {}, [], id="one rank alone", marks=pytest.mark.long),
        pytest.param("torch", TORCH.format(True), 2, {}, [LOCAL_RANK], id="torch with devices"),
        pytest.param("torch", TORCH.format(False), 2, {}, [], id="torch without devices", marks=pytest.mark.long),
        pytest.param("torchrun", TORCHRUN, 2, GPUS, [LOCAL_RANK], id="torchrun with devices"),
        pytest.param("torchrun", TORCHRUN, 2, {}, [], id="torchrun without devices", marks=pytest.mark.long),
    ],
)
def test_a_local_rank_that_several_have_is_told_of(
    start: Start,
    tmp_path: Path,
    engine: str,
    script: str,
    workers: int,
    environment: dict[str, str],
    warnings: list[str],
) -> None:
    (tmp_path / "script.py").write_text(script)
    command = ("python", str(tmp_path / "script.py"))
    counts = (workers, workers, workers)
    run = start(Script("none"), counts, engine=engine, command=command, environment=environment)
    status = run.end(LONG)
    assert status.phase is Phase.SUCCEEDED, run.report("another end")
    assert [event.message for event in status.events if event.kind is EventKind.WARNING] == warnings
