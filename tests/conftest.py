"""What holds for every test: nothing is left behind, and Airflow's home is no one's real one."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests import leaks

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("ELASTIC_TRAINING_TRAINER_PYTHON", str(ROOT / ".venv-trainer" / "bin" / "python"))
# Before anything imports Airflow, which writes its configuration there.
AIRFLOW_HOME = tempfile.mkdtemp(prefix="airflow-home-")
os.environ["AIRFLOW_HOME"] = AIRFLOW_HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"


def pytest_configure() -> None:
    # Which a shell that starts a job in the background has it ignore, and its children with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    leaks.adopt_orphans()
    leaks.watch_event_loops()


def pytest_collection_finish() -> None:
    """Modules stay: to go through all of Airflow or torch for every search for garbage takes seconds in the end."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    if paced := sys.modules.get("tests.paced"):
        paced.forget_runs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What became of the runs of a test that failed: a comparison of two lists of sizes does not say why."""
    report = yield
    paced = sys.modules.get("tests.paced")
    if call.when == "call" and report.failed and paced:
        report.sections += [("Captured stdout of a run", f"{history}\n") for history in paced.histories()]
    return report


def pytest_unconfigure() -> None:
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    """Fail a test that leaves a process, a thread, an asyncio task or a descriptor behind.

    Fixtures of a wider scope are made before this one, so what they hold is no leak.
    """
    before = leaks.holdings()
    yield
    if bridge := sys.modules.get("elastic_training.concurrency.bridge"):
        bridge.close()
    if left := leaks.left_behind(before, tmp_path):
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)
