"""A notebook of a pool, in a real JupyterLab and a browser: a cell trains a script with workers of the pool."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from elastic_runtime.pool.folder import PoolDir, pool_folder
from tests.paced import until

JUPYTER = os.environ.get("ELASTIC_TRAINING_TEST_JUPYTERLAB", "")
TRAINER = os.environ.get("ELASTIC_TRAINING_TRAINER_PYTHON", "")
COMMAND = (sys.executable, "-c", "import sys; from elastic_training.console.command.main import main; sys.exit(main())")
SCRIPT = Path(__file__).with_name("train.py")
pytestmark = [
    pytest.mark.timeout(420),
    pytest.mark.skipif(not JUPYTER, reason="ELASTIC_TRAINING_TEST_JUPYTERLAB has to name a Python with jupyterlab"),
]


@dataclass
class Machine:
    """A home with a pool, whose notebook listens at a port."""

    home: Path
    port: int
    folder: PoolDir

    def command(self, *words: str) -> str:
        """Run elastic-training. Returns what it prints."""
        environ = {**os.environ, "HOME": str(self.home), "AIRFLOW_HOME": str(self.home / "airflow")}
        environ["AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT"] = str(self.home / "runs")
        environ["AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON"] = TRAINER
        done = subprocess.run([*COMMAND, *words], env=environ, text=True, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def token(self) -> str:
        return self.folder.notebook_token.read_text().strip()

    def answers(self, query: str = "") -> int:
        """The status with which its contents are listed; 0: it does not listen."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/contents{query}", timeout=10) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except OSError:
            return 0

    def log(self) -> str:
        logs = (self.folder.log, self.folder.notebook_log)
        return "\n".join(each.read_text() for each in logs if each.exists())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (root := tmp_path / "runs").mkdir(mode=0o700)
    made = Machine(tmp_path, port, pool_folder(root, "team-a"))
    words = ("--max", "2", "--min", "1", "--jupyter", str(port), "--jupyter-python", JUPYTER)
    said = made.command("pool", "up", "team-a", *words)
    try:
        assert f"a notebook at http://127.0.0.1:{port}/lab" in said
        assert str(made.folder.notebook_token) in said
        assert made.token not in said
        yield made
    finally:
        made.command("pool", "down", "team-a")
    assert made.answers() == 0
    assert not made.folder.path.exists()


def test_a_cell_trains_in_the_pool_and_shows_the_log(machine: Machine, browser: Any) -> None:
    (machine.home / "train.py").write_text(SCRIPT.read_text())
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "id": "train"}
    cell["source"] = "!elastic-training run train.py --workers 2; echo exit status $?"
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (machine.home / "training.ipynb").write_text(json.dumps(notebook))
    until(lambda: machine.answers() == 403, machine.log)
    assert machine.answers(f"?token={machine.token}") == 200
    for secret in (machine.folder.notebook_token, machine.folder.notebook_config):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    page = browser.new_page(viewport={"width": 1100, "height": 700})
    page.goto(f"http://127.0.0.1:{machine.port}/lab/tree/training.ipynb?token={machine.token}", timeout=120_000)
    page.get_by_text("elastic-training run").first.click(timeout=120_000)
    page.keyboard.press("Shift+Enter")
    output = page.locator(".jp-OutputArea-output")
    output.get_by_text("exit status 0").wait_for(timeout=180_000)
    told = output.inner_text()
    if picture := os.environ.get("ELASTIC_TRAINING_TEST_PICTURE"):
        Path(picture).write_bytes(page.screenshot())
    page.close()
    assert "2 workers of pool:team-a asked for" in told
    assert "step 10" in told
    assert "succeeded: all ranks ended with code 0" in told
    assert machine.token not in machine.log()


def test_the_notebook_outlives_a_keeper_that_is_killed(machine: Machine) -> None:
    until(lambda: machine.answers() == 403, machine.log)
    before = machine.folder.notebook_process.read_text()
    first = machine.folder.keeper()
    os.kill(first.process.pid, 9)
    machine.command("pool", "up", "team-a", "--max", "2", "--min", "1", *_notebook(machine))
    until(lambda: machine.folder.keeper() != first, machine.log)
    assert machine.folder.notebook_process.read_text() == before
    assert machine.answers() == 403


def _notebook(machine: Machine) -> tuple[str, ...]:
    return ("--jupyter", str(machine.port), "--jupyter-python", JUPYTER)
