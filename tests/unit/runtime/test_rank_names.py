"""Names of workers, ranks and processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.protocol.rank_names import RankName, WorkerName
from tests.examples import rewarding

PODS = st.from_regex(r"[a-z]([a-z0-9.-]{0,10}[a-z0-9])?", fullmatch=True).filter(lambda pod: ".r" not in pod)
WORKERS = st.builds(WorkerName, PODS, st.integers(0, 99))
RANKS = st.builds(RankName, WORKERS, st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9))


@rewarding()
@given(WORKERS, RANKS)
def test_are_read_as_they_were_written(worker: WorkerName, rank: RankName) -> None:
    assert WorkerName.parse(str(worker)) == worker
    assert RankName.parse(str(rank)) == rank


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("worker-2.0.0", RankName(WorkerName("worker-2"), 0)),
        ("worker-2.r1.0.3", RankName(WorkerName("worker-2", 1), 0, 3)),
        ("a.b.1.3~2", RankName(WorkerName("a.b"), 1, 3, 2)),
    ],
)
def test_of_ranks(text: str, name: RankName) -> None:
    assert RankName.parse(text) == name
    assert str(name) == text


def test_of_a_process_tells_whose_it_is() -> None:
    assert str(RankName.parse("w.r2.1.3~1").rank) == "w.r2.1.3"


def test_of_a_slot_is_the_same_when_its_worker_comes_back() -> None:
    once = RankName(WorkerName("w"), 1, 4)
    assert once.lasting_slot == replace(once, worker=WorkerName("w", 3), incarnation=0).lasting_slot == "w.1"


@pytest.mark.parametrize("text", ["", "w", "w.0", "w.0.x", "w.0.0~", ".0.0"])
def test_of_something_else(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a rank"):
        RankName.parse(text)
