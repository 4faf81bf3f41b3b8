"""Which checkpoints have been told: each once, whatever happens to who tells them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.run.status import Checkpoint
from elastic_training.triggers import checkpoint_cursor
from elastic_training.triggers.checkpoint_cursor import MAX_RUNS, Cursor

START = datetime(2026, 11, 22, 8, tzinfo=UTC)
written = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30)


def checkpoint(number: int, step: int = 0) -> Checkpoint:
    return Checkpoint(f"s3://bucket/run/{step}", step, START + timedelta(seconds=number))


def again(cursor: Cursor) -> Cursor:
    return from_plain(Cursor, json.loads(json.dumps(to_plain(cursor))))


@given(written, st.sets(st.integers(0, 30)))
def test_every_checkpoint_that_was_looked_at_is_told_once(looks: list[tuple[str, int]], restarts: set[int]) -> None:
    cursor, told, newest, seen = Cursor(START), [], {}, set()
    for number, (run, more) in enumerate(looks, start=1):
        if more:  # Another one was written, perhaps of an earlier step, after a restart from the one before.
            newest[run] = checkpoint(number, step=more)
        if number in restarts:
            cursor = again(cursor)
        if run not in newest:
            continue
        seen.add((run, newest[run]))
        if cursor.is_new(run, newest[run]):
            told.append((run, newest[run]))
            cursor = cursor.with_reported(run, newest[run], set(newest))
    assert len(told) == len(set(told))
    assert set(told) == seen


def test_what_was_there_before_is_past() -> None:
    assert not Cursor(START).is_new("run", checkpoint(0))
    assert Cursor(START).is_new("run", checkpoint(1))


def name(number: int) -> str:
    return f"nightly-train-{number:010}"


def test_it_stays_small_and_forgets_nothing_twice() -> None:
    cursor = Cursor(START)
    for number in range(1, 3 * MAX_RUNS):
        cursor = again(cursor).with_reported(name(number), checkpoint(number), {name(number)})
    assert len(json.dumps(to_plain(cursor))) < 16_000
    assert not any(cursor.is_new(name(number), checkpoint(number)) for number in range(1, 3 * MAX_RUNS))


def test_of_more_runs_than_it_remembers_each_that_is_there_is_told_of() -> None:
    """In whatever order their checkpoints were written."""
    cursor, runs = Cursor(START), range(3 * MAX_RUNS)
    listed = {name(number) for number in runs}
    for turn in (1, 2):
        for number in runs:
            written = checkpoint(1000 * turn - number, turn)
            assert cursor.is_new(name(number), written)
            cursor = again(cursor).with_reported(name(number), written, listed)
            assert not cursor.is_new(name(number), written)


def test_runs_that_are_gone_hide_nothing_of_one_that_was_told_of_nothing_yet() -> None:
    cursor, late = Cursor(START), "nightly-train-late"
    for number in range(10, 10 + 2 * MAX_RUNS):
        cursor = again(cursor).with_reported(name(number), checkpoint(number), {name(number), late})
    assert cursor.since > checkpoint(9).time
    assert cursor.is_new(late, checkpoint(1))
    assert not cursor.is_new(late, checkpoint(0))
    assert not cursor.with_reported(late, checkpoint(1), {late}).is_new(late, checkpoint(1))


@given(
    st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.sampled_from("abcdef"), st.integers(1, 3)), max_size=30)
)
def test_each_checkpoint_of_a_run_that_stays_is_told_once(looks: list[tuple[set[str], str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_cursor, "MAX_RUNS", 1)
        cursor, told, newest = Cursor(START), [], {}
        for number, (others, run, step) in enumerate(looks, start=1):
            listed = others | {"stays", run}
            if run not in newest or run == "a":
                newest[run] = checkpoint(number, step)
            if number % 3 == 0:
                newest["stays"] = checkpoint(number, step)
            for each in ("stays", run) if number % 2 else (run, "stays"):
                if each in newest and cursor.is_new(each, newest[each]):
                    told.append((each, newest[each]))
                    cursor = again(cursor).with_reported(each, newest[each], listed)
        assert len(told) == len(set(told))
        of_it = [each for run, each in told if run == "stays"]
        assert of_it == [checkpoint(number, looks[number - 1][2]) for number in range(3, len(looks) + 1, 3)]
