"""Runs of each engine that never outlive their test, and its undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.status import Phase
from tests.engines.kinds import KINDS, Kind
from tests.local.harness import ScriptedRun

Start = Callable[..., ScriptedRun]
ONCE = dict.fromkeys(range(1, 22), 1)
"""Every step of a run, and how often it is done where nothing is lost."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every engine, or those for which a module's ``concerns`` is true."""
    if "kind" in metafunc.fixturenames:
        concerns = getattr(metafunc.module, "concerns", lambda _kind: True)
        kinds = [
            pytest.param(kind, id=kind.name, marks=[pytest.mark.long] if kind.variant else [])
            for kind in KINDS
            if concerns(kind)
        ]
        metafunc.parametrize("kind", kinds, scope="session")


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


def assert_same_end(run: ScriptedRun, undisturbed: ScriptedRun) -> None:
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    assert run.weights() == undisturbed.weights()


def stand(run: ScriptedRun, step: int, size: int) -> None:
    """Await that so many ranks stand at this step, and that the status knows of them."""
    run.at(step)
    run.until_status(lambda status: status.world_size == size, f"a world of {size}")
