"""Each wait of a run has its limit: the rows of :mod:`.waits_table`, played in virtual time."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from elastic_runtime.launcher.decision.decide import decide, observe
from elastic_runtime.launcher.decision.facts import (
    Action,
    AskRanks,
    Clocks,
    Decision,
    EndStandstill,
    EndWorkers,
    Finish,
    GiveUpWorker,
    Inquiry,
    StopTraining,
)
from elastic_runtime.run.spec import RecoverySpec, Timing
from tests.unit.runtime.waits_table import WAITS, Wait

DOCUMENT = Path(__file__).parents[3] / "docs" / "failures.md"
STEPS = 500
"""Looks until the limit, at least."""


def step_of(row: Wait) -> float:
    """Seconds between two looks."""
    return max(0.25, row.seconds / STEPS)


def played(row: Wait) -> tuple[float, Action, Decision]:
    """When something is done for the first time, and what; but for questions, and what a pause asks for each time."""
    clocks, now, step, given = Clocks(launched=0.0), 0.0, step_of(row), row.given
    if row.before:
        clocks = observe(clocks, row.before, row.settings, now)
    while now < 3 * row.seconds + 100.0:
        if given.pause and not given.session:
            given = replace(given, pause=replace(given.pause, age=now))
        clocks = observe(clocks, given, row.settings, now)
        decision = decide(given, clocks, row.settings, now)
        for action in decision.actions:
            if isinstance(action, AskRanks) and action.early:
                continue
            if isinstance(action, AskRanks):
                proves = given.inquiry is not None and any(each.waits for each in row.answers)
                given = replace(given, inquiry=Inquiry(now, row.answers, 20, quiet=action.quiet, proves=proves))
            elif isinstance(action, EndStandstill) and row.follows is GiveUpWorker and given.inquiry:
                given = replace(given, inquiry=replace(given.inquiry, acted=now))
            elif not isinstance(action, StopTraining | EndWorkers):
                return now, action, decision
        now += step
    raise AssertionError(f"nothing within {now:.0f} s")


@pytest.mark.parametrize("row", WAITS, ids=[f"{row.who}-{row.what}".replace(" ", "-") for row in WAITS])
def test_each_wait_ends_at_its_limit(row: Wait) -> None:
    moment, action, decision = played(row)
    assert isinstance(action, row.follows)
    assert row.seconds <= moment <= row.seconds + 4 * step_of(row) + 1.0
    assert row.names in decision.reason
    assert (action.failure if isinstance(action, Finish) else None) is row.kind


def test_settings_that_a_limit_names_are_settings() -> None:
    known = {each.name for each in fields(RecoverySpec)} | {f"timing.{each.name}" for each in fields(Timing)}
    named = {name for row in WAITS for name in re.findall(r"`([^`]+)`", row.limit)} - {"at_most"}
    assert named <= known
    assert {"max_wait", "max_pause", "start_timeout", "standstill", "timing.forming", "timing.gather"} <= named


def test_the_document_has_this_table() -> None:
    assert "\n".join(row.line for row in WAITS) in DOCUMENT.read_text()
