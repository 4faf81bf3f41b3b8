"""Runs of each engine that never outlive their test, and its undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.kinds import HOROVOD, HUB, TORCH, TORCH_IN_PLACE, Kind
from tests.local.harness import ScriptedRun

Start = Callable[..., ScriptedRun]


@pytest.fixture(scope="session", params=[HUB, HOROVOD, TORCH, TORCH_IN_PLACE], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def start(kind: Kind, tmp_path: Path) -> Iterator[Start]:
    """Starts a run; arguments as :meth:`Kind.run`, but for the folder."""
    runs: list[ScriptedRun] = []

    def begin(workers: tuple[int, int, int], **more: Any) -> ScriptedRun:
        runs.append(kind.run(tmp_path / f"run-{len(runs)}", workers, **more))
        return runs[-1].start()

    yield begin
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def undisturbed(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedRun]:
    """Two ranks to the end, and nothing happens."""
    run = kind.run(tmp_path_factory.mktemp("undisturbed") / "run", (2, 2, 2)).start()
    try:
        run.end()
        yield run
    finally:
        run.close()
