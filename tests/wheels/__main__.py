"""Installs the wheels into clean environments, one for each version of Airflow and Python, and trains there.

As a user would; for each: a training deferred to success; one marked as failed and one cleared while deferred, with the
seconds until nothing of it is left; what the page answers; one that has succeeded and is cleared, which trains again;
the rendered fields, in which a secret is masked; the DAGs that the documentation shows, which are parsed. PostgreSQL,
real components, real Horovod.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import httpx  # noqa: E402 - what comes from tools/ needs the path
import psutil  # noqa: E402

from demo_kit import processes  # noqa: E402
from demo_kit.airflow_api import AirflowApi  # noqa: E402
from demo_kit.airflow_stack import COMPONENTS, COMPONENTS_OF_2, AirflowStack, StackSettings  # noqa: E402
from tests.airflow.postgres import postgres  # noqa: E402
from tests.documented import dags  # noqa: E402
from tests.wheels.airflow_2 import USER, AirflowApi2  # noqa: E402
from tests.wheels.documents import refused  # noqa: E402
from tests.wheels.table import Line, page  # noqa: E402

NEWEST = "newest"
PAGELESS, PAGES = ("2.", "3.0."), ("yes", "-")
"""Airflow that shows no page of others; what the column says."""
VERSIONS = {
    "2.11.2": "2026-03-28",
    "3.0.6": "2025-09-12",
    "3.1.8": "2026-03-25",
    "3.2.2": "2026-06-12",
    "3.3.2": NEWEST,
    "3.4.0b2": NEWEST,
}
"""The last of each minor, and the day of its packages: two weeks after its release, in place of constraint files."""
PRE_RELEASE = ("apache-airflow-core>=0b0", "apache-airflow-task-sdk>=0b0")
"""Requirements that allow pre-releases of these, and of nothing else."""
DAG_ID, TASK_ID, POOL = "wheels", "train", "gate"
FOREVER = 100_000
"""Steps."""
CONDITION_TIMEOUT = 180.0
"""Seconds for what should take a few."""
GONE = 120.0
"""Seconds from a mark to the end of the training's last process, at most: a quarter is the goal, the rest is for busy
machines. Its lease alone would end it after hours."""
SECRET = "planted-secret-of-the-environment"


@dataclass(frozen=True, slots=True)
class Airflow:
    """One that runs."""

    stack: AirflowStack
    api: AirflowApi

    def training(self) -> list[psutil.Process]:
        """Launchers, agents and ranks that live."""
        return [process for process in processes.marked(self.stack.mark) if not _is_airflow(process)]

    def state(self, run_id: str) -> str:
        """Of the training's task."""
        return self.api.task_states(DAG_ID, run_id).get(TASK_ID, "none")

    def deferred(self) -> str:
        """Start a training, and return its DAG run's id once it is deferred and two ranks train."""
        run_id = self.api.trigger(DAG_ID, {"steps": FOREVER})
        self.until(lambda: self.state(run_id) == "deferred" and self.trains(), "a training that is deferred")
        return run_id

    def trains(self) -> bool:
        """Whether ranks that live have told of a step."""
        found = [json.loads(path.read_text()) for path in self.stack.settings.home.glob("training/*/status.json")]
        return any(each["phase"] == "running" and each["metrics"] for each in found)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = CONDITION_TIMEOUT) -> float:
        """Wait. Returns the seconds that it took. Raises TimeoutError."""
        begin = time.monotonic()
        while not condition():
            self.stack.check()
            if time.monotonic() - begin > seconds:
                raise TimeoutError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.2)
        return time.monotonic() - begin

    def ended(self, run_id: str, try_number: int) -> bool:
        """Whether that try of the task is over."""
        [task] = self.api.task_instances(DAG_ID, run_id)
        return task["try_number"] == try_number and task["state"] in ("success", "failed")

    def gone(self) -> float:
        """Seconds until no process of a training is left."""
        return self.until(lambda: not self.training(), "the training's processes are gone")


