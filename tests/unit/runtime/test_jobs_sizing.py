"""Which jobs are submitted and ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.launcher.jobs.sizing import COMING, UNSEEN, Steps, Worker, decide, over
from elastic_runtime.run.jobs import Job, JobState


def job(state: JobState) -> Job:
    return Job("1", "uid", "worker-0", state, state.upper(), "None")


PENDING = Worker("worker-0", "1", 0.0, job(JobState.PENDING))
RUNNING = Worker("worker-1", "2", 0.0, job(JobState.RUNNING), began=1.0, came=True)


def of(*workers: Worker) -> dict[str, Worker]:
    return {each.name: each for each in workers}


def test_missing_workers_are_submitted() -> None:
    assert decide(of(RUNNING), 3, {}, 2.0) == Steps(submit=2)


def test_jobs_in_the_queue_go_first_then_those_outside_of_the_world_then_the_highest_ranks() -> None:
    third, fourth = replace(RUNNING, name="worker-2"), replace(RUNNING, name="worker-3")
    workers, ranks = of(PENDING, RUNNING, third, fourth), {"worker-1": 0, "worker-2": 1}
    order = [decide(workers, wanted, ranks, 2.0).leave for wanted in (3, 2, 1, 0)]
    assert order == [
        ("worker-0",),
        ("worker-3", "worker-0"),
        ("worker-2", "worker-3", "worker-0"),
        ("worker-1", "worker-2", "worker-3", "worker-0"),
    ]


def test_one_with_a_notice_goes_before_all_others() -> None:
    first, second, third = (replace(RUNNING, name=f"worker-{number}") for number in range(3))
    pending = replace(PENDING, name="worker-3")
    ranks = {"worker-0": 0, "worker-1": 1, "worker-2": 2}
    workers = of(first, second, third, pending)
    order = [decide(workers, wanted, ranks, 2.0, leaving={"worker-0"}).leave for wanted in (3, 2)]
    assert order == [("worker-0",), ("worker-3", "worker-0")]


def test_one_that_was_asked_to_end_is_replaced_and_not_asked_again() -> None:
    assert decide(of(replace(RUNNING, asked_to_end=True)), 1, {}, 2.0) == Steps(submit=1)


def test_one_that_has_left_is_replaced_though_slurm_cleans_up_after_it() -> None:
    completing = replace(RUNNING, gone=True, job=replace(job(JobState.RUNNING), word="COMPLETING"))
    assert decide(of(completing), 1, {}, 2.0) == Steps(submit=1)
    assert decide(of(replace(completing, gone=False)), 1, {}, 2.0) == Steps()
    assert decide(of(replace(completing, job=job(JobState.RUNNING))), 1, {}, 2.0) == Steps()


def test_one_that_runs_and_never_connects_is_replaced() -> None:
    silent = replace(RUNNING, came=False)
    assert decide(of(silent), 1, {}, 1.0 + COMING) == Steps()
    assert decide(of(silent), 1, {}, 1.1 + COMING) == Steps(submit=1, late=("worker-1",))
    assert decide(of(PENDING), 1, {}, 1e9) == Steps(), "the queue is Slurm's to bound"


@pytest.mark.parametrize(
    ("state", "ends"), [(JobState.PENDING, False), (JobState.RUNNING, False), (JobState.OVER, True)]
)
def test_a_job_is_over_when_slurm_says_so(state: JobState, ends: bool) -> None:
    assert over(replace(PENDING, job=job(state)), 1e9) is ends


def test_a_job_that_slurm_does_not_know_is_over_after_a_while() -> None:
    unseen = replace(PENDING, job=None)
    assert [over(unseen, now) for now in (UNSEEN, UNSEEN + 1)] == [False, True]


workers_drawn = st.lists(
    st.builds(
        Worker,
        name=st.integers(0, 50).map(lambda number: f"worker-{number}"),
        id=st.just("1"),
        submitted=st.floats(0, 100),
        job=st.sampled_from([None, job(JobState.PENDING), job(JobState.RUNNING)]),
        began=st.none() | st.floats(0, 100),
        came=st.booleans(),
        asked_to_end=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda each: each.name,
)


@given(workers_drawn, st.integers(0, 8), st.dictionaries(st.just("worker-1"), st.integers(0, 7)), st.floats(0, 1000))
def test_as_many_stay_as_are_wanted(drawn: list[Worker], wanted: int, ranks: dict[str, int], now: float) -> None:
    steps = decide(of(*drawn), wanted, ranks, now)
    staying = {each.name for each in drawn if not each.asked_to_end} - {*steps.leave, *steps.late}
    assert len(staying) + steps.submit == wanted
    assert not set(steps.leave) & set(steps.late)
