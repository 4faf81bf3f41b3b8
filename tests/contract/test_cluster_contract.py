"""What every cluster promises: :class:`elastic_training.clusters.cluster.Cluster`, checked on each kind."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastic_runtime.errors import Conflict, FailureKind, InvalidSettings, OwnershipLost, RunNotFound
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState
from elastic_training.clusters.document import SizeRequest
from elastic_training.clusters.types import (
    LOG_START,
    ClaimOutcome,
    RunRef,
    RunSummary,
    StatusChanged,
)
from elastic_training.concurrency.bridge import run
from tests import paced
from tests.contract.cluster_kinds import OWNER, Kind
from tests.contract.watching import NEWER, lines_of, over, started, to_the_end, training, until

pytestmark = pytest.mark.timeout(600)


def test_a_plan_says_what_would_run_and_creates_nothing(kind: Kind) -> None:
    assert "train.py" in run(kind.cluster.plan(kind.spec()))
    with pytest.raises(RunNotFound):
        run(kind.cluster.find(kind.name))


def test_a_run_is_created_trains_and_succeeds_with_its_whole_log(kind: Kind) -> None:
    spec = kind.spec(start=2)
    claim = run(kind.cluster.claim(spec, OWNER))
    assert claim.outcome is ClaimOutcome.CREATED
    assert claim.ref == RunRef(kind.name, spec.uid) == run(kind.cluster.find(kind.name))
    assert run(kind.cluster.spec(claim.ref)) == spec
    assert run(kind.cluster.owner(claim.ref)) == OWNER
    assert run(kind.cluster.size(claim.ref)) == 2
    until(kind, claim.ref, training(2))
    kind.finish(claim.ref)

    updates = to_the_end(kind, claim.ref, LOG_START)

    last = updates[-1]
    assert isinstance(last, StatusChanged)
    assert last.status.phase is Phase.SUCCEEDED
    assert last.status.failure is None
    assert [world.size for world in last.status.history if world.size][:1] == [2]
    assert any("the last words" in line for line in lines_of(updates))
    assert run(kind.cluster.status(claim.ref)) == last.status


def test_a_new_run_is_never_taken_for_a_lost_one(kind: Kind) -> None:
    ref = run(kind.cluster.claim(kind.spec(), OWNER)).ref
    assert run(kind.cluster.status(ref)).phase in (Phase.PENDING, Phase.STARTING, Phase.RUNNING)
    status = until(kind, ref, lambda status: status.phase is not Phase.PENDING)
    assert not status.phase.final


def test_a_living_run_is_adopted_and_its_old_owner_can_do_nothing(kind: Kind) -> None:
    first = run(kind.cluster.claim(kind.spec(), OWNER)).ref
    second = run(kind.cluster.claim(kind.spec(environment={"NEW": "1"}), NEWER))
    assert second.ref == first
    assert second.outcome is ClaimOutcome.ADOPTED
    assert second.differs == ("environment",)
    for forbidden in (
        lambda: kind.cluster.cancel(first, "too late", OWNER),
        lambda: kind.cluster.delete(first, OWNER),
        lambda: kind.cluster.collect(first, OWNER),
        lambda: kind.cluster.take_log_lease(first, OWNER),
    ):
        with pytest.raises(OwnershipLost):
            run(forbidden())
    assert run(kind.cluster.owner(first)) == NEWER
    assert not until(kind, first, training(1)).phase.final


def test_a_success_is_adopted_until_it_is_collected(kind: Kind) -> None:
    ref = started(kind)
    kind.finish(ref)
    until(kind, ref, over)
    again = run(kind.cluster.claim(kind.spec(), NEWER))
    assert again.outcome is ClaimOutcome.ADOPTED
    assert run(kind.cluster.status(again.ref)).phase is Phase.SUCCEEDED
    run(kind.cluster.collect(ref, NEWER))
    anew = run(kind.cluster.claim(kind.spec(), NEWER))
    assert anew.outcome is ClaimOutcome.REPLACED
    assert anew.ref != ref


def test_a_failed_run_is_replaced_and_its_reference_is_dead(kind: Kind) -> None:
    ref = started(kind)
    kind.break_ranks(ref)
    status = until(kind, ref, over)
    assert status.phase is Phase.FAILED
    assert status.failure is FailureKind.RANK_FAILED
    assert status.world_size == 0
    assert status.finished is not None
    claim = run(kind.cluster.claim(kind.spec(), NEWER))
    assert claim.outcome is ClaimOutcome.REPLACED
    assert claim.ref.uid != ref.uid
    for gone in (kind.cluster.status, kind.cluster.size, kind.cluster.log_lease_holder, kind.cluster.owner):
        with pytest.raises(RunNotFound):
            run(gone(ref))
    run(kind.cluster.delete(ref, OWNER))  # Harmless: it is another incarnation.
    assert run(kind.cluster.find(kind.name)) == claim.ref


@pytest.mark.long_in_pods
def test_fresh_ends_a_living_run_and_starts_another(kind: Kind) -> None:
    ref = started(kind)
    claim = run(kind.cluster.claim(kind.spec(), NEWER, fresh=True))
    assert claim.outcome is ClaimOutcome.REPLACED
    assert claim.ref.uid != ref.uid


def test_a_launcher_gone_without_a_word_is_a_failure_that_says_so(kind: Kind) -> None:
    ref = started(kind)
    kind.kill_launcher(ref)
    status = until(kind, ref, over)
    assert status.phase is Phase.FAILED
    assert status.failure is FailureKind.LAUNCHER_LOST
    assert run(kind.cluster.claim(kind.spec(), NEWER)).outcome is ClaimOutcome.REPLACED


@pytest.mark.long_in_pods
def test_the_world_follows_the_size_and_a_request_counts_once(kind: Kind) -> None:
    ref = started(kind, workers=2)
    assert not run(kind.cluster.ask(ref, 3, "wish 1")).done
    assert until(kind, ref, training(3)).target_size == 3
    assert not run(kind.cluster.ask(ref, 1, "wish 2")).done
    assert run(kind.cluster.ask(ref, 3, "wish 1")).done
    assert run(kind.cluster.size(ref)) == 1
    status = until(kind, ref, training(1))
    assert [world.size for world in status.history if world.size] == [2, 3, 1]
    assert EventKind.SCALED in {event.kind for event in status.events}


@pytest.mark.long_in_pods
def test_a_change_counts_from_the_size_that_was_asked_for_and_only_once(kind: Kind) -> None:
    ref = started(kind, workers=1)
    first = run(kind.cluster.ask(ref, SizeRequest("wish 1", "+2", by="task nightly.more of monday")))
    assert (first.done, first.workers, first.by) == (False, 3, "task nightly.more of monday")
    status = until(kind, ref, training(3))
    if kind.tells_who_asked:
        told = [event.message for event in status.events if event.kind is EventKind.SIZE_ASKED]
        assert told == ["3 workers asked for, 1 before, by task nightly.more of monday"]
    run(kind.cluster.ask(ref, 2, "wish 2"))
    again = run(kind.cluster.ask(ref, SizeRequest("wish 1", "+2")))
    assert again == replace(first, done=True)
    assert run(kind.cluster.size(ref)) == 2


@pytest.mark.long_in_pods
def test_named_workers_leave_and_are_not_replaced(kind: Kind) -> None:
    ref = started(kind, workers=3)
    status = run(kind.cluster.status(ref))
    victim, *others = sorted(worker.name for worker in status.workers if worker.state is WorkerState.TRAINING)
    with pytest.raises(InvalidSettings, match="has no worker"):
        run(kind.cluster.ask(ref, SizeRequest("wish 0", "-1", release=("nobody",))))
    asked = run(kind.cluster.ask(ref, SizeRequest("wish 1", "-1", release=(victim,))))
    assert asked.workers == run(kind.cluster.size(ref)) == 2
    status = until(kind, ref, training(2))
    assert sorted(worker.name for worker in status.workers if worker.state is WorkerState.TRAINING) == others


@pytest.mark.long_in_pods
@pytest.mark.parametrize("workers", [0, 4])
def test_a_size_out_of_bounds_is_refused(kind: Kind, workers: int) -> None:
    ref = run(kind.cluster.claim(kind.spec(), OWNER)).ref
    with pytest.raises(InvalidSettings, match="1 to 3"):
        run(kind.cluster.ask(ref, SizeRequest("wish", str(workers))))
    with pytest.raises(InvalidSettings, match="has no checkpoint store"):
        run(kind.cluster.pause(ref))
    with pytest.raises(Conflict, match="is not paused"):
        run(kind.cluster.resume(ref))
    assert run(kind.cluster.size(ref)) == 1


def test_a_paused_run_has_no_worker_until_it_is_resumed(kind: Kind) -> None:
    """Before its first world: what ranks do at a commit that is to be durable is the launcher's, wherever they are."""
    spec = replace(kind.spec(start=2), checkpoint=CheckpointSpec("file:///tmp/elastic-training-contract"))
    ref = run(kind.cluster.claim(spec, OWNER)).ref
    run(kind.cluster.pause(ref, by="ada"))

    def paused(status: Status) -> bool:
        return status.phase is Phase.PAUSED and all(worker.state.gone for worker in status.workers)

    status = until(kind, ref, paused)
    assert status.pause is not None
    assert (status.pause.workers, run(kind.cluster.size(ref))) == (2, 0)
    run(kind.cluster.resume(ref))
    assert until(kind, ref, training(2)).pause is None
    kind.finish(ref)
    assert until(kind, ref, over).phase is Phase.SUCCEEDED


