"""Planned changes: resizes in every order, and what training is the same for it."""

from __future__ import annotations

import pytest

from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start, each_engine
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, ready, sizes_of

pytestmark = pytest.mark.timeout(300)


@pytest.mark.shows(engine=("horovod", "torch", "torch-sharded"), fault="resize", place="local")
@each_engine
def test_resizes_change_nothing_about_the_training(start: Start, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(10, 25, 40, 60), freezes=(45,)))
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.at(25)
    run.resize(1)
    run.go(25)  # This one comes while training runs, at whatever step it is.
    run.at(40)
    run.worlds(2, 3, 1)
    run.go(40)
    run.at(45)
    run.resize(3)
    run.until_status(lambda status: len(ready(status)) == 3, "two newcomers that are ready")
    run.go(45)  # Both come at once, unless one is ready before the other is listed.
    run.until_status(lambda status: sizes_of(status)[3:][-1:] == [3], "three ranks again")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    sizes = sizes_of(status)
    if "SHARDED" in run.spec.environment and sizes[2:4] == [2, 1]:
        del sizes[2]  # Another worker goes than was said at first, and has to give its part away.
    together = 2 not in sizes[1:]
    assert sizes == [2, 3, 1, *([3] if together else [2, 3]), 0]
    if sizes == sizes_of(status):
        assert run.events(EventKind.SIZE_ASKED, EventKind.STARTED, EventKind.SCALED, EventKind.FINISHED) == [
            *("started 2", "size_asked", "scaled 3", "size_asked", "scaled 1", "size_asked"),
            *(["scaled 3"] if together else ["scaled 2", "scaled 3"]),
            "finished",
        ]
    ledger, at = run.ledger(), run.ledger().sizes()
    assert [at[step] for step in (10, 11, 25, 61, 70)] == [2, 3, 3, 3, 3]
    assert set(ledger.steps().items()) == {(step, 1) for step in range(1, 71)}
    for epoch in ledger.epochs():
        assert ledger.samples(epoch) == dict.fromkeys(range(100), 1)
    undisturbed.assert_same(run)


def at_its_door(run: ScriptedRun, known: set[str]) -> bool:
    """Whether a rank stands there of a worker that was not known before."""
    names = {worker.name for worker in run.status().workers if not worker.state.gone} - known
    return any((run.base / "at" / name).exists() for name in names)


def test_wishes_that_overtake_each_other_end_at_the_last_one(start: Start) -> None:
    doors = {"worker-3": "wait", "worker-4": "wait"}
    run = start(Script("exact.py", holds=(5, 10, 15, 20), freezes=(12,), doors=doors), (1, 2, 5))
    run.at(5)
    run.resize(4)  # Two at once: rank 0 hears of one world while the wish for another is here.
    run.resize(3)
    run.worlds(2, 3)
    run.go(5)

    run.at(10)
    known = {worker.name for worker in run.status().workers}  # with worker-3, if the first wish has come so far
    run.resize(4)
    run.until(lambda: at_its_door(run, known), "a newcomer at its door")  # The others train on without it,
    run.resize(2)  # when the next wish comes.
    run.until_status(lambda status: status.target_size == 2, "the wish is known")
    for name in doors:  # and those of newcomers after it
        run.go(name)
    run.worlds(2, 3, 2)
    run.go(10)

    run.at(12)  # Nobody commits: removed, then added (horovod#3494), and only then does rank 0 hear.
    run.resize(1)
    run.until_status(lambda status: status.target_size == 1, "the wish is known")
    run.resize(3)
    run.until_status(lambda status: status.target_size == 3, "the wish is known")
    run.go(12)
    run.at(15)
    run.until_status(lambda status: status.world_size == 3, "three ranks")
    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status)[:3] == [2, 3, 2]
    assert sizes_of(status)[-2:] == [3, 0]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED) == []
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}


@pytest.mark.shows(engine=("horovod", "torch", "torch-sharded"), fault="resize", place="local")
@each_engine
def test_a_removal_below_the_minimum_while_others_join_does_not_hang(start: Start, undisturbed: Undisturbed) -> None:
    """horovod#3494, as it was reported: both of two ranks are to go while two others come."""
    run = start(Script("exact.py", holds=(10,)), (2, 2, 4))
    run.at(10)
    leaving = [run.worker(rank).name for rank in (0, 1)]  # Asked for before the first notice: ranks change with it.
    for name in leaving:
        run.reclaim(name)
    run.resize(4)
    run.until_status(
        lambda status: status.world_size == 4 and sum(each.kind is EventKind.LEFT for each in status.events) == 2,
        "four others",
    )
    assert set(run.events(EventKind.LEFT)) == {"left worker-0", "left worker-1"}
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED) == []
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
