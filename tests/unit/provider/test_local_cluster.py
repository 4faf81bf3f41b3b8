"""What is particular to the local cluster; what it has in common with the others is in the contract suite.

The launcher is a stub, a real process that starts in a moment and does as it is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import ClusterUnavailable, FailureKind, InvalidSettings, RunNotFound
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.claims import Times
from elastic_training.clusters.folder import read_lines
from elastic_training.clusters.local import TIMES, LocalCluster
from elastic_training.clusters.local_python import ALWAYS, check_python, modules_of
from elastic_training.clusters.types import LOG_START, ClaimOutcome, LogLines, RunRef, StatusChanged, Update
from elastic_training.concurrency.bridge import run

STUB = Path(__file__).with_name("stub_launcher.py")
OWNER = "try 1"
WATCH_TIMEOUT = 20.0
QUICK = replace(TIMES, delete=10.0, delete_order=0.3)


class Bench:
    """A local cluster whose launcher is the stub."""

    def __init__(self, folder: Path, times: Times = TIMES) -> None:
        self.root = folder / "runs"
        self.root.mkdir(mode=0o700)
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
        python.chmod(0o700)
        self.cluster = LocalCluster(self.root, str(python), times, poll=0.01)
        self.play("train")

    def play(self, script: str) -> None:
        """What the next launcher does."""
        (self.root / "script").write_text(script)

    def claim(self, uid: str = "1") -> RunRef:
        return run(self.cluster.claim(RunSpec(name="run", uid=uid, command=("python",)), OWNER)).ref

    @property
    def folder(self) -> RunDir:
        return RunDir(self.root / "run")

    def updates(self, ref: RunRef, enough: Callable[[Update], bool]) -> list[Update]:
        """Up to the one that is enough."""

        async def collect() -> list[Update]:
            found: list[Update] = []
            async with asyncio.timeout(WATCH_TIMEOUT), aclosing(self.cluster.watch(ref, LOG_START, 1.0)) as updates:
                async for update in updates:
                    found.append(update)
                    if enough(update):
                        break
            return found

        return asyncio.run(collect())

    def until(self, ref: RunRef, phase: Phase) -> Status:
        def there(update: Update) -> bool:
            return isinstance(update, StatusChanged) and update.status.phase is phase

        last = self.updates(ref, there)[-1]
        assert isinstance(last, StatusChanged)
        assert last.status.phase is phase
        return last.status


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, QUICK)
    yield made
    run(made.cluster.delete(run(made.cluster.find("run")), OWNER))
    assert not [path for path in made.root.iterdir() if path.name.startswith((".new", ".trash"))]


def test_the_launcher_has_a_session_of_its_own_and_nothing_of_airflows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SECRET", "postgres://user:password@host/db")
    monkeypatch.setenv("_AIRFLOW_SOMETHING", "1")
    monkeypatch.setenv("PLAIN", "kept")
    ref = bench.claim()
    bench.until(ref, Phase.RUNNING)
    environment = json.loads((bench.folder.path / "environment").read_text())
    assert environment["PLAIN"] == "kept"
    assert not [name for name in environment if "AIRFLOW" in name]
    assert "ready True" in bench.folder.log.read_text()


def test_a_launcher_that_is_slow_to_take_its_lock_is_not_lost(bench: Bench) -> None:
    bench.play("linger before the lock")
    ref = bench.claim()
    assert run(bench.cluster.status(ref)).phase is Phase.PENDING
    assert (
        run(bench.cluster.claim(RunSpec(name="run", uid="2", command=("python",)), OWNER)).outcome
        is ClaimOutcome.ADOPTED
    )
    (bench.root / "go").touch()
    bench.until(ref, Phase.RUNNING)


def test_a_launcher_that_dies_before_its_lock_is_lost_with_its_last_line(bench: Bench) -> None:
    bench.play("die before the lock")
    status = bench.until(bench.claim(), Phase.FAILED)
    assert status.failure is FailureKind.LAUNCHER_LOST
    assert "No module named" in status.reason


def test_a_killed_launcher_is_lost_and_its_log_is_told_to_the_end(bench: Bench) -> None:
    ref = bench.claim()
    bench.until(ref, Phase.RUNNING)
    os.kill(bench.folder.read_launcher().pid, signal.SIGKILL)
    assert bench.until(ref, Phase.FAILED).failure is FailureKind.LAUNCHER_LOST


def test_a_last_line_without_an_end_is_told_before_the_final_status(bench: Bench) -> None:
    ref = bench.claim()
    (bench.root / "finish").touch()
    *before, last = bench.updates(ref, lambda _: False)
    lines = [line for update in before if isinstance(update, LogLines) for line in update.lines]
    assert lines == ["ready True", "last line, without an end"]
    assert isinstance(last, StatusChanged)
    assert last.status.phase is Phase.SUCCEEDED


def test_deleting_a_run_whose_launcher_hangs_kills_it(bench: Bench) -> None:
    bench.play("ignore the end")
    ref = bench.claim()
    bench.until(ref, Phase.RUNNING)
    pid = bench.folder.read_launcher().pid
    run(bench.cluster.delete(ref, OWNER))
    with pytest.raises(RunNotFound):
        run(bench.cluster.find("run"))
    bench.play("train")
    bench.claim("2")  # Reaps, too.
    assert not Path(f"/proc/{pid}").exists()


def test_a_run_that_does_not_end_is_not_replaced(tmp_path: Path) -> None:
    hanging = Bench(tmp_path, replace(QUICK, claim=0.2))
    hanging.play("ignore the end")
    ref = hanging.claim()
    hanging.until(ref, Phase.RUNNING)
    with pytest.raises(ClusterUnavailable, match="has not ended"):
        run(hanging.cluster.claim(RunSpec(name="run", uid="2", command=("python",)), OWNER, fresh=True))
    assert run(hanging.cluster.find("run")) == ref
    run(hanging.cluster.delete(ref, OWNER))


def test_a_creator_that_died_before_it_started_the_launcher_is_replaced_by_the_next_claim(bench: Bench) -> None:
    bench.folder.create(RunSpec(name="run", uid="1", command=("python",)), OWNER)
    ref = run(bench.cluster.find("run"))
    assert run(bench.cluster.status(ref)).phase is Phase.PENDING
    old = bench.folder.path / "spec.json"
    os.utime(old, (0, 0))
    assert run(bench.cluster.status(ref)).failure is FailureKind.LAUNCHER_LOST
    os.utime(old)
    claim = run(bench.cluster.claim(RunSpec(name="run", uid="2", command=("python",)), OWNER))
    assert claim.outcome is ClaimOutcome.CREATED  # Nothing of the other one has ever run.


def test_an_interpreter_that_is_not_there_is_named_and_nothing_stays(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "runs", str(tmp_path / "no-python"))
    with pytest.raises(InvalidSettings, match="local_python"):
        run(cluster.claim(RunSpec(name="run", uid="1", command=("python",)), OWNER))
    with pytest.raises(RunNotFound):
        run(cluster.find("run"))


def test_the_root_is_private_or_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert stat.S_IMODE((bench.root).stat().st_mode) == 0o700
    bench.root.chmod(0o777)
    with pytest.raises(InvalidSettings, match="local_root"):
        bench.claim()


def test_a_link_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    cluster = LocalCluster(tmp_path / "runs", sys.executable)
    with pytest.raises(InvalidSettings, match="local_root"):
        run(cluster.claim(RunSpec(name="run", uid="1", command=("python",)), OWNER))


class TestReadingTheLog:
    def test_a_line_that_is_being_written_is_held_back(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes("one\r\nzwei: ü\nthr".encode())
        lines, offset = read_lines(log, 0, to_the_end=False)
        assert lines == ("one", "zwei: ü")
        assert read_lines(log, offset, to_the_end=False) == ((), offset)
        assert read_lines(log, offset, to_the_end=True) == (("thr",), log.stat().st_size)

    def test_empty_lines_stay(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text("\na\n\n")
        assert read_lines(log, 0, to_the_end=True)[0] == ("", "a", "")

    def test_a_line_without_end_is_cut_rather_than_held_for_ever(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"x" * 600_000)
        lines, offset = read_lines(log, 0, to_the_end=False)
        assert (len(lines), offset) == (1, 256 * 1024)

    def test_what_is_no_utf8_is_told_all_the_same(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"\xff\xfe\n")
        assert len(read_lines(log, 0, to_the_end=False)[0]) == 1

    def test_no_log_has_no_lines(self, tmp_path: Path) -> None:
        assert read_lines(tmp_path / "log", 7, to_the_end=True) == ((), 7)


class TestTheInterpreter:
    """What it lacks is said before there is a run."""

    @staticmethod
    def python(folder: Path, *modules: str) -> str:
        """One that answers that it has these."""
        program = folder / "python"
        program.write_text(f"#!/bin/sh\necho '{json.dumps(modules)}'\n")
        program.chmod(0o700)
        return str(program)

    @pytest.mark.parametrize(
        ("modules", "spec", "words"),
        [
            ((), {}, "has no elastic_runtime, psutil, cryptography, horovod, torch or tensorflow"),
            ((*ALWAYS, "torch"), {}, r"has no horovod\. Install elastic-runtime\[horovod\] there"),
            (("elastic_runtime", "psutil", "torch", "horovod"), {}, "has no cryptography"),
            ((*ALWAYS, "horovod"), {"engine": "torchrun"}, r"has no torch\. Install elastic-runtime\[torch\] there"),
            (
                (*ALWAYS, "torch"),
                {
                    "engine": "torch",
                    "observe": ObserveSpec(tensorboard=True),
                    "checkpoint": CheckpointSpec("file:///c"),
                },
                r"has no tensorboardX\. Install elastic-runtime\[torch\] and tensorboardX there",
            ),
        ],
    )
    def test_that_lacks_something_is_refused_by_name_and_no_run_is_made(
        self, tmp_path: Path, modules: tuple[str, ...], spec: dict[str, Any], words: str
    ) -> None:
        cluster = LocalCluster(tmp_path / "runs", self.python(tmp_path, *modules))
        with pytest.raises(InvalidSettings, match=words) as refused:
            run(cluster.claim(RunSpec("run", "1", ("python",), **spec), OWNER))
        assert refused.value.field == "[elastic_training] local_python"
        assert run(cluster.list()) == []

    @pytest.mark.parametrize("program", ["echo 3.9; exit 1", "echo no JSON"])
    def test_that_is_no_python_is_refused(self, tmp_path: Path, program: str) -> None:
        (tmp_path / "python").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "python").chmod(0o700)
        with pytest.raises(InvalidSettings, match="cannot be started"):
            check_python(str(tmp_path / "python"), RunSpec("run", "1", ("python",)))

    def test_that_does_not_answer_in_time_is_asked_again(self, tmp_path: Path) -> None:
        """An overloaded machine fails no task for good."""
        (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / "python").chmod(0o700)
        with pytest.raises(ClusterUnavailable, match=r"python has not answered in 0\.1 s"):
            modules_of(str(tmp_path / "python"), ("torch",), max_wait=0.1)

    @pytest.mark.parametrize("engine", ["horovod", "torch", "torchrun", "somebody else's"])
    def test_that_has_all_is_good(self, tmp_path: Path, engine: str) -> None:
        check_python(self.python(tmp_path, *ALWAYS, "horovod", "torch"), RunSpec("run", "1", ("true",), engine=engine))


def test_files_that_no_run_has_hide_no_other_run(tmp_path: Path) -> None:
    """A script could write them: local ranks run as the user who asks."""
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    for name in ("cancel", "folder", "good"):
        RunDir(root / name).create(RunSpec(name, name, ("python",)), OWNER)
    (root / "cancel" / "cancel").write_bytes(b"\xff")
    (root / "folder" / "status.json").mkdir()
    listed = {each.ref.name for each in run(LocalCluster(root, sys.executable).list())}
    assert listed == {"cancel", "good"}
