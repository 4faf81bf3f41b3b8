"""The check for leaks finds each kind of them, and nothing where nothing is left."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import leaks


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE", 0.2)


@pytest.fixture
def before() -> Iterator[leaks.Holdings]:
    yield leaks.holdings()
    # What the tests below leave on purpose is not to be found again by the check that they themselves run under.
    leaks.holdings()


def test_nothing_is_found_where_nothing_is_left(before: leaks.Holdings, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"), socket.socket():
        pass
    subprocess.run(["true"], check=True)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    asyncio.run(asyncio.sleep(0))

    assert leaks.left_behind(before, tmp_path) == []


def test_a_child_is_found_and_ended(before: leaks.Holdings, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert leaks.left_behind(before, tmp_path) == [f"process {child.pid}: sleep 60"]
        assert not psutil.pid_exists(child.pid)


def test_a_grandchild_that_left_the_session_is_found_and_ended(before: leaks.Holdings, tmp_path: Path) -> None:
    command = ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())

    (found,) = leaks.left_behind(before, tmp_path)

    assert found.startswith(f"process {pid}")
    assert not psutil.pid_exists(pid)


def test_what_a_process_of_before_starts_is_its_own(tmp_path: Path) -> None:
    command = ["sh", "-c", "read line; sleep 60 & echo $!; wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as older:
        assert older.stdin is not None
        assert older.stdout is not None
        before = leaks.holdings()
        older.stdin.write("go\n")
        older.stdin.flush()
        child = psutil.Process(int(older.stdout.readline()))
        try:
            assert leaks.left_behind(before, tmp_path) == []
            assert child.is_running()
        finally:
            older.kill()
            child.kill()


def test_a_thread_is_found(before: leaks.Holdings, tmp_path: Path) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left")
    thread.start()
    try:
        assert leaks.left_behind(before, tmp_path) == ["thread left"]
    finally:
        end.set()
        thread.join()


def test_a_daemon_thread_is_let_be(before: leaks.Holdings, tmp_path: Path) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    try:
        assert leaks.left_behind(before, tmp_path) == []
    finally:
        end.set()
        thread.join()


def test_a_task_that_the_loop_had_to_cancel_is_found(before: leaks.Holdings, tmp_path: Path) -> None:
    async def main() -> asyncio.Task[None]:
        return asyncio.create_task(asyncio.sleep(60), name="left")

    task = asyncio.run(main())

    (found,) = leaks.left_behind(before, tmp_path)
    assert found.startswith("asyncio task left:")
    assert task.cancelled()


def test_an_open_file_is_found(before: leaks.Holdings, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as stream:
        assert leaks.left_behind(before, tmp_path) == [f"descriptor {stream.fileno()}: {tmp_path}/file"]


def test_a_file_elsewhere_is_let_be(before: leaks.Holdings, tmp_path: Path) -> None:
    with open(__file__):
        assert leaks.left_behind(before, tmp_path) == []


def test_an_open_socket_is_found(before: leaks.Holdings, tmp_path: Path) -> None:
    with socket.socket() as open_one:
        (found,) = leaks.left_behind(before, tmp_path)
        assert found.startswith(f"descriptor {open_one.fileno()}: socket:")


def test_a_descriptor_that_children_would_inherit_from_now_on_is_found(tmp_path: Path) -> None:
    with socket.socket() as older:
        before = leaks.holdings()
        older.set_inheritable(True)
        (found,) = leaks.left_behind(before, tmp_path)
        assert found.startswith(f"descriptor {older.fileno()}: socket:")
