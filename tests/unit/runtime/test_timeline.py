"""The merged timeline: one time axis, numbers that do not collide, and whatever can be read of torn files."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.tracing import timeline
from elastic_runtime.tracing.timeline import Mark, Merged, Piece, merge

SECOND = 1_000_000
TENSOR = b'[\n{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.w"}},\n'
REDUCED = b'{"ph": "B", "name": "ALLREDUCE", "ts": 5, "pid": 1},{"ph": "E", "ts": 9, "pid": 1},\n'


def merged(*pieces: Piece, marks: tuple[Mark, ...] = (), limit: int = timeline.LIMIT) -> tuple[Merged, list[Any]]:
    out = io.BytesIO()
    done = merge(pieces, marks, out.write, limit)
    return done, json.loads(out.getvalue())["traceEvents"]


def spans(events: list[Any]) -> list[tuple[str, float, float]]:
    return [(each["name"], each["ts"], each["dur"]) for each in events if each["pid"] == 0 and each["ph"] == "X"]


def test_worlds_follow_each_other_on_one_axis_with_processes_of_their_own() -> None:
    marks = (Mark(100.1, "world", 7, 2), Mark(103.2, "world", 8, 3), Mark(102.0, "lost: worker-1"))
    first = Piece(100 * SECOND, 2, [TENSOR, REDUCED])
    second = Piece(103 * SECOND, 3, [TENSOR + REDUCED[:20], REDUCED[20:]])

    done, events = merged(first, second, marks=marks)

    assert (done.left_out, done.full) == (0, False)
    assert spans(events) == [("world 7 of 2 ranks", 0.0, 9.0), ("world 8 of 3 ranks", 3.0 * SECOND, 9.0)]
    begins = [(each["pid"], each["ts"]) for each in events if each["ph"] == "B"]
    assert begins[0][1] == 5
    assert begins[1][1] == 3 * SECOND + 5
    assert begins[0][0] != begins[1][0]
    names = {each["pid"]: each["args"]["name"] for each in events if each.get("name") == "process_name"}
    assert [names[pid] for pid, _ in begins] == ["world 7 of 2 ranks · allreduce.w", "world 8 of 3 ranks · allreduce.w"]
    assert [(each["name"], each["ts"]) for each in events if each["ph"] == "i"] == [("lost: worker-1", 2.0 * SECOND)]


def test_what_a_killed_rank_had_begun_ends_with_its_world() -> None:
    torn = Piece(SECOND, 2, [TENSOR, REDUCED, b'{"ph": "B", "name": "GLOO", "ts": 20, "pid": 1},{"ph": "E", "t'])
    done, events = merged(torn)
    assert done.left_out == 1
    assert [(each["ts"]) for each in events if each["ph"] == "E"] == [9, 20]


def test_worlds_that_the_status_does_not_know_are_numbered() -> None:
    done, events = merged(Piece(SECOND, 1, []), Piece(2 * SECOND, 1, []), marks=(Mark(900.0, "world", 9, 1),))
    assert [name for name, _, _ in spans(events)] == ["world 1 of 1 ranks", "world 2 of 1 ranks"]
    assert done.left_out == 0


def test_a_limit_ends_events_and_not_the_document() -> None:
    done, events = merged(Piece(SECOND, 1, [TENSOR] + [REDUCED] * 1000), limit=1000)
    assert done.full
    assert len(events) < 40
    assert len(spans(events)) == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b'{"ph": "B", "ts": NaN, "pid": 1}',
        b'{"ph": "B", "ts": 1e400, "pid": 1}',
        b'{"ph": "B", "ts": 1' + b"0" * 400 + b', "pid": 1}',
        b'{"ph": "B", "ts": 1' + b"0" * 5000 + b', "pid": 1}',
        b'{"ph": "B", "ts": 5, "pid": "x"}',
        b'{"ph": "B", "ts": 5, "pid": -7}',
        b'{"ph": "B", "ts": 5, "pid": 99999999999}',
        b'{"ph": "E", "ts": 5, "pid": 1}',
        b'{"ph": "Q", "ts": 5}',
        b'{"ph": ["B"], "ts": 5}',
        b'{"ph": "M", "name": "process_name", "args": 5}',
        b'{"a":' * 100_000,
        b"{" * 1_000_000,
        b"\xff\xfe\x00",
    ],
)
def test_nonsense_is_left_out(nonsense: bytes) -> None:
    done, events = merged(Piece(SECOND, 1, [TENSOR, nonsense]), Piece(2 * SECOND, 1, [TENSOR, REDUCED]))
    assert len([each for each in events if each["ph"] == "B"]) == 1
    assert done.left_out <= timeline.MOST_TORN


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 64))
def test_any_bytes_make_a_document(garbage: list[bytes], size: int) -> None:
    whole = TENSOR + REDUCED.join(garbage)
    merged(Piece(SECOND, 1, [whole[at : at + size] for at in range(0, len(whole), size)]))
