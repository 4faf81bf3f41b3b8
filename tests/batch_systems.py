"""Fixtures of runs in a real batch system: Slurm, Spark or Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from elastic_runtime.run.status import Phase
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed

RunT = TypeVar("RunT", bound=ScriptedRun)


def starting(base: Path, default: type[RunT]) -> Iterator[Callable[..., RunT]]:
    """Yield what starts runs, with arguments as :class:`ScriptedRun` but for the folder. All are closed afterwards."""
    runs: list[RunT] = []

    def begin(script: Script, *arguments: Any, kind: type[RunT] = default, **spec: Any) -> RunT:
        run = kind(base / f"run-{len(runs)}", script, *arguments, **spec)
        runs.append(run)
        run.start()
        return run

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
