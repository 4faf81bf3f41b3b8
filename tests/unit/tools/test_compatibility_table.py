"""The page of ``make matrix`` says of each line what was found, and never more."""

from __future__ import annotations

from tests.wheels.table import COLUMNS, Line, page


def test_a_line_that_broke_off_says_what_was_not_reached() -> None:
    line = Line("3.0.6", "3.12.1", "2025-09-12", {"install": "yes"})
    assert not line.well
    assert "| 3.0.6 | 3.12.1 | 2025-09-12 | yes |" + 6 * " not reached |" + "\n" in page("2026-11-23", [line])


def test_what_was_wrong_is_not_well() -> None:
    line = Line("3.3.2", "3.11.7", "newest", dict.fromkeys(COLUMNS, "yes"))
    assert line.well
    line.found["clear"] = "**wrong: gone after 40.0 s**"
    assert not line.well
    assert "**wrong: gone after 40.0 s** |\n" in page("2026-11-23", [line])
