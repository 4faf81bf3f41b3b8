"""The sum that CI ends with counts every test once and never looks like success when it was none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_summary import main

PASSED = '<testcase classname="c" name="passed" />'
FAILED = '<testcase classname="c" name="failed"><failure message="m">text&#10;&#10;there.py:3: Oh</failure></testcase>'
SKIPPED = '<testcase classname="c" name="skipped"><skipped message="m" /></testcase>'

REAL = """
import pytest

@pytest.fixture
def breaks_while_torn_down():
    yield
    assert False

def test_passes(): pass
def test_fails(): assert False
def test_passes_and_breaks(breaks_while_torn_down): pass
def test_fails_and_breaks(breaks_while_torn_down): assert False
"""


def report(folder: Path, name: str, *cases: str) -> None:
    (folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_runs_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "one", PASSED)
    report(tmp_path, "two", PASSED, SKIPPED)

    assert main(str(tmp_path), "0") == 0
    assert last_line(capsys) == "2 passed, 0 failed"


def test_a_failure_fails_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "one", PASSED)
    report(tmp_path, "two", PASSED, FAILED)

    assert main(str(tmp_path), "2") == 1
    assert capsys.readouterr().out.splitlines() == [
        "failure of two: failed",
        "    there.py:3: Oh",
        "    m",
        "one: 1 passed, 0 failed, 0 skipped",
        "two: 1 passed, 1 failed, 0 skipped",
        "2 passed, 1 failed",
    ]


def test_of_a_long_failure_the_beginning_and_the_end_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {number}" for number in range(100)]
    report(tmp_path, "one", FAILED.replace('"m"', f'"{"&#10;".join(lines)}"'))

    main(str(tmp_path), "2")

    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[2:-2] == [*lines[:6], "…", *lines[-6:]]


@pytest.mark.parametrize("status", ["2", "124"])
def test_a_failure_outside_of_tests_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str) -> None:
    report(tmp_path, "one", PASSED)

    assert main(str(tmp_path), status) == 1
    assert last_line(capsys) == "1 passed, 1 failed"


def test_no_report_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(str(tmp_path), "0") == 1
    assert last_line(capsys) == "0 passed, 1 failed"


def test_a_report_of_pytest_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_real.py").write_text(REAL)
    (tmp_path / "test_unreadable.py").write_text("import nowhere_to_be_found")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "--junitxml=real.xml"]
    subprocess.run(
        [*command, "--continue-on-collection-errors", "test_real.py", "test_unreadable.py"],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        check=False,
    )

    assert main(str(tmp_path), "2") == 1
    assert last_line(capsys) == "1 passed, 4 failed"
