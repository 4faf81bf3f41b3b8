"""A run whose names, log and words were chosen to reach into the terminal of who looks at it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import EventKind
from elastic_runtime.run.status_failure import FirstFailure
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.console.command import log
from elastic_training.console.command.main import main
from elastic_training.identity.ownership import Owner

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp\nrun forged: succeeded"
"""Sets a window's title, clears the screen, begins the line anew, turns text around, forges a line."""
NAME = "hostile"


@pytest.fixture
def hostile(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(log, "_BEAT", 0.05)
    owner = Owner(EVIL, EVIL, EVIL, -1, 1, "nonce")
    run(fake.claim(RunSpec(name=NAME, uid="1", command=("python",)), owner.text()))
    fake.tell(NAME, EventKind.LOST, EVIL)
    worker = replace(fake.named(NAME).status.workers[0], name=f"w{EVIL}", node=EVIL)
    failure = FirstFailure(0, EVIL, EVIL, 1, 1, datetime.now(UTC), EVIL, traceback=EVIL)
    fake.publish(NAME, reason=EVIL, metrics={EVIL: 1.0}, workers=(worker,), first_failure=failure)
    fake.write_log(NAME, EVIL, "\x1b[31mred")
    return fake


def harmless(text: str) -> bool:
    """Whether nothing but its lines ends."""
    return all(each == "\n" or each.isprintable() for each in text)


@pytest.mark.parametrize(
    "words",
    [["runs"], ["runs", "--json"], ["show", NAME], ["show", NAME, "--json"], ["logs", NAME], ["logs", NAME, "-n", "1"]],
)
def test_nothing_that_moves_a_cursor_is_printed(
    hostile: FakeCluster, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    said = capsys.readouterr()
    assert harmless(said.out + said.err)
    assert not any(line.startswith("run forged") for line in said.out.splitlines())


def test_a_line_stays_a_line(hostile: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", NAME]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        r"\x1b]0;owned\x07\x1b[2J\x0d\x9b31m\u202egnp\x0arun forged: succeeded",
        r"\x1b[31mred",
    ]


def test_what_is_refused_is_told_harmlessly(hostile: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", EVIL], ["notice", NAME, EVIL], ["scale", NAME, EVIL], ["show", NAME, "--place", EVIL]):
        assert main(words) == 1
        said = capsys.readouterr()
        assert harmless(said.out + said.err)
        assert "Traceback" not in said.err


def test_the_question_before_an_end_is_harmless(
    hostile: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", lambda _limit: "\n")
    hostile.publish(NAME, run=EVIL)
    assert main(["end", NAME]) == 1
    assert harmless(capsys.readouterr().err)


def test_a_place_that_breaks_is_no_traceback_and_tells_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeCluster):
        async def list(self) -> Any:
            raise OSError("postgresql://airflow:hunter2@database/airflow does not answer")

    with substituted("local", Broken()):
        assert main(["runs", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["unreachable"][0]["place"] == "local"
    assert "hunter2" not in said.out + said.err
    assert "Traceback" not in said.err