def main() -> int:
    """Exit status 1 when something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.wheels", description=__doc__)
    parser.add_argument("--airflow", nargs="*", default=list(VERSIONS), help="versions (default: %(default)s)")
    parser.add_argument("--python", nargs="*", type=Path, default=[Path(sys.executable)], help="interpreters")
    parser.add_argument("--newest", action="store_true", help="take the newest packages for every version")
    parser.add_argument("--table", type=Path, help="page to write the table to")
    parser.add_argument("--trainer", type=Path, default=ROOT / ".venv-trainer" / "bin" / "python")
    options = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # Nothing of the sources may be found there.
    lines: list[Line] = []
    for version in options.airflow:
        day = NEWEST if options.newest else VERSIONS.get(version, NEWEST)
        for python in options.python:
            lines.append(line := Line(version, _version(python), day))
            try:
                examine(line, python, options.trainer)
            except (AssertionError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
                # The others are of interest whatever became of this one.
                say(f"{_name(line)}: {type(error).__name__}: {error}")
            say(f"{_name(line)}: {'well' if line.well else 'NOT WELL'}: {line.found}")
            if options.table:
                options.table.write_text(page(time.strftime("%Y-%m-%d", time.gmtime()), lines), encoding="utf-8")
    return int(not all(line.well for line in lines))


def examine(line: Line, interpreter: Path, trainer: Path) -> None:
    """Fill in a line. Raises what kept it from being filled in to its end."""
    say(f"{_name(line)}: installing the wheels, packages: {line.packages}")
    folder = ROOT / "build" / "wheels" / f"{line.airflow}-{line.python}"
    python = environment(folder, line.airflow, interpreter, line.packages)
    line.found["install"] = "yes"
    wrong = refused(python, dags(), second=line.airflow.startswith("2."))
    say(f"{_name(line)}: parses the DAGs of README.md and docs/: {wrong or 'all of them'}")
    with (
        tempfile.TemporaryDirectory(prefix="wheels-") as home,
        airflow(line.airflow, python, Path(home), trainer) as it,
    ):
        line.found["parse"] = f"**wrong: {', '.join(wrong)}**" if wrong else "yes"
        line.found["serialise"] = "yes"  # The DAG is in the database.
        story(line, it)


def _version(python: Path) -> str:
    words = [str(python), "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def _name(line: Line) -> str:
    return f"Airflow {line.airflow}, Python {line.python}"


def environment(folder: Path, version: str, interpreter: Path, day: str) -> Path:
    """A virtual environment with that Airflow and the wheels, made anew. Returns its interpreter."""
    dated: tuple[str, ...] = () if day == NEWEST else ("--exclude-newer", day)
    dated += PRE_RELEASE if not version.replace(".", "").isdecimal() else ()
    uv = ROOT / ".venv" / "bin" / "uv"
    wheels = sorted((ROOT / "build" / "dist").glob("*.whl"))
    python = folder / "bin" / "python"
    for words in (
        ("venv", "--quiet", "--clear", "--seed", "--python", str(interpreter), str(folder)),
        (
            *("pip", "install", "--quiet", "--python", str(python), "--reinstall-package", "elastic-runtime"),
            *("--reinstall-package", "airflow-provider-elastic-training", f"apache-airflow=={version}"),
            *(*dated, "asyncpg", "psycopg2-binary", *map(str, wheels)),
        ),
    ):
        subprocess.run([uv, *words], check=True)
    return python


@contextmanager
def airflow(version: str, python: Path, home: Path, trainer: Path) -> Iterator[Airflow]:
    """That Airflow, healthy. What was left of it, or of its trainings, at the end is an error."""
    second = version.startswith("2.")
    with postgres() as database:
        settings = StackSettings(
            python=python,
            home=home / "airflow",
            dags=Path(__file__).with_name("dags"),
            database=database,
            environment={
                "AIRFLOW__API__WORKERS": "1",
                # Of Airflow 2's API.
                "AIRFLOW__API__AUTH_BACKENDS": "airflow.api.auth.backend.basic_auth",
                "AIRFLOW__API__ENABLE_XCOM_DESERIALIZE_SUPPORT": "True",
                "AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON": str(trainer),
                "AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT": str(home / "airflow" / "training"),
            },
        )
        stack = AirflowStack(settings)
        try:
            stack.start(COMPONENTS_OF_2 if second else COMPONENTS)
            if second:
                stack.command("users", "create", *("--role", "Admin", "--username", USER, "--password", USER),
                              *("--email", "a@example.org", "--firstname", "A", "--lastname", "B"))  # fmt: skip
            with (AirflowApi2 if second else AirflowApi)(stack.url) as api:
                stack.wait_until_healthy(api, DAG_ID)
                yield Airflow(stack, api)
        finally:
            left = stack.stop()
        assert left == [], f"these did not end by themselves: {left}"


def story(line: Line, it: Airflow) -> None:
    """What the module says. Fills in the line's last columns."""

    def expect(column: str, holds: bool, what: str, value: str = "yes") -> None:
        say(f"{_name(line)}: {what}{'' if holds else ' -- WRONG'}")
        if not line.found.get(column, "").startswith("**"):
            line.found[column] = value if holds else f"**wrong: {what}**"

    it.api.set_pool(POOL, 1)
    run_id = it.api.trigger(DAG_ID, {"steps": 30})
    states: set[str] = set()

    def over() -> bool:
        states.add(it.state(run_id))
        return bool(states & {"success", "failed"})

    column = "deferred training"
    taken = it.until(over, "the end of a short training")
    result = it.api.xcom(DAG_ID, run_id, TASK_ID)
    expect(column, "success" in states, f"a training has ended as {sorted(states)} after {taken:.1f} s")
    expect(column, "deferred" in states, "it was deferred")
    expect(column, "succeeded" in str(result), "its result says so, too")  # Airflow 2 has it as text.
    expect(column, it.gone() < GONE, "nothing of it is left")
    fields = str(it.api.rendered_fields(DAG_ID, run_id, TASK_ID))
    expect(column, SECRET not in fields and "DB_PASSWORD" in fields, "the rendered fields mask the secret")
    logs = "\n".join(it.api.log_lines(DAG_ID, run_id, TASK_ID))
    expect(column, SECRET not in logs, f"the log of {len(logs)} characters has no secret")

    it.api.clear(DAG_ID, run_id, TASK_ID)
    taken = it.until(lambda: it.ended(run_id, 2), "the end of a training that was cleared after its success")
    again = it.api.xcom(DAG_ID, run_id, TASK_ID)
    expect(
        "clear",
        "loss" in str(again).partition("metrics")[2].partition("}")[0],
        f"cleared after its success: trained again, {taken:.1f} s",
    )

    wrong = {} if line.airflow.startswith(PAGELESS) else look_at_page(it, it.deferred())
    expect("page", not wrong, f"the page answers: {wrong or 'all is well'}", PAGES[line.airflow.startswith(PAGELESS)])
    it.gone()

    run_id = it.deferred()
    it.api.set_task_state(DAG_ID, run_id, TASK_ID, "failed")
    taken = it.gone()
    expect("mark failed", taken < GONE, f"marked as failed while deferred: gone after {taken:.1f} s", f"{taken:.1f} s")

    run_id = it.deferred()
    it.api.set_pool(POOL, 0)  # No next try comes to do the work.
    it.api.clear(DAG_ID, run_id, TASK_ID)
    taken = it.gone()
    expect("clear", taken < GONE, f"cleared while deferred: gone after {taken:.1f} s", f"{taken:.1f} s")
    it.api.set_task_state(DAG_ID, run_id, TASK_ID, "failed")


