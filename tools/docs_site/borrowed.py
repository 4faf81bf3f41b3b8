"""Pages of the site whose text lies elsewhere in the repository, and links that lead out of docs/."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

BORROWED = {
    "docs/index.md": "README.md",
    "docs/project/benchmarks.md": "benchmarks/README.md",
    "docs/project/changelog.md": "CHANGELOG.md",
    "docs/project/contributing.md": "CONTRIBUTING.md",
    "docs/project/measurements.md": "benchmarks/RESULTS.md",
    "docs/project/security.md": "SECURITY.md",
    "docs/project/tests.md": "tests/README.md",
}
"""By page. In a repository's view such a page has one line, a link to the file."""
_LENT = {file: page for page, file in BORROWED.items()}
_UNTIL = "\n## Read on\n"
"""What follows in the README is a list of pages, for which the site has its navigation."""
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_TARGET = re.compile(r"(?<=\]\()([^)\s#]+)?(#[^)\s]*)?(?=\))")


def text_of(root: Path, page: str, text: str) -> str:
    """The Markdown of a page of the site. Paths are relative to the repository's root."""
    if page in BORROWED:
        file = BORROWED[page]
        borrowed = (root / file).read_text().partition(_UNTIL)[0]
        lines = text.splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if line.startswith("<!-- text of"))
        return "".join([*lines[:at], _relinked(borrowed, file, page), *lines[at + 2 :]])
    return _relinked(text, page, page)


def _relinked(text: str, written_in: str, shown_in: str) -> str:
    """The same with links that lead from where it is shown to what they name where it is written."""

    def target(found: re.Match[str]) -> str:
        path, anchor = found[1] or "", found[2] or ""
        if not path or re.match(r"[a-z]+:", path):
            return path + anchor
        named = os.path.normpath(PurePosixPath(written_in).parent / path)
        named = _LENT.get(named, named)
        return os.path.relpath(named, PurePosixPath(shown_in).parent) + anchor

    return _outside_of_code(text, lambda prose: _TARGET.sub(target, prose))


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    parts = _FENCE.split(text)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))
