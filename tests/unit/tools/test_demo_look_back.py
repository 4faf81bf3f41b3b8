"""What the demo makes of a run: its figures and its verdict."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from demo_kit.look_back import LookBack, Outcome, Phase, contains_in_order, look_back, problems, task_phases
from digits.ledger import Entry
from elastic_runtime.run.status import Event, EventKind, Status
from elastic_runtime.run.status import Phase as RunPhase

GOOD = Outcome((2, 3, 2, 3), steps=40, samples_seen=80, samples_lost=0, samples_repeated=0, accuracy=0.98, phases=())
START = 1_800_000_000.0
STATUS = Status(
    *("run", "uid", RunPhase.SUCCEEDED, "all ranks ended with code 0", datetime.fromtimestamp(START, UTC)),
    events=(
        Event(datetime.fromtimestamp(START + 2, UTC), EventKind.SIZE_ASKED, "4 workers asked for, 2 before"),
        Event(datetime.fromtimestamp(START + 3.5, UTC), EventKind.SIZE_ASKED, "3 workers asked for, 4 before"),
        Event(datetime.fromtimestamp(START + 6.5, UTC), EventKind.NOTICE, "worker-2 will be taken in 20 s"),
        Event(datetime.fromtimestamp(START + 9, UTC), EventKind.NOTICE, "worker-1 will be taken in 20 s"),
    ),
)


def looked_back(accuracy: float | None = 0.98) -> LookBack:
    sizes = {1: 2, 2: 2, 3: 3, 4: 2}
    entries = [
        Entry(step, 0, rank, size, (10 * step + rank,), 2.0 / step, START + 2 * step)
        for step, size in sizes.items()
        for rank in range(size)
    ]
    samples = [entry.indices[0] for entry in entries]
    renumbered = [replace(entry, indices=(samples.index(entry.indices[0]),)) for entry in entries]
    phases = [Phase("airflow_start", START - 20, 18.0), Phase("train", START - 1, 12.0)]
    return look_back(renumbered, len(samples), 1, STATUS, accuracy, phases)


def test_sizes_and_counts_come_from_the_ledgers() -> None:
    outcome = looked_back().outcome
    assert outcome.world_sizes == (2, 3, 2)
    assert (outcome.steps, outcome.samples_seen, outcome.samples_lost, outcome.samples_repeated) == (4, 9, 0, 0)
    assert problems(outcome) == []


def test_the_seconds_to_a_size_are_from_the_newest_event_that_asked_for_it() -> None:
    assert looked_back().outcome.next_sizes == ((3, 2.5), (2, 1.5))
    found = look_back(
        [Entry(step, 0, 0, size, (), 1.0, START + step) for step, size in ((1, 2), (2, 3))], 0, 1, STATUS, None, ()
    )
    assert found.outcome.next_sizes == ((3, 0.0),)
    found = look_back(
        [Entry(step, 0, 0, size, (), 1.0, START + step - 9) for step, size in ((1, 2), (2, 3))], 0, 1, STATUS, None, ()
    )
    assert found.outcome.next_sizes == ((3, None),)
    assert found.outcome.figures()["from size asked or notice to its first step"] == "3 in ?"


def test_the_json_has_exactly_the_promised_keys() -> None:
    assert looked_back().outcome.plain() == {
        "world_sizes": [2, 3, 2],
        "next_sizes": [[3, 2.5], [2, 1.5]],
        "steps": 4,
        "samples_seen": 9,
        "samples_lost": 0,
        "samples_repeated": 0,
        "accuracy": 0.98,
        "phases": {"airflow_start": 18.0, "train": 12.0},
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"world_sizes": (2, 3)}, "do not contain"),
        ({"world_sizes": (3, 2, 2)}, "do not contain"),
        ({"accuracy": 0.96}, "accuracy 0.96"),
        ({"accuracy": None}, "accuracy None"),
        ({"samples_lost": 1}, "1 samples were lost"),
        ({"samples_repeated": 2}, "2 samples were trained on twice"),
    ],
)
def test_whatever_falls_short_is_named(change: dict[str, Any], complaint: str) -> None:
    assert problems(GOOD) == []
    (problem,) = problems(replace(GOOD, **change))
    assert complaint in problem


@pytest.mark.parametrize(
    ("sizes", "contained"), [((2, 3, 2), True), ((2, 1, 3, 1, 2), True), ((3, 2), False), ((), False)]
)
def test_order_counts(sizes: tuple[int, ...], contained: bool) -> None:
    assert contains_in_order(sizes, (2, 3, 2)) is contained


def test_tasks_become_phases_in_the_order_of_their_starts() -> None:
    def task(name: str, start: str | None, end: str | None, state: str = "success") -> dict[str, Any]:
        return {"task_id": name, "start_date": start, "end_date": end, "state": state}

    tasks = [
        task("train", "2027-01-15T08:00:05Z", "2027-01-15T08:00:35.5Z"),
        task("prepare", "2027-01-15T08:00:00Z", "2027-01-15T08:00:04Z"),
        task("reclaim", "2027-01-15T08:00:09Z", "2027-01-15T08:00:09Z", "skipped"),
        task("evaluate", None, None),
    ]
    assert [(phase.name, phase.seconds) for phase in task_phases(tasks)] == [("prepare", 4.0), ("train", 30.5)]


def test_the_table_and_the_page_show_the_same_figures() -> None:
    assert looked_back().outcome.figures() == {
        "world sizes": "2 → 3 → 2",
        "from size asked or notice to its first step": "3 in 2.5 s, 2 in 1.5 s",
        "steps": "4",
        "samples seen": "9",
        "samples lost / repeated": "0 / 0",
        "accuracy on the test shard": "0.9800",
    }
    assert looked_back(accuracy=None).outcome.figures()["accuracy on the test shard"] == "not evaluated"
