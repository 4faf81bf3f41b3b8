"""The files that several benchmarks write to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.harness.sections import Section, read_measures, write_section


def page(folder: Path) -> str:
    return (folder / "RESULTS.md").read_text()


class TestSections:
    def test_a_section_replaces_itself_and_leaves_the_others_alone(self, tmp_path: Path) -> None:
        write_section(tmp_path, Section.LAUNCHER, ["## Launcher", "", "| old |"], {"start": {"ours": 1}, "kill": {}})
        write_section(tmp_path, Section.TRACES, ["## Traces"], {"goodput": {"ours": 0.96}})
        write_section(tmp_path, Section.LAUNCHER, ["## Launcher", "", "| new |"], {"start": {"ours": 2}})
        assert read_measures(tmp_path) == {
            "start": {"section": "launcher", "ours": 2},
            "goodput": {"section": "traces", "ours": 0.96},
        }
        assert "| new |" in page(tmp_path)
        assert "| old |" not in page(tmp_path)
        assert "## Traces" in page(tmp_path)

    def test_their_order_is_the_same_whoever_came_first(self, tmp_path: Path) -> None:
        texts = {section: ([f"## {section}"], {f"of_{section}": {}}) for section in Section}
        for section in Section:
            write_section(tmp_path / "a", section, *texts[section])
        for section in reversed(Section):
            write_section(tmp_path / "b", section, *texts[section])
        assert page(tmp_path / "a") == page(tmp_path / "b")
        assert list(read_measures(tmp_path / "a")) == list(read_measures(tmp_path / "b"))

    def test_writing_the_same_again_changes_nothing(self, tmp_path: Path) -> None:
        for _ in range(2):
            write_section(tmp_path, Section.TRACES, ["## Traces", "", "text", ""], {"goodput": {"ours": 1}})
            before = page(tmp_path), json.loads((tmp_path / "results.json").read_text())
        write_section(tmp_path, Section.TRACES, ["## Traces", "", "text", ""], {"goodput": {"ours": 1}})
        assert (page(tmp_path), read_measures(tmp_path)) == before

    def test_no_two_sections_measure_under_one_name(self, tmp_path: Path) -> None:
        write_section(tmp_path, Section.LAUNCHER, ["## Launcher"], {"start": {}})
        with pytest.raises(ValueError, match=r"start.*launcher"):
            write_section(tmp_path, Section.TRACES, ["## Traces"], {"start": {}})
        assert "## Traces" not in page(tmp_path)
