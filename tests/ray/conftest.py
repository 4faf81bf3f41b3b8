"""Runs in a real Ray: that of ``tools/ray with``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.status import Phase
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed
from tests.ray_run import RayRun

Start = Callable[..., RayRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts runs; arguments as :class:`ScriptedRun`, but for the folder."""
    assert os.environ.get("RAY_LAB"), "run me through tools/ray with --"
    runs: list[RayRun] = []

    def begin(script: Script, *arguments: Any, kind: type[RayRun] = RayRun, **spec: Any) -> RayRun:
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
