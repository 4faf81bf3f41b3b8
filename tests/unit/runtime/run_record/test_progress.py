"""Percent and time left in a run's status: of what the script tells, whatever it is."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.protocol.rank_link import Progress, RankMessage, Resumed, TotalSteps
from elastic_runtime.run import status_progress
from elastic_runtime.run.spec import RecoveryMode, RecoverySpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import EventKind, Phase, Status
from elastic_runtime.run.status_progress import Pace
from tests.unit.runtime.run_record.bench import Clock, worker

SPEC = RunSpec("run", "uid", ("true",), workers=WorkersSpec(1, 2, 4))


@pytest.fixture
def record(clock: Clock) -> RunRecord:
    return RunRecord(SPEC, clock)


def trains(record: RunRecord, clock: Clock, steps: range, ranks: int = 2, seconds: float = 1.0) -> None:
    record.world([f"worker-{rank}" for rank in range(ranks)])
    for step in steps:
        record.rank_said(Progress(step), "worker-0")
        clock.tick(seconds)


def told(record: RunRecord, wanted: int = 2) -> status_progress.Progress:
    found = record.status([], {}, wanted).progress
    assert found is not None
    return found


def test_is_unknown_until_step_and_steps_are_told(record: RunRecord, clock: Clock) -> None:
    assert record.status([], {}, 2).progress is None
    record.rank_said(TotalSteps(100, by_script=False), "worker-0")
    assert record.status([], {}, 2).progress is None
    record.world(["a", "b"])
    record.rank_said(Progress(5), "worker-0")
    found = told(record)
    assert (found.steps, found.percent, found.seconds, found.basis) == (100, 5.0, None, "no pace is measured yet")
    without = RunRecord(SPEC, clock)
    trains(without, clock, range(10))
    assert without.status([], {}, 2).progress is None


def test_goes_on_with_the_steps_and_is_of_the_present_size(record: RunRecord, clock: Clock) -> None:
    record.rank_said(TotalSteps(400, by_script=True), "worker-0")
    trains(record, clock, range(100))
    found = told(record)
    assert found.seconds == pytest.approx(300)
    assert (found.percent, found.basis) == (24.75, "measured with 2 ranks")
    trains(record, clock, range(100, 200), ranks=4, seconds=0.5)
    found = told(record, wanted=4)
    assert found.seconds == pytest.approx(100, rel=0.05)
    assert record.status([], {}, 4).paces == (Pace(2, 99, 99.0), Pace(4, 98, 49.0))


def test_follows_a_notice_and_a_request(record: RunRecord, clock: Clock) -> None:
    record.rank_said(TotalSteps(1000, by_script=True), "worker-0")
    trains(record, clock, range(100), ranks=1)
    trains(record, clock, range(100, 300), ranks=2, seconds=0.5)
    calm = told(record)
    workers = [worker("worker-0"), worker("worker-1")]
    ranks = {each.slots[0].rank_id: rank for rank, each in enumerate(workers)}
    workers[1].deadline = clock.now + timedelta(seconds=30)
    noticed = record.status(workers, ranks, 2).progress
    asked = told(record, wanted=4)
    assert calm.seconds is not None
    assert noticed is not None
    assert noticed.seconds is not None
    assert asked.least is not None
    assert noticed.seconds > calm.seconds
    assert "1 rank leaving" in noticed.basis
    assert asked.least < calm.seconds
    assert "2 ranks missing" in asked.basis


def test_follows_the_size_plan(record: RunRecord, clock: Clock) -> None:
    record.rank_said(TotalSteps(1000, by_script=True), "worker-0")
    trains(record, clock, range(100), ranks=4, seconds=0.5)
    trains(record, clock, range(100, 300), ranks=2)
    calm = told(record).seconds
    assert calm == pytest.approx(701, rel=0.01)
    planned = record.status([], {}, 2, [(clock.now + timedelta(seconds=100), 4)]).progress
    assert planned is not None
    assert planned.seconds == pytest.approx(100 + 601 / 2, rel=0.03)


def test_a_fixed_run_waits_below_its_size(clock: Clock) -> None:
    spec = RunSpec("run", "uid", ("true",), workers=WorkersSpec(1, 2, 4), recovery=RecoverySpec(RecoveryMode.FIXED))
    elastic, fixed = RunRecord(SPEC, clock), RunRecord(spec, clock)
    for record in (elastic, fixed):
        record.rank_said(TotalSteps(1000, by_script=True), "worker-0")
        trains(record, clock, range(100))
        record.status([], {}, 3)
        clock.tick(100)
    less, more = told(elastic, wanted=3).seconds, told(fixed, wanted=3).seconds
    assert less is not None
    assert more is not None
    assert more > less


def test_what_the_script_says_counts_more_than_its_batches(
    record: RunRecord, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    trains(record, clock, range(10))
    totals = ((50, False), (200, True), (50, False), (150, True), (100, True), (300, True))
    found = []
    for steps, by_script in totals:
        record.rank_said(TotalSteps(steps, by_script=by_script), "worker-0")
        found.append(told(record).steps)
    assert found == [50, 200, 200, 150, 100, 300]
    said = [text for text in caplog.messages if "in all" in text]
    assert said == ["the script tells of 150 steps in all, 200 before; the newest is used"], "once"


def test_more_steps_than_were_told_of_are_a_warning_once_and_no_estimate(record: RunRecord, clock: Clock) -> None:
    record.rank_said(TotalSteps(20, by_script=True), "worker-0")
    trains(record, clock, range(40))
    found = told(record)
    assert (found.percent, found.seconds, found.basis) == (100.0, None, "more steps were made than the script told of")
    [event] = [each for each in record.status([], {}, 2).events if each.kind is EventKind.WARNING]
    assert "more than the 20 steps" in event.message
    assert event.step == 21
    after = RunRecord(SPEC, clock, record.status([], {}, 2))
    trains(after, clock, range(30, 40))
    assert [each.kind for each in after.status([], {}, 2).events].count(EventKind.WARNING) == 1


def test_is_of_the_step_that_was_resumed_from(record: RunRecord) -> None:
    record.rank_said(TotalSteps(200, by_script=True), "worker-0")
    record.rank_said(Resumed("s3://bucket/run/100", 100), "worker-0")
    assert told(record).percent == 50.0


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED])
def test_of_a_run_that_is_over_no_time_is_left(record: RunRecord, clock: Clock, phase: Phase) -> None:
    record.rank_said(TotalSteps(200, by_script=True), "worker-0")
    trains(record, clock, range(101))
    record.finish(phase, "it is over", None if phase is Phase.SUCCEEDED else FailureKind.CANCELLED)
    assert told(record) == status_progress.Progress(200, 50.0, by_script=True)


def test_the_next_launcher_goes_on(record: RunRecord, clock: Clock) -> None:
    record.rank_said(TotalSteps(400, by_script=True), "worker-0")
    trains(record, clock, range(100))
    previous = from_json(Status, to_json(record.status([], {}, 2)))
    after = RunRecord(SPEC, clock, previous)
    after.no_world()
    found = told(after)
    assert (found.steps, found.by_script) == (400, True)
    after.rank_said(TotalSteps(50, by_script=False), "worker-0")
    assert told(after).steps == 400
    assert found.seconds == pytest.approx(301 + 30)
    assert found.basis == "measured with 2 ranks; 2 ranks missing"


messages = st.one_of(
    st.builds(TotalSteps, st.integers(1, 2**53), st.booleans()),
    st.builds(Progress, st.integers(-(2**53), 2**53)),
    st.builds(Progress, st.integers(0, 300)),
    st.builds(Resumed, st.just("file:///run/1"), st.integers(-(2**53), 2**53)),
)


@given(st.lists(st.tuples(messages, st.floats(0, 1e5), st.integers(0, 4)), max_size=40))
def test_whatever_a_script_says_the_status_can_be_read(said: list[tuple[RankMessage, float, int]]) -> None:
    clock = Clock()
    record = RunRecord(SPEC, clock)
    for message, seconds, ranks in said:
        clock.tick(seconds)
        if ranks:
            record.world(["worker-0"] * ranks)
        record.rank_said(message, "worker-0")
        status = record.status([], {}, 2)
        read = from_json(Status, to_json(status))
        assert (read.progress, read.paces) == (status.progress, status.paces)
        if (found := status.progress) is None:
            continue
        assert 0 <= found.percent <= 100
        if found.seconds is None:
            assert (found.least, found.most) == (None, None)
            assert found.basis
        else:
            assert found.least is not None
            assert found.most is not None
            assert 0 <= found.least <= found.seconds <= found.most
