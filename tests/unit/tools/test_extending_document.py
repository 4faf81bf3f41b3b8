"""The examples in docs/extending.md are files that tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = re.findall(
    r"^`([^`\n]+)`\n\n```\w*\n(.*?)^```$", (ROOT / "docs/extending.md").read_text(), re.DOTALL | re.MULTILINE
)


def test_there_is_a_complete_engine() -> None:
    assert {Path(path).name for path, _ in BLOCKS} >= {"entry_points.txt", "__init__.py", "session.py", "rank.py"}


@pytest.mark.parametrize(("path", "block"), BLOCKS, ids=[path for path, _ in BLOCKS])
def test_what_is_shown_is_the_file(path: str, block: str) -> None:
    assert block == (ROOT / path).read_text()
