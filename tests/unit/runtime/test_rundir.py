"""The run's folder on this machine."""

from __future__ import annotations

import fcntl
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from elastic_runtime.documents import from_json
from elastic_runtime.errors import InvalidDocument, RunNotFound
from elastic_runtime.run.headline import headline
from elastic_runtime.run.rundir import LauncherProcess, ReclaimNotice, RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status

SPEC = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3))
NOON = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "run")
    made.create(SPEC, "me")
    return made


def test_is_laid_down(run: RunDir) -> None:
    assert run.exists()
    assert (run.read_spec(), run.read_owner(), run.read_size()) == (SPEC, "me", 2)
    assert (run.read_status(), run.launcher_alive(), run.cancel.exists()) == (None, False, False)
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    with pytest.raises(FileExistsError):
        run.create(SPEC, "another")


def test_is_shared(run: RunDir) -> None:
    status = Status("run", "uid", Phase.RUNNING, "all is well", NOON)
    run.write_status(status)
    run.write_size(3)
    run.write_owner("another")
    run.write_notice("worker-0", ReclaimNotice("aws", NOON))
    assert (run.read_status(), run.read_size(), run.read_owner()) == (status, 3, "another")
    assert run.read_headline() == headline(status)
    assert from_json(ReclaimNotice, (run.notices / "worker-0.json").read_text()) == ReclaimNotice("aws", NOON)


def test_the_first_who_asks_for_the_end_says_why(run: RunDir) -> None:
    run.ask_to_end("enough")
    run.ask_to_end("really")
    assert run.cancel.read_text() == "enough"


def test_what_is_not_there(tmp_path: Path) -> None:
    nothing = RunDir(tmp_path / "nothing")
    for read in (
        *(nothing.read_spec, nothing.read_owner, nothing.read_size),
        *(nothing.read_status, nothing.read_headline, nothing.read_launcher),
    ):
        with pytest.raises(RunNotFound, match="does not exist"):
            read()
    assert not nothing.exists()
    assert not nothing.launcher_alive()
    nothing.ask_to_end("it is not there")
    assert not nothing.path.exists()


def test_what_is_not_a_size(run: RunDir) -> None:
    (run.path / "size").write_text("many")
    with pytest.raises(InvalidDocument, match="'many', not a number"):
        run.read_size()


def test_the_launcher_lives_as_long_as_it_holds_the_lock(run: RunDir) -> None:
    with run.lock.open("a") as lock:
        assert not run.launcher_alive()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run.launcher_alive()
        assert run.launcher_alive()
    assert not run.launcher_alive()


def test_a_process_is_known_by_its_start_too(run: RunDir) -> None:
    own = LauncherProcess.of(os.getpid())
    ticks = os.sysconf("SC_CLK_TCK")
    assert abs(own.started / ticks + psutil.boot_time() - psutil.Process().create_time()) < 2
    run.write_launcher(own)
    assert run.read_launcher() == own
