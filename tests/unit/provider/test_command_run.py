"""``elastic-training run``: its words, against a cluster in memory, and the exit status."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import FailureKind, RunNotFound
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster, FakeRun
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.main import main, parser
from elastic_training.console.command.training import LEASE, task_of
from elastic_training.console.command.training_options import split_words
from elastic_training.operators.elastic_training import ElasticTrainingOperator


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ELASTIC_TRAINING_POOL", raising=False)
    made = tmp_path / "train.py"
    made.write_text("print('trains')\n")
    return made


def task(folder: Path, *words: str, **environ: str) -> ElasticTrainingOperator:
    own, of_script = split_words(["run", "train.py", *words])
    arguments = parser().parse_args(own)
    arguments.of_script = of_script
    return task_of(arguments, folder, environ)


def meanwhile(fake: FakeCluster, act: Callable[[FakeRun], object]) -> None:
    """Do something to the command's run while it is followed."""
    fake.script(lambda: act(next(iter(fake.runs.values()))))


def test_options_may_follow_the_script_and_its_own_words_follow_two_hyphens(script: Path) -> None:
    made = task(script.parent, "--workers", "3", "--max", "4", "--", "--workers", "9", "--", "last")
    spec = made.spec("run")
    assert spec.command == ("python", str(script), "--workers", "9", "--", "last")
    assert spec.workers == WorkersSpec(1, 3, 4)
    assert (spec.engine, spec.working_directory, spec.pool, spec.checkpoint) == (
        "torch",
        str(script.parent),
        None,
        None,
    )


def test_a_pool_is_named_by_an_option_or_by_its_notebook(script: Path) -> None:
    named = task(script.parent, "--pool", "team-b", "--priority", "-3", ELASTIC_TRAINING_POOL="team-a")
    assert named.spec("run").pool == PoolSpec("team-b", -3)
    assert task(script.parent, ELASTIC_TRAINING_POOL="team-a").spec("run").pool == PoolSpec("team-a", 1)
    assert task(script.parent, "--local", ELASTIC_TRAINING_POOL="team-a").spec("run").pool is None


@pytest.mark.parametrize("engine", ["torch", "torchrun", "horovod", "horovodrun"])
def test_each_engine_can_be_named(script: Path, engine: str) -> None:
    assert task(script.parent, "--engine", engine).spec("run").engine == engine


def test_variables_are_given_or_passed_on(script: Path) -> None:
    made = task(script.parent, "--env", "RATE=0.1=x", "--env", "DATA", DATA="/data", OTHER="no")
    assert made.spec("run").environment == {"RATE": "0.1=x", "DATA": "/data"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["other.py"], "SCRIPT: "),
        (["train.py", "--env", "ABSENT_HERE"], "ABSENT_HERE is not set here"),
        (["train.py", "--env", "2=x"], "'2' is not the name of a variable"),
        (["train.py", "--pool", "Team A"], "not the name of a pool"),
        (["train.py", "--workers", "3", "--max", "2"], "workers.start: 3 is more than workers.max"),
        (["train.py", "--pool", "team-a"], "elastic-training pool up team-a"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    script: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("words", [[], ["train.py", "--workers", "0"], ["train.py", "--pool", "a", "--local"]])
def test_wrong_words(script: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    assert ended.value.code == 2


def test_the_log_the_end_and_the_lease(script: Path, fake: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def end(found: FakeRun) -> None:
        fake.write_log(found.spec.name, "2026-01-01T00:00:00.000Z worker-0 [0]<stdout>: step 1")
        fake.publish(found.spec.name, phase=Phase.SUCCEEDED, reason="all ranks ended with code 0", step=7)

    meanwhile(fake, end)
    assert main(["run", "train.py", "--workers", "2"]) == 0
    (found,) = fake.runs.values()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"run {found.spec.name}: 2 workers of local asked for; Ctrl-C ends it"
    assert any("worker-0 [0]<stdout>: step 1" in line for line in lines)
    assert f"run {found.spec.name}: succeeded: all ranks ended with code 0" in lines
    assert f"run {found.spec.name}: step 7, " in lines[-1]
    assert found.spec.timing.lease == LEASE


@pytest.mark.parametrize(("code", "status"), [(3, 3), (-9, 137), (None, 1)])
def test_the_exit_status_is_that_of_the_script(script: Path, fake: FakeCluster, code: int | None, status: int) -> None:
    def end(found: FakeRun) -> None:
        fake.publish(found.spec.name, phase=Phase.FAILED, failure=FailureKind.RANK_FAILED, exit_code=code)

    meanwhile(fake, end)
    assert main(["run", "train.py"]) == status


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_command_ends_its_run(
    script: Path, fake: FakeCluster, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    meanwhile(fake, lambda _: os.kill(os.getpid(), number))
    assert main(["run", "train.py"]) == 130
    (found,) = fake.runs.values()
    assert found.status.phase is Phase.FAILED
    assert "has ended it with Ctrl-C" in found.status.reason
    assert f"ending run {found.spec.name}; Ctrl-C again leaves it" in capsys.readouterr().err


def test_a_run_that_is_left_is_named_and_has_no_lease(
    script: Path, fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "train.py", "--detach"]) == 0
    (found,) = fake.runs.values()
    assert capsys.readouterr().out == f"{found.spec.name}\n"
    assert found.spec.timing.lease == 0


def test_old_runs_of_the_command_go_and_those_of_tasks_stay(script: Path, fake: FakeCluster) -> None:
    for name, owner, days in (("old", "shell:me:1", 40), ("new", "shell:me:2", 1), ("task", "{}", 40)):
        run(fake.claim(RunSpec(name, f"uid-{name}", ("true",)), owner))
        fake.publish(name, phase=Phase.SUCCEEDED, finished=utc_now() - timedelta(days=days))
    assert main(["run", "train.py", "--detach"]) == 0
    with pytest.raises(RunNotFound):
        run(fake.find("old"))
    assert run(fake.find("new"))
    assert run(fake.find("task"))
