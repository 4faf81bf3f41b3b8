"""A run's report: one HTML file that needs nothing else, not even a network.

It is the page that the API server shows (``provider/frontend``), and has the run's data in it instead of asking for it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from elastic_runtime.printable import printable
from elastic_runtime.run.status import Status
from elastic_training.report.contents import SIZES, contents

MOST_BYTES = 1 << 20
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\x7f"}
"""With ASCII alone: JSON that cannot end the element in which it stands, nor do anything to a terminal."""
_PAGE = Template(
    """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<noscript><h1>$title</h1><p>$reason</p><p>Its curves and tables need JavaScript.</p></noscript>
<div id="page"></div>
<script type="application/json" id="report">$report</script>
<script type="module">$script</script>
</body>
</html>
"""
)


def render_report(
    status: Status, figures: Mapping[str, str] | None = None, cost: Mapping[str, Any] | None = None
) -> str:
    """Render the page as HTML of less than 1 MiB, for any status.

    Args:
        status: Status of a run in any phase.
        figures: Further figures of the caller, by their names. They are shown first.
        cost: Cost as in the result document (:func:`elastic_training.cost.bill.plain_bill`). None: it is not shown.
    """
    pages = (_page(status, contents(status, figures, cost, size)) for size in SIZES)
    return next(page for page in pages if len(page.encode()) < MOST_BYTES)


@cache
def content_policy() -> str:
    """Return the content policy of a report, which may load and run only its own content."""
    style, script = (b64encode(sha256(each.encode()).digest()).decode() for each in _bundle())
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _page(status: Status, report: Mapping[str, Any]) -> str:
    style, script = _bundle()
    return _PAGE.substitute(
        policy=content_policy(),
        title=_text(f"{status.run}: {status.phase}"),
        reason=_text(status.reason),
        style=style,
        script=script,
        report=json.dumps(report, allow_nan=False, separators=(",", ":")).translate(_ESCAPES),
    )


def _text(words: str) -> str:
    return escape(printable(words))


@cache
def _bundle() -> tuple[str, str]:
    """Style and script of the page, as they are built; neither has an end tag in it."""
    static = files("elastic_training") / "static"
    style, script = ((static / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return style, script
