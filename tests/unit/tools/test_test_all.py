"""``make test-all``: goes on where it was stopped, and stops at no failure."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from test_all import Outcome, all_of, made


class Made:
    """Makes nothing, and keeps what it would have made."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.targets = failing, list[str]()

    def __call__(self, folder: Path, target: str, of: str) -> Outcome:
        self.targets.append(target)
        outcome = Outcome(target, of, target not in self.failing, 1.0)
        (folder / f"{target}.json").write_text(json.dumps(asdict(outcome)))
        return outcome


def test_what_passed_on_the_same_files_is_not_made_again(tmp_path: Path) -> None:
    first, second, third = Made("b"), Made(), Made()
    assert [each.passed for each in all_of(["a", "b", "c"], "x", tmp_path, first)] == [True, False, True]
    assert first.targets == ["a", "b", "c"]
    assert all(each.passed for each in all_of(["a", "b", "c"], "x", tmp_path, second))
    assert second.targets == ["b"]
    all_of(["a", "b", "c"], "other files", tmp_path, third)
    assert third.targets == ["a", "b", "c"]


def test_a_torn_record_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"target": "a", "pas')
    again = Made()
    all_of(["a"], "x", tmp_path, again)
    assert again.targets == ["a"]


def test_the_report_names_failures_and_what_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "make"
    script.write_text("#!/bin/sh\necho 'LEFT OUT: pods: no cluster'\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setenv("MAKE", str(script))
    outcome = made(tmp_path, "test-pods", "x")
    assert not outcome.passed
    assert "FAILED" in str(outcome)
    assert "left out: pods: no cluster" in str(outcome)


def test_a_target_is_made_with_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "make"
    script.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    script.chmod(0o755)
    monkeypatch.setenv("MAKE", str(script))
    target = "test-cells PLACE=slurm"
    assert made(tmp_path, target, "x").passed
    assert (tmp_path / "test-cells-PLACE=slurm.log").read_text().split() == ["--no-print-directory", *target.split()]
    again = Made()
    assert [each.target for each in all_of([target], "x", tmp_path, again)] == [target]
    assert not again.targets
