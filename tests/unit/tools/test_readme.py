"""README.md is short, and its figures are those of benchmarks/RESULTS.md."""

from __future__ import annotations

import re

import pytest

from tests.documented import ROOT

README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "benchmarks/RESULTS.md").read_text()
MOST_WORDS = 500
ROWS = {
    "Horovod: add a third worker": ("launcher", "Scale-out 2→3"),
    "Horovod: a rank is killed": ("launcher", "SIGKILL of one rank of 3 → next step"),
    "torch: a worker leaves": ("torch", "Planned leave 3→2: pause"),
    "torch: a rank is killed": ("torch", "SIGKILL of one rank of 3 → next step"),
}
"""By the beginning of a row, the section of the results and the beginning of the row there."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def cells(text: str, beginning: str) -> list[str]:
    """Of the first row that begins so."""
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {beginning}")][:1]
    return row.strip("| ").split(" | ")


def section(name: str) -> str:
    return RESULTS.partition(f"<!-- begin {name} -->")[2].partition("<!-- end")[0]


def test_it_is_read_in_two_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS
    assert README.count("![") == 1


@pytest.mark.parametrize("row", ROWS)
def test_a_figure_is_the_measured_one(row: str) -> None:
    name, beginning = ROWS[row]
    _, here, peer = cells(README, row)
    _, ours, theirs, *_ = cells(section(name), beginning)
    assert NUMBER.findall(here) == [ours.split()[0]]
    shown = NUMBER.findall(peer)
    assert shown in ([theirs.split()[0]], NUMBER.findall(theirs)[1:]), "the median, or both quartiles"


def test_every_row_is_held_against_the_results() -> None:
    assert len(re.findall(r"^\| (?:Horovod|torch): ", README, re.MULTILINE)) == len(ROWS)


def test_what_is_slower_is_said_with_its_figure() -> None:
    said = r"torch reaches (\S+) of `torchrun`'s throughput at 10 million parameters, (\S+) at 0.1"
    (shown,) = re.findall(said, README)
    measured = [cells(section("torch"), f"{size} M parameters: throughput")[3].split()[0] for size in ("10", "0.1")]
    assert measured == list(shown)
