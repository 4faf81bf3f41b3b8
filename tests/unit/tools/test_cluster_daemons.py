"""The lab's daemons outlive what started them, and nobody else's process is ever signalled."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster_kit.debian.daemons import Daemons
from cluster_kit.errors import ClusterError
from cluster_kit.shell import wait_until


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    daemons = Daemons(tmp_path)
    yield daemons
    for name in daemons.names():
        daemons.stop(name, grace=0.0)
    for zombie in psutil.Process().children():
        zombie.wait()


def test_a_daemon_is_found_again_by_another_program_and_ends_when_told(daemons: Daemons, tmp_path: Path) -> None:
    daemons.start("sleeper", ["sleep", "60"])
    another = Daemons(tmp_path)

    assert another.names() == ["sleeper"]
    assert another.runs("sleeper")
    pid = another.pid("sleeper")
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)
    another.stop("sleeper", grace=5.0)
    assert not daemons.runs("sleeper")
    assert daemons.names() == []


def test_a_daemon_that_runs_is_not_started_twice(daemons: Daemons) -> None:
    daemons.start("sleeper", ["sleep", "60"])
    pid = daemons.pid("sleeper")

    daemons.start("sleeper", ["sleep", "60"])

    assert daemons.pid("sleeper") == pid


def test_a_daemon_holds_nothing_that_its_starter_was_given(daemons: Daemons, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        daemons.start("sleeper", ["sleep", "60"])
        pid = daemons.pid("sleeper")
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "sleep", 10.0, every=0.02)

        # The dynamic loader of sleep has files open for a moment; the lock would be open for as long as sleep runs.
        wait_until(
            lambda: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"], "nothing but 0, 1, 2", 10.0, every=0.02
        )


def test_one_that_ignores_sigterm_is_killed(daemons: Daemons) -> None:
    daemons.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    wait_until(lambda: daemons.log("stubborn").read_text() == "ready\n", "the shell", 10.0, every=0.02)

    daemons.stop("stubborn", grace=0.1)

    assert not daemons.runs("stubborn")


def test_another_process_with_the_same_id_is_left_alone(daemons: Daemons, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (tmp_path / "pid").mkdir()
        (tmp_path / "pid" / "gone").write_text(json.dumps({"pid": stranger.pid, "started": "1"}))

        assert not daemons.runs("gone")
        daemons.stop("gone", grace=1.0)

        assert stranger.poll() is None
        stranger.kill()


def test_one_that_has_ended_is_reported_with_its_last_words(daemons: Daemons) -> None:
    daemons.start("broken", ["sh", "-c", "echo no such flag >&2; exit 1"])
    wait_until(lambda: not daemons.runs("broken"), "its end", 10.0, every=0.02)

    with pytest.raises(ClusterError, match=r"broken has ended.*\nno such flag"):
        daemons.check("broken")
