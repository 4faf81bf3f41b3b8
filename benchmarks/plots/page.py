"""``results.html``: every ratio of ``results.json`` as a plot, on one page that needs nothing beside it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness.sections import RESULTS, read_measures

PAGE = "results.html"
_TEMPLATE = Path(__file__).with_name("page.html")
_PLACE = "/* results.json */ null"


def write_page(folder: Path) -> None:
    """Draw ``results.json`` of that folder into :data:`PAGE` beside it."""
    (folder / PAGE).write_text(page(folder))


def page(folder: Path) -> str:
    """The page, with the figures in it."""
    figures = json.dumps(read_measures(folder)).replace("<", "\\u003c")  # No title ends the script.
    template = _TEMPLATE.read_text()
    assert _PLACE in template, f"{_TEMPLATE.name} has no place for {RESULTS}"
    return template.replace(_PLACE, figures)
