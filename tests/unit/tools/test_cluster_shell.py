"""Commands that fail say why, and none goes on after its step was given up."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import psutil
import pytest

from cluster_kit import shell
from cluster_kit.errors import ClusterError
from cluster_kit.shell import Progress, newest_line, run, succeeds, wait_until


def test_what_a_command_says_is_returned() -> None:
    assert run("cat", text="words") == "words"
    assert run("cat", stdin=Path("/dev/null")) == ""


@pytest.mark.parametrize(
    ("command", "seconds", "words"),
    [
        (["no-such-program"], 30.0, "no-such-program is not installed"),
        (["sh", "-c", "echo why >&2; exit 3"], 30.0, "status 3: why"),
        (["sleep", "60"], 0.2, "sleep did not end within 0 s"),
    ],
)
def test_a_command_that_fails_says_why(command: list[str], seconds: float, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        run(*command, seconds=seconds)
    assert not succeeds(*command, seconds=seconds)


def test_what_does_not_come_is_named() -> None:
    with pytest.raises(ClusterError, match="waited 0 s in vain for the moon"):
        wait_until(lambda: False, "the moon", 0.05, every=0.01)


def test_a_step_that_fails_shows_the_end_of_its_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClusterError, match=r"(?s)building: status 2; .*log\nthe cause"):
        Progress().step("building", ["sh", "-c", "echo the cause; exit 2"], tmp_path / "log")

    assert "building" in capsys.readouterr().err


def test_a_step_says_how_far_it_is_and_what_is_no_news(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "PROGRESS_SECONDS", 0.01)
    news = iter(["1 of 2 packages", "1 of 2 packages"])
    go_on = tmp_path / "go-on"

    def how_far(_: Path) -> str:
        text = next(news, None)
        if text is None:
            go_on.touch()
        return text or "2 of 2 packages"

    waiting = ["sh", "-c", 'until [ -e "$0" ]; do sleep 0.01; done', str(go_on)]
    Progress().step("building", waiting, tmp_path / "log", how_far=how_far)

    said = [line.partition(" s ")[2].strip() for line in capsys.readouterr().err.splitlines()]
    assert said[1:4] == ["1 of 2 packages", "still: 1 of 2 packages", "2 of 2 packages"]


@pytest.mark.parametrize(
    ("lines", "newest"),
    [("", ""), ("one\ntwo\n", "two"), ("[ 40%] half\nmore\n", "[ 40%] half")],
)
def test_the_newest_line_says_most(tmp_path: Path, lines: str, newest: str) -> None:
    (tmp_path / "log").write_text(lines)
    assert newest_line(tmp_path / "log") == newest


@pytest.mark.timeout(180)
def test_ctrl_c_ends_a_step_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def interrupt() -> None:
        wait_until(lambda: log.exists() and log.read_text() == "started\n", "the child", 60.0, every=0.02)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Progress().step("building", ["sh", "-c", "sleep 60 & echo started; wait"], log)
    thread.join()

    def gone() -> bool:
        children = psutil.Process().children(recursive=True)
        return all(each.status() == psutil.STATUS_ZOMBIE for each in children)

    wait_until(gone, "the end of what was killed", 60.0, every=0.02)
