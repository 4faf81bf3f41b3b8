"""docs/extending.md shows files that tests run, and names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_training.clusters.place import PolledPlace

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/extending.md").read_text()
BLOCKS = re.findall(r"^`([^`\n]+)`\n\n```\w*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_entry_points_of_both_examples_are_shown() -> None:
    assert [Path(path).name for path, _ in BLOCKS] == ["entry_points.txt", "entry_points.txt"]


@pytest.mark.parametrize(("path", "block"), BLOCKS, ids=[path for path, _ in BLOCKS])
def test_what_is_shown_is_the_file(path: str, block: str) -> None:
    assert block == (ROOT / path).read_text()


def test_every_file_of_the_examples_is_linked() -> None:
    linked = set(re.findall(r"\]\(\.\./(tests/[^)]+\.py)\)", PAGE))
    examples = ("tests/engines/distribution/hub_engine", "tests/contract/distribution/sqlite_place")
    files = {str(file.relative_to(ROOT)) for folder in examples for file in (ROOT / folder).glob("*.py")}
    assert files <= linked


def test_the_methods_of_a_place_are_there() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", section("Your own place"), re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(rows))
    assert len(named) > 10
    assert [name for name in named if not hasattr(PolledPlace, name)] == []


def test_the_methods_of_a_store_are_there() -> None:
    optional = re.findall(r"`(\w+)`(?=[^\n]* (?:is|are) for )", section("Your own checkpoint store"))
    assert {"join", "write_file", "ages"} <= set(optional)
    assert [name for name in optional if not hasattr(CheckpointStore, name)] == []