@pytest.mark.long_in_pods
def test_a_reclaimed_worker_leaves_and_the_others_train_on(kind: Kind) -> None:
    ref = started(kind, workers=2)
    status = run(kind.cluster.status(ref))
    victim = next(worker.name for worker in status.workers if worker.state is WorkerState.TRAINING)
    before = datetime.now(UTC)

    deadline = run(kind.cluster.reclaim(ref, victim, timedelta(seconds=20)))

    assert timedelta(seconds=19) < deadline - before < timedelta(seconds=25)

    def left(status: Status) -> bool:
        gone = {worker.name for worker in status.workers if worker.state is WorkerState.LEFT}
        return victim in gone and status.phase is Phase.RUNNING and status.generation > 1

    events = until(kind, ref, left).events
    assert (EventKind.NOTICE, victim) in {(event.kind, event.worker) for event in events}
    with pytest.raises(InvalidSettings, match="has no worker"):
        run(kind.cluster.reclaim(ref, "nobody", timedelta(seconds=20)))


def test_a_cancelled_run_ends_and_keeps_its_documents(kind: Kind) -> None:
    ref = started(kind)
    run(kind.cluster.cancel(ref, "enough", OWNER))
    run(kind.cluster.cancel(ref, "again", OWNER))
    status = until(kind, ref, over)
    assert status.failure is FailureKind.CANCELLED
    assert "enough" in status.reason
    run(kind.cluster.cancel(ref, "over", OWNER))
    assert run(kind.cluster.claim(kind.spec(), NEWER)).outcome is ClaimOutcome.REPLACED


