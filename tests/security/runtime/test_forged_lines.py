"""Text from outside that would write lines of its own, colour them, or fold others away."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.printable import CUT, printable

MARKERS = ("::group::", "::endgroup::", "##[group]", "##[endgroup]")
DIRECTIONS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
pieces = st.text(max_size=10) | st.sampled_from(
    [*MARKERS, ":", "::", "group::", "#", "\n", "\r\n", "\x1b[2K", "\x85", "\u2028", "\u202e", "\ud800", "\t", "\\"]
)
texts = st.lists(pieces, max_size=12).map("".join)


@given(text=texts, limit=st.integers(2, 60))
def test_one_line_of_what_can_be_seen_comes_of_anything(text: str, limit: int) -> None:
    line = printable(text, limit)
    assert len(line) <= limit
    assert len((line + "x").splitlines()) == 1
    assert not {unicodedata.category(each) for each in line if each != "\t"} & {"Cc", "Cs", "Zl", "Zp"}
    assert not {unicodedata.bidirectional(each) for each in line} & DIRECTIONS
    assert not any(marker in line.lower() for marker in MARKERS)
    assert line.encode().decode() == line
    assert printable(line, limit) == line


@given(text=st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=60))
def test_what_means_no_more_than_itself_stays(text: str) -> None:
    if not any(marker in text.lower() for marker in MARKERS):
        assert printable(text, 60) == text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("part\n2026-01-01 launcher: succeeded", "part\\x0a2026-01-01 launcher: succeeded"),
        ("\x1b[31mred\x9b0m", "\\x1b[31mred\\x9b0m"),
        ("a\u2028b\u202ec\ud83d", "a\\u2028b\\u202ec\\ud83d"),
        ("x ::group::y ::EndGroup::", "x :\\x3agroup::y :\\x3aEndGroup::"),
        ("##[group]x", "\\x23#[group]x"),
        ("C:\\new\tfolder", "C:\\new\tfolder"),
        ("x" * 500, "x" * 399 + CUT),
    ],
)
def test_it_can_still_be_read(text: str, line: str) -> None:
    assert printable(text) == line
