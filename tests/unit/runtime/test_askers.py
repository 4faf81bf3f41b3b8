"""Who has asked for a size, as the log and the events of the run tell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.launcher.record.askers import MOST, Askers
from elastic_runtime.run.rundir import RunDir


def asked(*requests: tuple[str, int, str]) -> str:
    return json.dumps([{"name": name, "workers": workers, "by": by, "done": True} for name, workers, by in requests])


def test_the_newest_request_that_came_to_this_size_says_who() -> None:
    askers = Askers()
    first, second = ("a", 4, "task nightly.more of monday"), ("b", 4, "ada with elastic-training")
    assert askers.who(asked(first), 4) == "task nightly.more of monday"
    assert askers.who(asked(first, second), 4) == "ada with elastic-training"


def test_a_size_that_is_set_by_hand_is_nobodys() -> None:
    askers = Askers()
    requests = asked(("a", 4, "task nightly.more of monday"))
    assert askers.who(requests, 4)
    assert askers.who(requests, 2) == ""
    assert askers.who(requests, 4) == "", "it is not asked for a second time"
    assert Askers().who(requests, 3) == ""


@pytest.mark.parametrize(
    "requests", [None, "", "{", "[]", '["a"]', '[{"name": "a"}]', '[{"name": "a", "workers": 2, "by": 7}]']
)
def test_what_is_not_known_is_nobodys(requests: Any) -> None:
    assert Askers().who(requests, 2) == ""


def test_no_name_forges_a_line_or_fills_the_log() -> None:
    told = Askers().who(asked(("a", 2, "x\nERROR " + "y" * 5000)), 2)
    assert "\n" not in told
    assert len(told) <= MOST


@pytest.mark.parametrize(
    ("record", "found"),
    [(None, None), ("{", None), ("[]", None), ("{}", "null"), ('{"requests": [{"name": "a"}]}', '[{"name": "a"}]')],
)
def test_the_folder_has_them_in_what_airflow_notes(tmp_path: Path, record: str | None, found: str | None) -> None:
    if record is not None:
        (tmp_path / "record.json").write_text(record)
    assert RunDir(tmp_path).requests() == found
