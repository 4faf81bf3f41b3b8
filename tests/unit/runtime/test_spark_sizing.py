"""Which tasks of workers start and end next."""

from __future__ import annotations

from elastic_runtime.launcher.spark.sizing import COMING, Steps, Worker, decide


def some(*workers: Worker) -> dict[str, Worker]:
    return {each.name: each for each in workers}


def test_as_many_start_as_are_missing() -> None:
    assert decide(some(Worker("a", 0.0)), 3, {}, 1.0, held=False) == Steps(start=2)
    assert decide({}, 3, {}, 1.0, held=True) == Steps()


def test_one_that_is_asked_to_end_does_not_count() -> None:
    assert decide(some(Worker("a", 0.0, asked_to_end=True)), 1, {}, 1.0, held=False) == Steps(start=1)


def test_those_without_an_executor_go_first_then_those_outside_of_the_world_then_the_highest_ranks() -> None:
    here = {"began": 1.0, "came": True}
    workers = some(
        Worker("waits", 0.0), Worker("begins", 0.0, 1.0), Worker("new", 0.0, **here), Worker("one", 0.0, **here),
        Worker("nought", 0.0, **here),
    )  # fmt: skip
    ranks = {"nought": 0, "one": 1}
    order = [decide(workers, wanted, ranks, 1.0, held=False).leave[0] for wanted in (4, 3, 2, 1)]
    assert order == ["waits", "begins", "new", "one"]


def test_one_whose_agent_does_not_connect_is_late_and_replaced() -> None:
    workers = some(Worker("a", 0.0, began=1.0), Worker("waits", 0.0))
    assert decide(workers, 2, {}, 1.0 + COMING, held=False) == Steps()
    assert decide(workers, 2, {}, 1.1 + COMING, held=False) == Steps(start=1, late=("a",))
