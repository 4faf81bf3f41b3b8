"""How a run is doing, by what was seen of its objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.errors import FailureKind, InvalidDocument
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.run.runobjects import COULD_NOT_RUN, HEADLINE
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.kubernetes.status.judgement import (
    Announced,
    Published,
    Seen,
    announced,
    finished,
    judge,
    read_headline,
    read_published,
)
from tests.unit.provider.kubernetes_objects import (
    BEGAN,
    RUNNING,
    SPEC,
    after,
    ended,
    job,
    pod,
    root,
    status_map,
    text,
    waiting,
)

TRAINS = Status("run", "uid-1", Phase.RUNNING, "all is well", after(20), started=after(10), world_size=2, target_size=2)
DONE = replace(TRAINS, phase=Phase.SUCCEEDED, reason="all ranks ended with code 0", finished=after(100))
FULL = {"status": "False", "reason": "Unschedulable", "message": "no room"}


def seen(
    *pods: Pod,
    status: Status | None = None,
    holder: str | None = None,
    of: Object | None = None,
    gone: bool = False,
    **annotations: str,
) -> Seen:
    return Seen(root(**annotations), Published(status, holder), None if gone else of or job(), pods)


class TestWhatTheLauncherSays:
    def test_counts_while_it_is_at_work(self) -> None:
        assert judge(seen(pod(state=RUNNING), status=TRAINS), after(1000)) is TRAINS

    @pytest.mark.parametrize("gone", [True, False])
    def test_is_final_whatever_became_of_it(self, gone: bool) -> None:
        assert judge(seen(status=DONE, gone=gone), after(1000)) is DONE

    def test_is_no_more_true_when_another_launcher_is_at_work(self) -> None:
        old = pod("old", state=ended(137))
        new = pod("new", state=RUNNING)
        status = judge(seen(old, new, status=TRAINS, holder="uid of old"), after(30))
        assert (status.phase, status.world_size) == (Phase.SUSPENDED, 0)
        assert "takes over" in status.reason


class TestBeforeItHasSpoken:
    def test_the_run_is_pending_with_kubernetes_words(self) -> None:
        status = judge(seen(pod(scheduled=FULL)), after(30))
        assert status.phase is Phase.PENDING
        assert "no room" in status.reason
        assert status.target_size == SPEC.workers.start

    def test_what_waiting_does_not_help_fails_it(self) -> None:
        status = judge(seen(pod(state=waiting("InvalidImageName", "bad name"))), after(30))
        assert status.failure is FailureKind.POD_REFUSED
        assert "bad name" in status.reason

    def test_the_start_timeout_counts_though_no_launcher_counts_it(self) -> None:
        assert judge(seen(pod(scheduled=FULL)), after(599)).phase is Phase.PENDING
        status = judge(seen(pod(scheduled=FULL)), after(601))
        assert status.failure is FailureKind.START_TIMEOUT
        assert "no room" in status.reason

    def test_the_start_timeout_is_the_launchers_own_once_it_runs(self) -> None:
        assert judge(seen(pod(state=RUNNING)), after(601)).phase is Phase.PENDING

    def test_all_readers_say_the_same(self) -> None:
        refused = seen(pod(state=waiting("InvalidImageName")))
        assert judge(refused, after(30)) == judge(refused, after(300))


class TestWhenItIsGone:
    def test_another_one_is_waited_for(self) -> None:
        lost = pod("old", phase="Failed", state=ended(137, at=after(50)))
        new = pod("new", created=after(51), scheduled=FULL)
        status = judge(seen(lost, new, status=TRAINS, holder="uid of old"), after(60))
        assert status.phase is Phase.SUSPENDED
        assert "no room" in status.reason

    def test_one_on_a_node_that_does_not_answer_is_not_believed_after_its_grace_period(self) -> None:
        cut_off = pod("old", state=RUNNING)
        cut_off.raw["metadata"]["deletionTimestamp"] = text(after(60))
        assert judge(seen(cut_off, status=TRAINS, holder="uid of old"), after(59)) is TRAINS
        assert judge(seen(cut_off, status=TRAINS, holder="uid of old"), after(61)).phase is Phase.SUSPENDED

    def test_but_not_longer_than_a_run_may_wait(self) -> None:
        new = pod("new", created=after(51), scheduled=FULL)
        waits = seen(new, status=TRAINS, holder="uid of old")
        assert judge(waits, after(51 + 299)).phase is Phase.SUSPENDED
        assert judge(waits, after(51 + 301)).failure is FailureKind.MAX_WAIT_EXCEEDED

    def test_a_run_that_is_paused_stays_so_for_as_long_as_it_may(self) -> None:
        new = pod("new", created=after(51), scheduled=FULL)
        told = replace(TRAINS, phase=Phase.PAUSED, reason="paused by ada", world_size=0)
        waits = seen(new, status=told, holder="uid of old")
        status = judge(waits, after(51 + 301))
        assert status.phase is Phase.PAUSED
        assert status.reason.startswith("paused by ada; the launcher is being replaced: ")
        assert judge(waits, after(51 + 7 * 86400 + 1)).failure is FailureKind.MAX_PAUSE_EXCEEDED

    @pytest.mark.parametrize("of", [job("Failed"), job("Complete"), None])
    def test_for_good_the_run_is_lost(self, of: Object | None) -> None:
        status = judge(seen(status=TRAINS, of=of, gone=of is None), after(60))
        assert status.failure is FailureKind.LAUNCHER_LOST
        assert status.world_size == 0
        assert status.finished == TRAINS.updated

    @pytest.mark.parametrize("status", [None, TRAINS])
    def test_a_launcher_that_refuses_says_so_and_is_not_lost(self, status: Status | None) -> None:
        refused = pod(phase="Failed", state=ended(COULD_NOT_RUN, message="engine: Horovod cannot be imported here"))
        for of in (job(), job("Failed")):
            judged = judge(seen(refused, status=status, of=of), after(60))
            assert judged.failure is FailureKind.LAUNCHER_ERROR
            assert judged.reason == "the launcher cannot run: engine: Horovod cannot be imported here"

    def test_its_last_pod_says_why(self) -> None:
        status = judge(seen(pod(phase="Failed", state=ended(137, "OOMKilled")), of=job("Failed")), after(60))
        assert "OOMKilled" in status.reason

    def test_a_run_that_was_cancelled_before_it_ran_is_cancelled(self) -> None:
        status = judge(seen(gone=True, cancel="enough"), after(60))
        assert status.failure is FailureKind.CANCELLED
        assert "enough" in status.reason

    def test_a_run_that_is_just_being_created_is_not_lost(self) -> None:
        young = Seen(root(complete=False), Published(), None, ())
        assert judge(young, after(1)).phase is Phase.PENDING


class TestReading:
    def test_an_empty_map_has_no_status(self) -> None:
        assert read_published(status_map(None)) == read_published(None) == Published()

    def test_a_status_comes_with_its_launcher(self) -> None:
        assert read_published(status_map(TRAINS, "a pod")) == Published(TRAINS, "a pod")

    def test_what_is_no_status_is_refused(self) -> None:
        with pytest.raises(InvalidDocument):
            read_published(Object({"metadata": {}, "data": {"status.json": "{}"}}))

    @pytest.mark.parametrize("phase", list(Phase))
    def test_the_phase_is_seen_without_reading_all(self, phase: Phase) -> None:
        found = read_headline(status_map(replace(TRAINS, phase=phase)))
        assert found is not None
        assert found.phase == phase

    @pytest.mark.parametrize("text", ["", "{}", "no JSON"])
    def test_a_headline_that_cannot_be_read_is_none(self, text: str) -> None:
        assert read_headline(Object({"metadata": {"annotations": {HEADLINE: text}}})) is None

    def test_a_job_with_a_false_condition_goes_on(self) -> None:
        suspended = Object({"metadata": {}, "status": {"conditions": [{"type": "Failed", "status": "False"}]}})
        assert not finished(suspended)

    def test_times_come_from_the_server(self) -> None:
        assert root().created == BEGAN


class TestNews:
    def test_what_only_counts_on_is_none(self) -> None:
        later = replace(TRAINS, updated=after(30), step=100, metrics={"loss": 0.5}, worker_seconds={"a": 10.0})
        assert announced(status_map(later)) == announced(status_map(TRAINS))

    @pytest.mark.parametrize(
        "change",
        [
            {"phase": Phase.SUSPENDED},
            {"reason": "a worker is missing"},
            {"reason": 'it said "step": 5, "updated":"now"'},
            {"world_size": 3},
            {"target_size": 3},
            {"generation": 7},
        ],
    )
    def test_is_what_people_wait_for(self, change: dict[str, Any]) -> None:
        assert announced(status_map(replace(TRAINS, **change))) != announced(status_map(TRAINS))

    def test_is_another_launcher(self) -> None:
        assert announced(status_map(TRAINS, "second")) != announced(status_map(TRAINS, "first"))

    def test_is_every_change_by_a_launcher_that_writes_no_headline(self) -> None:
        first, second = status_map(TRAINS), status_map(replace(TRAINS, step=1))
        for found in (first, second):
            del found.raw["metadata"]["annotations"][HEADLINE]
        assert announced(first) != announced(second)

    def test_there_is_none_before_a_launcher_has_spoken(self) -> None:
        assert announced(status_map(None)) == Announced()
