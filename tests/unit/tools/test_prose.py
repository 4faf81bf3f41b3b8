"""The check of prose finds what docs are not to have, and leaves the rest alone."""

from __future__ import annotations

import pytest

import prose


def found(text: str) -> list[str]:
    return [f"{each.line}: {each.text}" for each in prose.findings(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fine.\n\nWhoever has it may use it.", "3: 'Whoever': "),
        ("It is told thereby.", "1: 'thereby': "),
        ("A rank hears of it.", "1: 'hears': "),
        ("The agent is told to stop.", "1: 'is told': "),
        ("One (a) and two (b) are three.", "1: 2 parentheses, 1 at most"),
        ("One; two; three.", "1: 2 semicolons, 1 at most"),
        ("Short.\nWord " + "word " * 40 + "end.", "1: 42 words, 40 at most"),
        ("What is not given stays as it was.", "1: begin with the subject"),
        ("Of all the checkpoints two stay.", "1: begin with the subject"),
        ("| field | meaning |\n| --- | --- |\n| x | thereby y |", "3: 'thereby'"),
        ("* fine\n* newcomers wait\n  for it", "2: 'newcomers'"),
        ("# Heading\n\nText whoever.", "3: 'whoever'"),
    ],
)
def test_a_form_is_found_at_its_line(text: str, expected: str) -> None:
    assert any(each.startswith(expected) for each in found(text)), found(text)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nwhoever = thereby(a)(b)(c)\n```",
        "`whoever` and [a page](hereby.md) are fine (once). So is another (too).",
        "<!-- whoever -->\nShort.",
        "Word " * 30 + "end. " + "Word " * 30 + "end.",
        "What is a rank? It is a process.",
        "| " + "word " * 25 + "| " + "word " * 25 + "|",
        "* " + "word " * 25 + "\n* " + "word " * 25,
        "## What it needs",
    ],
)
def test_the_rest_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_a_sentence_does_not_end_at_an_abbreviation() -> None:
    assert list(prose.sentences("Stores, e.g. S3, are fine. So is this.")) == [
        "Stores, e.g. S3, are fine.",
        "So is this.",
    ]


def test_every_page_of_the_list_is_there() -> None:
    assert [page for page in prose.PAGES if not (prose.ROOT / page).is_file()] == []
    assert len(set(prose.PAGES)) == len(prose.PAGES)
