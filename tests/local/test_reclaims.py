"""All who have the state have a notice, and nobody comes in time: what was committed last is on the store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoveryMode, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase, Status
from tests.local.conftest import Start, both_engines, one_has_all
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)

TOLD = (EventKind.STARTED, EventKind.SCALED, EventKind.SUSPENDED, EventKind.RESTARTED, EventKind.RANK_FAILED)


def on_notice_only(folder: Path) -> CheckpointSpec:
    """Nothing durable but for a notice, and in the end."""
    return CheckpointSpec((folder / "checkpoints").as_uri(), every=3600.0)


def notice_to_all(run: ScriptedRun, seconds: float) -> set[str]:
    """Both workers will be taken; as soon as the launcher knows. Returns their names."""
    names = {run.worker(rank).name for rank in (0, 1)}
    for name in names:
        run.reclaim(name, seconds)
    run.until_status(lambda _: len(run.events(EventKind.NOTICE)) == 2, "both notices")
    return names


def resumed_at(status: Status) -> list[int | None]:
    """Steps of the durable checkpoints that ranks have begun with."""
    return [event.step for event in status.events if event.kind is EventKind.RESUMED and "checkpoint" in event.message]


@pytest.mark.shows(engine="horovod", fault="notices", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="notices", by="test-faults", place="local")
@both_engines
def test_no_step_is_lost_when_all_workers_are_taken_at_their_deadline(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    # The 50 steps that are left take 10 s on any machine, more than the workers have.
    script = Script("exact.py", holds=(20,), step_seconds=0.2)
    run = start(script, (2, 2, 2), checkpoint=on_notice_only(tmp_path), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    old = notice_to_all(run, seconds=8.0)
    run.go(20)  # They train on: fewer would be below the minimum.
    run.worlds(2, 0, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 0, 2, 0]
    assert run.events(*TOLD) == ["started 2", "suspended", "restarted", "scaled 2"]
    assert set(run.events(EventKind.LEFT)[:2]) == {f"left {name}" for name in old}
    assert run.events(EventKind.LOST) == []
    [step] = resumed_at(status)
    assert step is not None
    assert 20 < step < 70, "it trained on for as long as it could"
    # Of the last one the launcher hears if its rank still lives to say so once it is durable.
    told = [event.step for event in status.events if event.kind is EventKind.HANDOVER]
    assert told
    assert all(each is not None and 20 <= each <= step for each in told)
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="notice", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="notice", by="test-faults", place="local")
@both_engines
def test_a_worker_trains_on_until_shortly_before_its_deadline_and_loses_no_step(start: Start) -> None:
    # Its 175 steps take 17.5 s on any machine, more than the worker has.
    run = start(Script("exact.py", epochs=25, step_seconds=0.1), (1, 3, 3))
    run.until_status(lambda status: (status.step or 0) > 5, "a few commits, by which it knows how long they take")
    taken = run.worker(2).name
    run.reclaim(taken, seconds=12.0, punctual=True)

    status = run.succeed()

    [noticed] = [event for event in status.events if event.kind is EventKind.NOTICE]
    [left] = [event for event in status.events if event.kind is EventKind.LEFT and event.worker == taken]
    assert 1.0 < (left.time - noticed.time).total_seconds() < 12.0
    assert sizes_of(status)[:2] == [3, 2]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED) == []
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 176)}


@pytest.mark.shows(engine="horovod", fault="notices", place="local")
@pytest.mark.shows(engine=("torch", "torch-sharded"), fault="notices", by="test-faults", place="local")
@both_engines
def test_workers_that_are_killed_before_their_deadline_have_handed_over(
    start: Start, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = start(
        *(Script("exact.py", holds=(20,)), (2, 2, 2)),
        checkpoint=on_notice_only(tmp_path),
        recovery=RecoverySpec(backoff=0.1),
    )
    run.at(20)
    old = notice_to_all(run, seconds=60.0)
    run.until_status(lambda _: run.events(EventKind.HANDOVER), "a hand-over")
    for name in old:
        os.kill(run.agent_pid(name), signal.SIGKILL)
    run.worlds(2, 0, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 0, 2, 0]
    assert run.events(*TOLD) == ["started 2", "suspended", "restarted", "scaled 2"]
    assert set(run.events(EventKind.LOST)) == {f"lost {name}" for name in old}
    assert resumed_at(status) == [20]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)


@one_has_all
@pytest.mark.parametrize(
    ("mode", "size", "killed", "writer"),
    [pytest.param(RecoveryMode.ELASTIC, 2, 0, 1, marks=pytest.mark.long), (RecoveryMode.FIXED, 3, 1, 0)],
    ids=["elastic", "fixed"],
)
def test_no_step_is_lost_when_all_who_wait_for_others_are_taken(
    start: Start, undisturbed: Undisturbed, tmp_path: Path, mode: RecoveryMode, size: int, killed: int, writer: int
) -> None:
    minimum = 1 if mode is RecoveryMode.FIXED else size
    run = start(
        *(Script("exact.py", holds=(23,)), (minimum, size, size)),
        checkpoint=on_notice_only(tmp_path),
        recovery=RecoverySpec(mode, backoff=0.1),
    )
    run.at(23)
    names = [run.worker(rank).name for rank in range(size)]
    lost, writes = names.pop(killed), run.worker(writer).name
    source = psutil.Process(run.agent_pid(lost)).parent()
    assert source is not None
    source.suspend()  # No worker can be forked: nobody takes a place until we say so.
    os.kill(run.agent_pid(lost), signal.SIGKILL)
    paused = run.until_status(lambda status: status.phase is Phase.SUSPENDED, "the others wait")
    assert f"the least is {size}" in paused.reason
    assert paused.checkpoint is None, "what was trained is in their memory only"
    for name in names:
        run.reclaim(name, 8.0)
    run.until_status(lambda _: len(run.events(EventKind.LEFT)) == len(names), "their time is over")
    source.resume()
    run.worlds(size, 0, size)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [size, 0, size, 0]
    assert run.events(*TOLD) == [f"started {size}", "suspended", "restarted", f"scaled {size}"]
    told = run.events(EventKind.LOST, EventKind.NOTICE, EventKind.HANDOVER, EventKind.LEFT)
    count = len(names)
    assert told[0] == f"lost {lost}"
    assert set(told[1 : 1 + count]) == {f"notice {name}" for name in names}
    assert told[1 + count] == f"handover {writes}"
    assert set(told[2 + count : 2 + 2 * count]) == {f"left {name}" for name in names}
    assert len(run.events(EventKind.HANDOVER)) == 1
    assert resumed_at(status) == [23]
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
