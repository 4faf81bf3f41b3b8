"""The command at a terminal, against a cluster in memory, and as a process against a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_runtime.run.deadline import DeadlineStatus
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, WorkerState
from elastic_runtime.run.status_progress import Progress
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.console.command import actions, log
from elastic_training.console.command.main import main
from elastic_training.identity.ownership import Owner

OWNER = Owner("nightly", "scheduled__1", "train", -1, 1, "nonce")
STUB = Path(__file__).with_name("stub_launcher.py")

NO_RUN = "no run is named weekly in local. List runs with: elastic-training runs"


def claim(cluster: FakeCluster | LocalCluster, name: str, checkpoint: CheckpointSpec | None = None) -> RunRef:
    """A run that trains with two of one to four workers."""
    spec = RunSpec(
        *(name, f"uid-{name}", ("python", "train.py"), WorkersSpec(1, 2, 4)),
        checkpoint=checkpoint,
    )
    return run(cluster.claim(spec, OWNER.text())).ref


@pytest.fixture
def nightly(fake: FakeCluster) -> FakeCluster:
    claim(fake, "nightly-train")
    return fake


def test_runs_are_listed_with_their_task(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "PLACE", "PHASE", "RANKS", "WORKERS", "STEP", "STARTED", "TASK"]
    assert line.split()[:6] == ["nightly-train", "local", "running", "2", "2", "unknown"], "it trains, and tells none"
    assert line.endswith("nightly.train scheduled__1")


def test_programs_get_json(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json", "--phase", "running"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unreachable"] == []
    assert [(each["name"], each["dag_id"], each["world_size"]) for each in said["runs"]] == [
        ("nightly-train", "nightly", 2)
    ]
    assert main(["runs", "--json", "--phase", "failed"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == []
    assert main(["show", "nightly-train", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"]["phase"] == "running"


def test_the_time_left_is_shown(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(3000, 40.0, 720.0, 600.0, 900.0, "measured with 2 ranks")
    nightly.publish("nightly-train", step=1200, progress=progress)
    assert main(["show", "nightly-train"]) == 0
    words = "40 % of 3,000 steps, about 12 min left (10 min to 15 min); measured with 2 ranks"
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if "progress:" in line] == [
        words
    ]


def test_deadline_and_budget_are_shown(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    nightly.publish("nightly-train", deadline=DeadlineStatus(budget=40.0, spent=12.4, words="it costs 46.00 $"))
    assert main(["show", "nightly-train"]) == 0
    shown = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if "deadline:" in line]
    assert shown == ["12.40 $ spent, of 40.00 $; it costs 46.00 $"]


def test_a_place_that_does_not_answer_hides_no_other(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    class Away(FakeCluster):
        async def list(self) -> list[object]:  # type: ignore[override]
            raise ClusterUnavailable("the API server does not answer")

    with substituted("away", Away()):
        assert main(["runs", "--place", "away", "--place", "local"]) == 1
    said = capsys.readouterr()
    assert "nightly-train" in said.out
    assert said.err == "elastic-training: away: the API server does not answer\n"


def test_the_begin_of_a_name_is_enough_where_it_is_one_runs(
    nightly: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "nigh"]) == 0
    assert "2 ranks; 2 workers asked for" in capsys.readouterr().out
    claim(nightly, "nightly-train-2")
    assert main(["show", "nightly-train"]) == 0  # The whole name is nobody else's.
    capsys.readouterr()
    assert main(["show", "nigh"]) == 1
    assert "'nigh' may be" in capsys.readouterr().err
    assert main(["show", "weekly"]) == 1
    assert capsys.readouterr().err == f"elastic-training: {NO_RUN}\n"


@pytest.mark.parametrize(("word", "workers"), [("3", 3), ("+2", 4), ("-1", 1), ("max", 4)])
def test_scaling(nightly: FakeCluster, word: str, workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "nightly-train", word]) == 0
    assert nightly.named("nightly-train").size == workers
    assert capsys.readouterr().out == f"run nightly-train: {workers} workers asked for\n"


@pytest.mark.parametrize("word", ["9", "-2", "many"])
def test_a_size_that_cannot_be_is_refused_in_words(
    nightly: FakeCluster, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", "nightly-train", word]) == 1
    assert nightly.named("nightly-train").size == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("elastic-training: workers: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("words", [["pause", "durable-train"], ["scale", "durable-train", "0"]])
def test_a_pause_and_its_end(nightly: FakeCluster, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    claim(nightly, "durable-train", CheckpointSpec("file:///store/run"))
    assert main(words) == 0
    assert capsys.readouterr().out == "run durable-train: a pause asked for\n"
    assert nightly.named("durable-train").status.phase is Phase.PAUSED
    assert main(["scale", "durable-train", "3"]) == 1
    assert "is paused by " in capsys.readouterr().err
    assert main(["runs", "--phase", "paused"]) == 0
    assert "durable-train" in capsys.readouterr().out
    assert main(["resume", "durable-train", "--workers", "3"]) == 0
    assert capsys.readouterr().out == "run durable-train: resumed, 3 workers asked for\n"
    assert nightly.named("durable-train").size == 3
    assert main(["resume", "durable-train"]) == 1
    assert capsys.readouterr().err == "elastic-training: the run durable-train is not paused\n"


def test_a_pause_that_would_lose_the_state_is_refused_in_words(
    nightly: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", "nightly-train"]) == 1
    assert capsys.readouterr().err.startswith(
        "elastic-training: checkpoint_uri: the run nightly-train has no checkpoint "
    )


def test_a_run_that_is_over_is_not_changed(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    nightly.fail("nightly-train", FailureKind.RANK_FAILED, "rank 1 ended with code 3")
    for words in (["scale", "nightly", "3"], ["notice", "nightly", "worker-0"], ["stacks", "nightly"]):
        assert main(words) == 1
        assert "nightly-train is over: failed (rank 1 ended with code 3)" in capsys.readouterr().err
    assert main(["end", "nightly", "--yes"]) == 0
    assert capsys.readouterr().out == "run nightly-train is over: failed\n"


def test_a_drill(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notice", "nightly-train", "worker-1", "--seconds", "5"]) == 0
    states = {each.name: each.state for each in nightly.named("nightly-train").status.workers}
    assert states["worker-1"] is WorkerState.LEFT
    assert main(["notice", "nightly-train", "worker-9"]) == 1
    assert "has no worker 'worker-9'" in capsys.readouterr().err


def test_a_way_in_on_this_machine_is_the_processes(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = nightly.named("nightly-train").status.workers
    nightly.publish("nightly-train", workers=(replace(first, ranks=(1,)), replace(second, ranks=(0,), pids=(41, 42))))
    assert main(["exec", "nightly-train"]) == 0
    assert capsys.readouterr().out == "worker-1 runs on this machine; its agent and ranks are the processes 41, 42\n"
    assert main(["exec", "nightly-train", "worker-0"]) == 0
    assert capsys.readouterr().out.endswith("are the processes not known\n")
    for words, said in [(["--run"], "runs on this machine"), (["worker-9"], "Write one of worker-0, worker-1")]:
        assert main(["exec", "nightly-train", *words]) == 1
        assert said in capsys.readouterr().err


def test_there_is_no_way_into_a_run_without_workers(nightly: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    nightly.publish("nightly-train", workers=(), reason="it waits for capacity")
    assert main(["exec", "nightly-train"]) == 1
    assert "no worker of the run nightly-train is there: running (it waits for capacity)" in capsys.readouterr().err


def test_stacks_are_asked_for(nightly: FakeCluster) -> None:
    assert main(["stacks", "nightly-train"]) == 0
    assert nightly.named("nightly-train").document.stacks


def test_an_end_is_confirmed(
    nightly: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["end", "nightly-train"]) == 2  # Nobody is there to ask.
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda _limit: "n\n")
    assert main(["end", "nightly-train"]) == 1
    assert nightly.named("nightly-train").document.cancelled is None
    monkeypatch.setattr("sys.stdin.readline", lambda _limit: "yes\n")
    monkeypatch.setattr(actions.getpass, "getuser", lambda: "ada")
    assert main(["end", "nightly-train"]) == 0
    assert nightly.named("nightly-train").document.cancelled == "ada has ended it with elastic-training"


def test_the_log(nightly: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(log, "_BEAT", 0.05)
    nightly.write_log("nightly-train", "one", "two", "three")
    assert main(["logs", "nightly-train"]) == 0
    assert capsys.readouterr().out.splitlines() == ["the launcher has started", "one", "two", "three"]
    assert main(["logs", "nightly-train", "-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["two", "three"]

    def goes_on() -> None:
        nightly.write_log("nightly-train", "four")
        nightly.succeed("nightly-train")

    nightly.script(*[lambda: None] * 20, goes_on)
    assert main(["logs", "nightly-train", "-f", "-n", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == ["three", "four"]


def test_the_report(nightly: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nightly-train", "-o", str(tmp_path / "report.html")]) == 0
    capsys.readouterr()
    assert main(["report", "nightly-train"]) == 0
    assert capsys.readouterr().out == (tmp_path / "report.html").read_text()
    assert main(["report", "nightly-train", "-o", str(tmp_path)]) == 1
    assert "IsADirectoryError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["unheard-of"],
        ["runs", "--phase", "odd"],
        ["logs", "x", "-n", "0"],
        ["notice", "x", "w", "--seconds", "nan"],
    ],
)
def test_wrong_words(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Of this machine's runs, with one that trains."""
    (root := tmp_path / "runs").mkdir(mode=0o700)
    (root / "script").write_text("train")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    python.chmod(0o700)
    cluster = LocalCluster(root, str(python), poll=0.01)
    ref = claim(cluster, "nightly-train")
    yield root
    (root / "finish").touch()
    run(cluster.delete(ref, OWNER.text()))


