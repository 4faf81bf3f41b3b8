"""The sum that CI ends with counts every test once and never looks like success when it was none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_summary import main

TOOLS = Path(__file__).resolve().parents[3] / "tools"
MAKEFILE = """
setup good:
	@echo made $@
bad lint-bad: setup
	@exit 3
"""
PASSED = '<testcase classname="c" name="passed" time="1.6" />'
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

RUN = """
from tests.paced import PacedRun, Script

class Unread(PacedRun):
    def look(self): raise OSError("the folder is gone")
    def log(self): return ""
    def is_over(self): return True

def test_earlier(tmp_path): Unread(tmp_path, Script("earlier.py"))
def test_fails(tmp_path):
    Unread(tmp_path, Script("exact.py"))
    print("before")
    assert [2, 1, 0] == [2, 0]
"""


def report(folder: Path, name: str, *cases: str) -> None:
    (folder / f"{name}.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_runs_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "one", PASSED)
    report(tmp_path, "two", PASSED, SKIPPED)

    assert main(str(tmp_path)) == 0
    assert last_line(capsys) == "2 passed, 0 failed"


def test_a_failure_fails_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "one", PASSED)
    report(tmp_path, "two", PASSED, FAILED)

    assert main(str(tmp_path), "test-two") == 1
    assert capsys.readouterr().out.splitlines() == [
        "one: 1 passed, 0 failed, 0 skipped, in 2 s",
        "two: 1 passed, 1 failed, 0 skipped, in 2 s",
        "failure of two: failed",
        "    there.py:3: Oh",
        "    m",
        "make test-two failed",
        "2 passed, 1 failed",
    ]


def test_all_that_failed_are_named_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "one", FAILED)
    report(tmp_path, "two", PASSED, FAILED.replace('"failed"', '"another"'))

    assert main(str(tmp_path), "test-one", "test-two") == 1
    assert capsys.readouterr().out.splitlines()[-6:] == [
        "All that failed:",
        "failure of one: failed, there.py:3: Oh",
        "failure of two: another, there.py:3: Oh",
        "make test-one failed",
        "make test-two failed",
        "1 passed, 2 failed",
    ]


def test_of_a_long_failure_the_beginning_and_the_end_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"line {number}" for number in range(100)]
    report(tmp_path, "one", FAILED.replace('"m"', f'"{"&#10;".join(lines)}"'))

    main(str(tmp_path))

    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[3:-1] == [*lines[:6], "…", *lines[-6:]]


def test_a_failed_test_tells_what_became_of_its_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_run.py").write_text(RUN)
    root = TOOLS.parent
    command = [sys.executable, "-m", "pytest", f"--config-file={root / 'pyproject.toml'}", f"--rootdir={tmp_path}",
               "-p", "tests.conftest", "-p", "no:cacheprovider", "--junitxml=run.xml", "test_run.py"]  # fmt: skip
    subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(root)}, cwd=tmp_path, stdout=subprocess.DEVNULL, check=False
    )

    assert main(str(tmp_path)) == 1
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[1] == "failure of run: test_fails"
    assert said[-3:-1] == ["before", "exact.py: cannot be read any more: OSError('the folder is gone')"]
    assert said[-1] == "1 passed, 1 failed"


def test_a_failure_outside_of_tests_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(tmp_path, "one", PASSED)
    report(tmp_path, "two-half", PASSED, FAILED)

    assert main(str(tmp_path), "lint", "test-one", "test-two") == 1
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "make lint failed, though no test did: see above. Counted as a failure.",
        "make test-one failed, though no test did: see above. Counted as a failure.",
        "make test-two failed",
        "2 passed, 3 failed",
    ]


def test_every_part_is_made_whatever_fails(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    for name in ("test-parts", "test_summary.py"):
        shutil.copy(TOOLS / name, tmp_path / "tools")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    done = subprocess.run(
        [tmp_path / "tools" / "test-parts", "60", "bad", "good", "lint-bad"],
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    said = [line for line in done.stdout.splitlines() if line.startswith(("made", "make "))]
    words = "failed, though no test did: see above. Counted as a failure."
    assert said == ["made setup", "made good", f"make bad {words}", f"make lint-bad {words}"]
    assert done.stdout.splitlines()[-1] == "0 passed, 2 failed"


def test_no_report_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(str(tmp_path)) == 1
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

    assert main(str(tmp_path)) == 1
    assert last_line(capsys) == "1 passed, 4 failed"
