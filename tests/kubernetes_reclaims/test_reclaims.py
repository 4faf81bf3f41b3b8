"""What Kubernetes takes from a run costs no step: real taints and evictions; checkpoints in an S3 over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase, Status
from tests.kubernetes_namespace import Namespace
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import TIMING, Place
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(600)

TAINT = "cloud.google.com/impending-node-termination"
WORLDS = (EventKind.STARTED, EventKind.SCALED, EventKind.SUSPENDED, EventKind.RESUMED, EventKind.RESTARTED,
          EventKind.RANK_FAILED, EventKind.LOST)  # fmt: skip
ALL_ONCE = {(step, 1) for step in range(1, 71)}


@contextmanager
def tainted(namespace: Namespace, node: str) -> Iterator[None]:
    """What GKE puts on a node that it is about to take."""
    namespace.kubectl("taint", "nodes", node, f"{TAINT}=:NoSchedule")
    try:
        yield
    finally:
        namespace.kubectl("taint", "nodes", node, f"{TAINT}-")


@contextmanager
def without_room(place: Place) -> Iterator[None]:
    """The spot market is empty: no new worker finds a node."""
    place.offer(room=False)
    try:
        yield
    finally:
        place.offer(room=True)


def handovers(status: Status) -> list[int | None]:
    return [event.step for event in status.events if event.kind is EventKind.HANDOVER]


def resumed(status: Status) -> list[int | None]:
    """Steps of the durable checkpoints that ranks have begun with."""
    return [event.step for event in status.events if event.kind is EventKind.RESUMED and "checkpoint" in event.message]


@pytest.mark.shows(engine="horovod", fault="notice", place="kubernetes")
def test_a_taint_on_its_node_makes_a_worker_leave_in_order(
    start: Start, place: Place, s3: dict[str, Any], undisturbed: Undisturbed
) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2), **s3)
    run.at(20)
    leaving = run.worker(1)
    assert leaving.node != run.worker(0).node
    with tainted(place.namespace, leaving.node):
        run.worlds(2, 1, 2)
        assert leaving.name not in run.present()
        assert leaving.node != run.worker(1).node, "not where it would be taken again"

        status = run.finish()

    assert sizes_of(status) == [2, 1, 2, 0]
    assert run.events(*WORLDS) == ["started 2", "scaled 1", "scaled 2"]
    assert run.events(EventKind.NOTICE) == [f"notice {leaving.name}"]
    assert f"left {leaving.name}" in run.events(EventKind.LEFT)
    assert set(handovers(status)) == {20}  # Ranks that hear of a notice a second apart may write it again.
    assert set(run.ledger().steps().items()) == ALL_ONCE
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault=("notices", "launcher"), place="kubernetes")
def test_a_fleet_that_is_evicted_at_once_and_then_its_launcher_lose_no_step(
    start: Start, place: Place, s3: dict[str, Any], undisturbed: Undisturbed
) -> None:
    # The notices come while a step is held: they leave time for more than that.
    timing = replace(TIMING, leave_grace=12.0)
    script = Script("exact.py", holds=(20,), step_seconds=0.3)
    run = start(script, (2, 2, 2), recovery=RecoverySpec(backoff=0.1), timing=timing, **s3)
    run.at(20)
    fleet = run.present()
    with without_room(place):
        run.delete_pods(Part.WORKER)
        run.until_status(lambda _: len(run.events(EventKind.NOTICE)) == 2, "both notices")
        run.go(20)  # They train on for as long as they can.
        run.until_status(lambda status: "nodes are available" in status.reason, "Kubernetes says why nobody comes")
        assert run.status().phase is Phase.SUSPENDED
        [launcher] = run.pods(Part.LAUNCHER)
        run.delete_pods(Part.LAUNCHER)
        run.until(lambda: launcher not in run.pods(), "the launcher is gone, too")
        run.until_status(lambda _: run.events(EventKind.RESTARTED), "another one looks after the run")
        assert sizes_of(run.status()) == [2, 0]
    run.worlds(2, 0, 2)
    assert not fleet & run.present()

    status = run.finish()

    assert sizes_of(status) == [2, 0, 2, 0]
    assert run.events(EventKind.STARTED, EventKind.SUSPENDED, EventKind.SCALED, EventKind.RANK_FAILED, EventKind.LOST) \
        == ["started 2", "suspended", "scaled 2"]  # fmt: skip
    assert set(run.events(EventKind.LEFT)[:2]) == {f"left {name}" for name in fleet}
    steps = resumed(status)
    assert len(steps) == 1, run.report(f"resumed at {steps}, wanted at one step")
    step = steps[0]
    assert step is not None
    assert 20 < step < 70, "it trained on for as long as it could"
    # One for each notice, at the step at which its rank hears of it; of the last one the launcher hears if that rank
    # still lives to say so once it is durable.
    assert all(each is not None and 20 <= each <= step for each in handovers(status))
    assert set(run.ledger().steps().items()) == ALL_ONCE
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="horovod", fault="launcher", place="kubernetes")
def test_the_next_try_goes_on_from_the_store_or_starts_over(
    start: Start, s3: dict[str, Any], undisturbed: Undisturbed
) -> None:
    often = replace(s3["checkpoint"], every=0.1)
    first = start(Script("exact.py", holds=(30,)), (1, 2, 2), environment=s3["environment"], checkpoint=often)
    first.at(30)
    first.until_status(lambda status: status.checkpoint and status.checkpoint.step == 30, "a checkpoint of step 30")
    first.kill_launcher()
    lost = first.until(lambda: first.is_over() and first.status(), "it is over", alive=False)
    assert lost.failure is FailureKind.LAUNCHER_LOST

    def another(script: Script, **changes: Any) -> Any:
        environment, checkpoint = s3["environment"], replace(often, **changes)
        run = start(script, (1, 2, 2), name=first.ref.name, environment=environment, checkpoint=checkpoint,
                    fresh=not checkpoint.resume)  # fmt: skip
        return run, run.finish()

    second, status = another(Script("exact.py"), fence=2)
    assert sizes_of(status) == [2, 0]
    assert resumed(status) == [30]
    assert sorted(second.ledger().steps()) == list(range(31, 71))
    undisturbed.assert_same_weights(second)

    third, status = another(Script("exact.py", epochs=1), fence=3, resume=False)
    assert resumed(status) == []
    assert sorted(third.ledger().steps()) == list(range(1, 8))


@pytest.mark.shows(engine="horovod", fault="rank", place="kubernetes")
@pytest.mark.long
def test_a_fixed_run_pauses_for_a_killed_rank_and_goes_on_where_it_was(start: Start, undisturbed: Undisturbed) -> None:
    recovery = RecoverySpec(mode=RecoveryMode.FIXED, backoff=3.0)
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2), recovery=recovery)
    run.at(20)
    run.kill_rank(1)
    paused = run.until_status(lambda status: status.phase is Phase.SUSPENDED, "a pause")
    assert "the least is 2" in paused.reason
    run.worlds(2, 0, 2)

    status = run.finish()

    assert sizes_of(status) == [2, 0, 2, 0]
    assert [event.split()[0] for event in run.events(*WORLDS)] == [
        "started", "rank_failed", "suspended", "resumed", "scaled",
    ]  # fmt: skip
    assert set(run.ledger().steps().items()) == ALL_ONCE
    undisturbed.assert_same(run)