@pytest.mark.long_in_pods
def test_a_run_is_cancelled_whosever_it_is(kind: Kind) -> None:
    ref = started(kind)
    with pytest.raises(OwnershipLost):
        run(kind.cluster.cancel(ref, "of another", NEWER))
    run(kind.cluster.cancel(ref, "of anybody", None))
    assert "of anybody" in until(kind, ref, over).reason


def test_delete_ends_a_living_run_and_is_harmless_when_repeated(kind: Kind) -> None:
    ref = started(kind)
    run(kind.cluster.delete(ref, OWNER))
    with pytest.raises(RunNotFound):
        run(kind.cluster.find(kind.name))
    run(kind.cluster.delete(ref, OWNER))
    run(kind.cluster.cancel(ref, "gone", OWNER))
    run(kind.cluster.collect(ref, OWNER))
    assert run(kind.cluster.claim(kind.spec(), OWNER)).outcome is ClaimOutcome.CREATED


def test_what_never_was_is_not_found(kind: Kind) -> None:
    ref = RunRef(kind.name, "no-uid")
    for ask in (kind.cluster.status, kind.cluster.spec, kind.cluster.size, kind.cluster.log_lease_holder):
        with pytest.raises(RunNotFound):
            run(ask(ref))
    with pytest.raises(RunNotFound):
        to_the_end(kind, ref, LOG_START)


@pytest.mark.long_in_pods
def test_a_list_says_at_a_glance_how_every_run_is_doing(kind: Kind) -> None:
    def listed() -> list[RunSummary]:
        return [each for each in run(kind.cluster.list()) if each.ref.name == kind.name]

    assert listed() == []
    before = datetime.now(UTC) - timedelta(seconds=2)
    ref = started(kind, workers=2)
    # A headline may follow its status by a moment.
    paced.until(lambda: listed()[0].headline.phase is Phase.RUNNING, "the headline says that it is running")
    (training,) = listed()
    assert (training.ref, training.owner) == (ref, OWNER)
    assert before < training.created <= datetime.now(UTC) + timedelta(seconds=2)
    assert (training.headline.world_size, training.headline.target_size) == (2, 2)
    kind.kill_launcher(ref)
    until(kind, ref, over)
    (lost,) = listed()
    assert (lost.headline.phase, lost.headline.failure) == (Phase.FAILED, FailureKind.LAUNCHER_LOST)
    run(kind.cluster.delete(ref, OWNER))
    assert listed() == []
