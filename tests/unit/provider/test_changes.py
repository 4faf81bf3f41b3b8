"""What is told between two statuses, whatever was missed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Checkpoint, Event, EventKind, Phase, Status, World
from elastic_training.listeners.changes import (
    MAX_TOLD_AT_ONCE,
    Change,
    ChangeKind,
    ReportedState,
    changes,
    read_reported,
)

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def status(**fields: object) -> Status:
    base = Status("run", "1", Phase.RUNNING, "all is well", at(100))
    return replace(base, **fields)  # type: ignore[arg-type]  # by name


def kinds(found: tuple[Change, ...]) -> list[str]:
    return [each.kind.value for each in found]


TWO = status(generation=1, world_size=2, history=(World(at(1), 2, 1),))
STEPPED = replace(TWO, step=5)
THREE = replace(STEPPED, generation=2, world_size=3, history=(*TWO.history, World(at(9), 3, 2, 40)))


def test_a_first_look_tells_what_there_is_but_no_size_of_a_first_world() -> None:
    assert kinds(changes(None, TWO)) == []
    assert kinds(changes(None, STEPPED)) == ["first_step"]
    assert kinds(changes(None, THREE)) == ["first_step", "resized"]


def test_what_was_told_is_not_told_again() -> None:
    for each in (TWO, STEPPED, THREE):
        assert changes(each, each) == ()
        assert changes(ReportedState.of(each), each) == ()


def test_a_resize_tells_both_sizes_the_step_and_the_pause() -> None:
    paused = (*TWO.history, World(at(5), 0, 1, 30), World(at(5.5), 3, 2, 30))
    (change,) = changes(STEPPED, replace(THREE, history=paused))
    assert (change.kind, change.before, change.world_size, change.step) == (ChangeKind.RESIZED, 2, 3, 30)
    assert change.seconds == pytest.approx(0.5)
    (change,) = changes(STEPPED, THREE)
    assert change.seconds == 0


def test_a_world_of_the_same_size_is_reformed() -> None:
    history = (*TWO.history, World(at(5), 0, 1, 30), World(at(7), 2, 2, 30))
    (change,) = changes(STEPPED, replace(STEPPED, generation=2, history=history))
    assert (change.kind, change.seconds) == (ChangeKind.REFORMED, 2)


def test_worlds_and_notices_that_were_missed_come_in_their_order() -> None:
    notice = Event(at(6), EventKind.NOTICE, "worker-1 will be taken in 30 s", "worker-1", 20)
    history = (*TWO.history, World(at(5), 3, 2), World(at(7), 2, 3))
    found = changes(STEPPED, replace(STEPPED, generation=3, history=history, events=(notice,)))
    assert kinds(found) == ["resized", "noticed", "resized"]
    assert (found[1].worker, found[1].step) == ("worker-1", 20)


def test_a_notice_is_told_once_and_the_next_one_too() -> None:
    first, second = (Event(at(each), EventKind.NOTICE, "taken", f"worker-{each}") for each in (6, 7))
    one, two = replace(STEPPED, events=(first,)), replace(STEPPED, events=(first, second))
    assert kinds(changes(one, one)) == []
    assert [each.worker for each in changes(one, two)] == ["worker-7"]


def test_of_several_checkpoints_the_newest_is_told() -> None:
    old, new = (Checkpoint(f"s3://bucket/run/{step}", step, at(step)) for step in (10, 20))
    before = replace(STEPPED, checkpoint=old)
    (change,) = changes(before, replace(STEPPED, checkpoint=new))
    assert (change.kind, change.checkpoint, change.step) == (ChangeKind.CHECKPOINTED, new, 20)
    assert changes(before, before) == ()


def test_the_end_is_told_last_with_its_kind() -> None:
    over = {"phase": Phase.FAILED, "failure": FailureKind.CANCELLED, "reason": "asked", "finished": at(99)}
    ended = replace(THREE, checkpoint=Checkpoint("s3://bucket/run/1", 1, at(98)), **over)
    found = changes(STEPPED, ended)
    assert kinds(found) == ["resized", "checkpointed", "finished"]
    assert (found[-1].failure, found[-1].message, found[-1].time) == (FailureKind.CANCELLED, "asked", at(99))
    assert changes(ended, ended) == ()


def test_a_place_survives_being_kept_and_garbage_is_none() -> None:
    told = ReportedState.of(replace(THREE, checkpoint=Checkpoint("s3://bucket/run/1", 1, at(98))))
    assert read_reported(told.text()) == told
    for garbage in ("", "no JSON", "[]", '{"generation": "many"}'):
        assert read_reported(garbage) == ReportedState()


def test_a_long_story_is_bounded() -> None:
    history = tuple(World(at(each), 2 + each % 2, each) for each in range(1, 400))
    found = changes(None, status(generation=399, history=history, step=3))
    assert len(found) == MAX_TOLD_AT_ONCE + 1
    assert found[-1].time == at(399)
