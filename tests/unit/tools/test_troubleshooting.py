"""Every message of docs/troubleshooting.md is one that the sources have."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
QUOTED = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


@cache
def strings() -> str:
    """All that the sources can say, one string a line; what is put into an f-string is left out."""
    folders = (ROOT / "provider/src", ROOT / "images/trainer/src")
    trees = (ast.parse(path.read_text()) for folder in folders for path in folder.rglob("*.py"))
    return "\n".join(
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_there_are_messages() -> None:
    assert len(QUOTED) > 30


@pytest.mark.parametrize("message", QUOTED)
def test_the_message_is_one_of_ours(message: str) -> None:
    missing = [part for part in message.split("…") if part.strip() not in strings()]
    assert missing == []
