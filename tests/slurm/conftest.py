"""Runs in a real Slurm: that of ``tools/slurm with``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.status import Phase
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed
from tests.slurm_run import SlurmRun

Start = Callable[..., SlurmRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts runs; arguments as :class:`ScriptedRun`, but for the folder."""
    assert shutil.which("sbatch"), "run me through tools/slurm with --"
    runs: list[SlurmRun] = []

    def begin(script: Script, *arguments: Any, kind: type[SlurmRun] = SlurmRun, **spec: Any) -> SlurmRun:
        runs.append(kind(tmp_path / f"run-{len(runs)}", script, *arguments, **spec))
        return runs[-1].start()

    yield begin
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    run = ScriptedRun(tmp_path_factory.mktemp("undisturbed") / "run", Script("exact.py"), (2, 2, 2)).start()
    try:
        assert run.end().phase is Phase.SUCCEEDED, run.report("no success")
        return Undisturbed.by(run)
    finally:
        run.close()
