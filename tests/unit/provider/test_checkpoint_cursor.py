"""Which checkpoints have been told: each once, whatever happens to who tells them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.run.status import Checkpoint
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
            cursor = cursor.with_reported(run, newest[run])
    assert len(told) == len(set(told))
    assert set(told) == seen


def test_what_was_there_before_is_past() -> None:
    assert not Cursor(START).is_new("run", checkpoint(0))
    assert Cursor(START).is_new("run", checkpoint(1))


def test_it_stays_small_and_forgets_nothing_twice() -> None:
    cursor = Cursor(START)
    for number in range(1, 3 * MAX_RUNS):
        cursor = again(cursor).with_reported(f"nightly-train-{number:010}", checkpoint(number))
    assert len(json.dumps(to_plain(cursor))) < 16_000
    assert not any(
        cursor.is_new(f"nightly-train-{number:010}", checkpoint(number)) for number in range(1, 3 * MAX_RUNS)
    )
