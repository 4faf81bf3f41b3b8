"""All benchmarks in one go: what is done is not done again, what failed or was left out is said; and the page."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import everything
from benchmarks.harness.sections import Section, read_measures
from benchmarks.plots import page
from tests.documented import ROOT


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, int]:
    """Exit status of each benchmark that is not played with success, by its script; those that ran are added."""
    statuses: dict[str, int] = {}

    def run(command: list[str], **_: object) -> SimpleNamespace:
        if command[0] == "git":
            return SimpleNamespace(stdout="code" if "log" in command else "")
        script = Path(command[1]).name
        return SimpleNamespace(returncode=statuses.setdefault(script, 0))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(everything, "STATE", tmp_path / "build" / "everything.json")
    monkeypatch.setattr(everything, "write_page", lambda _: None)
    return statuses


def test_each_section_has_one_benchmark() -> None:
    sections = [each.section for each in everything.BENCHMARKS]
    assert set(sections) == set(Section) - {Section.GPU}, "which needs a GPU, and says so in its section"
    assert len(set(sections)) == len(sections)
    for each in everything.BENCHMARKS:
        assert (ROOT / "benchmarks" / each.command[1]).is_file()


def test_what_is_done_is_not_done_again(ended: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    ended["run.py"] = 1
    assert everything.main([]) == 1
    assert "Not measured on this code: launcher" in capsys.readouterr().out
    ended.clear()
    assert everything.main([]) == 0
    assert list(ended) == ["run.py"]


def test_other_code_is_measured_anew(ended: dict[str, int]) -> None:
    assert everything.main([]) == 0
    kept = json.loads(everything.STATE.read_text())
    everything.STATE.write_text(json.dumps(kept | {"code": "other"}))
    ended.clear()
    assert everything.main([]) == 0
    assert len(ended) == len(everything.BENCHMARKS)


def test_what_this_machine_cannot_run_is_left_out_and_said(
    ended: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    ended["deferred_runs.py"] = everything.LEFT_OUT
    assert everything.main(["--only", "deferred_runs"]) == 1
    told = capsys.readouterr().out
    assert re.search(r"^deferred_runs +left out ", told, re.MULTILINE)
    assert "Not measured on this code: deferred_runs. Their sections are as they were." in told


def test_the_page_shows_what_was_measured_last() -> None:
    folder = ROOT / "benchmarks"
    assert (folder / page.PAGE).read_text() == page.page(folder), "run benchmarks/everything.py, which draws it"
    assert all(each["title"] for each in read_measures(folder).values() if each["section"] in ("launcher", "torch"))


def test_no_title_ends_the_script(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"one": {"section": "torch", "title": "</script><b>"}}))
    assert page.page(tmp_path).count("</script>") == 1
