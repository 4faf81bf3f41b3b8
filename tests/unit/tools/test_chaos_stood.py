"""What `make standstills` takes for a standstill that was found and healed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from elastic_runtime.run.status import Event, EventKind, Phase, Status
from tests.chaos.standstills import WAYS, Played, plan_of, table
from tests.chaos.stood import Found, Seen, find

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STOOD = {"stood": 10.0, "after": 5, "rank": 1, "name": "worker-1.0.0", "pid": 11}
NAMED = "no rank has committed for more than 5 s: rank 1 (worker-1.0.0): stands at data.py:7; it is replaced"
OTHER = NAMED.replace("rank 1 (worker-1.0.0)", "rank 2 (worker-2.0.0)")
FAILED = "rank worker-1.0.0 ended with SIGKILL"


def step(number: int, time: float, *pids: int) -> list[dict[str, Any]]:
    return [
        {"step": number, "time": time, "rank": rank, "size": len(pids), "pid": pid} for rank, pid in enumerate(pids)
    ]


BEFORE, AFTER = step(5, 9.0, 10, 11, 12), step(6, 16.0, 10, 12)


def seen(notes: Sequence[Any] = (*BEFORE, STOOD, *AFTER), told: str = NAMED, failed: str = FAILED) -> Seen:
    events = [(EventKind.STANDSTILL, told), (EventKind.RANK_FAILED, failed)]
    shown = tuple(Event(NOW, kind, message) for kind, message in events if message)
    status = Status("run", "uid", Phase.SUCCEEDED, "", NOW, events=shown)
    return Seen(notes, status, f"{told}\nrank_failed: {failed}\nDEBUG: rank worker-0.0.0 ended with SIGKILL")


def test_the_right_rank_that_is_replaced_in_place_and_in_time_is_right() -> None:
    assert find("sleep", 10.0, seen()) == Found(6.0)


@pytest.mark.parametrize(
    ("round_", "trouble"),
    [
        (seen(told=OTHER), "the status blames rank 2 (worker-2.0.0), and not rank 1 (worker-1.0.0)"),
        (seen(told=f"{NAMED}, {OTHER}"), "rank 2 (worker-2.0.0)"),
        (seen(told="the ranks are asked where they stand"), "the log blames nobody"),
        (seen(failed="rank worker-2.0.0 ended with SIGKILL"), "ranks that failed, in the log: worker-2.0.0"),
        (seen((*BEFORE, STOOD, *step(6, 21.0, 10, 12))), "it took 11.0 s, more than 10 s"),
        (seen((*BEFORE, STOOD, *step(6, 16.0, 10, 13))), "processes of other ranks did not live on: 12"),
        (seen((*BEFORE, STOOD)), "no step was done afterwards"),
        (seen((*BEFORE, *AFTER)), "no rank stood still"),
    ],
)
def test_anything_else_is_wrong(round_: Seen, trouble: str) -> None:
    assert any(trouble in words for words in find("sleep", 10.0, round_).troubles)


def test_a_rank_that_fails_by_itself_needs_no_alarm_and_a_slow_store_harms_nobody() -> None:
    assert find("breakpoint", 10.0, seen(told="")) == Found(6.0)
    assert find("store", 10.0, seen(told="", failed="")) == Found(6.0)
    assert find("breakpoint", 10.0, seen()).troubles == (f"there was an alarm: {NAMED}",)
    assert len(find("store", 10.0, seen()).troubles) == 3


def test_each_way_comes_up_and_the_writer_is_who_has_a_slow_store() -> None:
    plans = [plan_of(seed) for seed in range(len(WAYS))]
    assert [plan.stand.way for plan in plans if plan.stand] == list(WAYS)
    assert all(plan.stand.rank == 0 for plan in plans if plan.stand and plan.stand.way == "store")


def test_the_table_counts_by_engine_and_way() -> None:
    rounds = [Played("torch", plan_of(seed, ["sleep"]), Found(6.0 + seed)) for seed in range(2)]
    rounds.append(Played("torch", plan_of(9, ["sleep"]), Found(None, ("wrong",))))
    _, sleep, every = table(rounds)
    assert sleep.split() == ["torch", "sleep", "3", "2", "6.5", "7.0"]
    assert every.split() == ["torch", "all", "3", "2", "6.5", "7.0"]