def look_at_page(it: Airflow, run_id: str) -> dict[str, str]:
    """Ask everything that the page asks for a training that goes on, its end the last. Returns what was refused."""
    ids: dict[str, Any] = {"dag_id": DAG_ID, "run_id": run_id, "task_id": TASK_ID}
    headers = {"Authorization": f"Bearer {it.api.token()}", "X-Elastic-Training": "1"}
    with httpx.Client(base_url=f"{it.stack.url}/elastic-training", headers=headers, timeout=60) as http:
        tab = http.get("/api/v1/task", params=ids)
        workers = [each["name"] for each in tab.json()["status"]["workers"]] if tab.is_success else ["none"]
        answers = {
            "tab": tab,
            "runs tab": http.get("/api/v1/dag-run", params={"dag_id": DAG_ID, "run_id": run_id}),
            "all runs": http.get("/api/v1/runs"),
            "report": http.get("/report", params=ids),
            "scale": http.post("/api/v1/scale", json={**ids, "workers": 1}),
            "notice": http.post("/api/v1/notice", json={**ids, "worker": workers[0]}),
            "end": http.post("/api/v1/end", json=ids),
        }
    return {name: f"{each.status_code} {each.text[:200]}" for name, each in answers.items() if not each.is_success}


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


def _is_airflow(process: psutil.Process) -> bool:
    try:
        return "AIRFLOW_HOME" in process.environ()
    except psutil.NoSuchProcess:
        return True


if __name__ == "__main__":
    sys.exit(main())