SLOW_START = pytest.mark.timeout(300)
"""Airflow's import takes each process three seconds of a core, which on a busy machine are twenty."""
PROGRAM = (
    "import faulthandler, sys\n"
    "faulthandler.dump_traceback_later(200, exit=True)\n"  # One that does not end says where it stands, and ends.
    "from elastic_training.console.command.main import main\n"
    "sys.exit(main())\n"
)


def variables(root: Path) -> dict[str, str]:
    """With a home of Airflow's that has never seen it, and output as it is outside of a container."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {
        "AIRFLOW_HOME": str(root.parent / "home"),
        "AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT": str(root),
    }


def command(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As from a shell."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env=variables(root),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@SLOW_START
def test_as_a_process_on_a_folder_without_a_database(folder: Path) -> None:
    listed = command(folder, "runs")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines()[1].split()[:2] == ["nightly-train", "local"]
    scaled = command(folder, "scale", "night", "3")
    assert (scaled.returncode, scaled.stderr) == (0, "")
    assert RunDir(folder / "nightly-train").read_size() == 3
    missing = command(folder, "show", "weekly")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"elastic-training: {NO_RUN}\n"
    assert not (folder.parent / "home" / "airflow.db").exists()


@SLOW_START
@pytest.mark.parametrize("ended_by", ["Ctrl-C", "the reader"])
def test_the_end_of_a_followed_log_is_quiet(folder: Path, ended_by: str) -> None:
    words = [sys.executable, "-c", PROGRAM, "logs", "nightly-train", "-f"]
    with subprocess.Popen(words, env=variables(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == b"ready True\n"
        if ended_by == "Ctrl-C":
            follower.send_signal(signal.SIGINT)
        else:
            follower.stdout.close()
            with RunDir(folder / "nightly-train").log.open("a") as written:
                written.write("more\n")
        assert follower.stderr.read() == b""
        assert follower.wait(20) == (130 if ended_by == "Ctrl-C" else 1)


SLOW = (
    "import signal, sys\n"
    "class Slow:\n"
    "    def find_spec(self, name, *_):\n"
    "        if name == 'airflow':\n"
    "            print('airflow is imported', flush=True)\n"
    "            signal.pause()\n"
    "sys.meta_path.insert(0, Slow())\n"
)


@SLOW_START
def test_ctrl_c_while_airflow_is_imported_is_quiet(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SLOW + PROGRAM, "runs"]
    with subprocess.Popen(words, env=variables(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as begun:
        assert begun.stdout is not None
        assert begun.stderr is not None
        assert begun.stdout.readline() == b"airflow is imported\n"
        begun.send_signal(signal.SIGINT)
        assert begun.stderr.read() == b""
        assert begun.wait(20) == 130
