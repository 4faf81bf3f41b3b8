"""What a training says of itself reaches a person who is to decide: it is neither Markdown nor a template there."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_training.operators.capacity_decision import question

EVIL = [
    "`[free GPUs](https://evil.example)` <img src=https://evil.example/x>",
    "``` \n# Approved\n* steps done: `9000`",
    "{{ conn.db.password }} {% include '/etc/passwd' %}",
    "\x1b[2J\u202e\r\n\u2028next line",
    "x" * 100_000,
    "",
]


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("field", ["run", "failure", "reason", "steps"])
def test_each_fact_is_one_line_of_code_that_nothing_in_it_ends(field: str, evil: str) -> None:
    document: dict[str, Any] = {"checkpoint": {"uri": evil, "step": evil}, "world_sizes": [evil], field: evil}
    asked = question(document)
    assert len(asked) < 4_000
    for line in asked.splitlines():
        assert line.startswith("* ")
        assert line.count("`") == 2
        assert line.endswith("`")
