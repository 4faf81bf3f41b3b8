"""Who has asked for a size, as the log and the events of the run tell it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.launcher.decision.sizing import SizeWish
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


def test_the_newest_request_is_the_last_that_was_noted() -> None:
    requests = [
        {"name": "a", "workers": 3, "by": "ada", "pause": True},
        {"name": "b", "workers": 3, "by": "task nightly.more", "resume": True},
    ]
    askers = Askers()
    assert askers.newest(json.dumps(requests[:1])) == SizeWish("a", 3, pause=True, by="ada")
    assert askers.newest(json.dumps(requests)) == SizeWish("b", 3, by="task nightly.more")
    name = "/".join(("d" * 250, "r" * 250, "t" * 250, "-1", "12"))
    found = askers.newest(json.dumps([{"name": name, "workers": 3, "pause": True}]))
    assert found == SizeWish(name, 3, pause=True), "Airflow's side knows it by its whole name"


@given(
    st.none()
    | st.text()
    | st.lists(
        st.dictionaries(
            st.sampled_from(["name", "workers", "by", "pause"]), st.none() | st.booleans() | st.integers() | st.text()
        )
    ).map(json.dumps)
)
def test_whatever_stands_there_is_a_pause_only_if_it_says_so(requests: str | None) -> None:
    found = Askers().newest(requests)
    assert found is None or not found.pause or '"pause": true' in str(requests)
