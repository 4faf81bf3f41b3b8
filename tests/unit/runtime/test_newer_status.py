"""A status of a newer launcher, with members of enums that this version does not know, is read all the same."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.errors import FailureKind, InvalidDocument
from elastic_runtime.run.headline import Headline, headline
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Event, EventKind, Phase, Status, WorkerState, WorkerStatus

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
STATUS = Status(
    *("run", "uid", Phase.RUNNING, "2 ranks train", NOON),
    started=NOON,
    step=7,
    workers=(WorkerStatus("w", "n", WorkerState.TRAINING, NOON, 1), WorkerStatus("x", "n", WorkerState.LEFT, NOON, 1)),
    events=(Event(NOON, EventKind.STARTED, "world 1"), Event(NOON, EventKind.WARNING, "mind the step")),
)
FAILED = replace(STATUS, phase=Phase.FAILED, failure=FailureKind.RANK_FAILED, finished=NOON)
NEW = st.text(st.characters(codec="utf-8"), max_size=20)


def enums(kind: Any) -> set[type[StrEnum]]:
    """All that are in documents of that type, at any depth."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {kind}
    inner = get_type_hints(kind).values() if is_dataclass(kind) else get_args(kind)
    return {each for part in inner for each in enums(part)}


def test_each_enum_that_a_status_has_can_grow() -> None:
    found = enums(Status) | enums(Headline)
    assert found >= {Phase, FailureKind, WorkerState, EventKind}
    for kind in found:
        assert "UNKNOWN" in kind.__members__, f"an older provider could not read a status with a new {kind.__name__}"


@given(of_event=NEW, of_worker=NEW)
def test_events_and_workers_of_unknown_kinds_are_told_with_all_else(of_event: str, of_worker: str) -> None:
    plain = to_plain(STATUS)
    plain["events"][1]["kind"], plain["workers"][1]["state"] = of_event, of_worker
    read = from_plain(Status, plain)
    kind = EventKind(of_event) if of_event in list(EventKind) else EventKind.UNKNOWN
    state = WorkerState(of_worker) if of_worker in list(WorkerState) else WorkerState.UNKNOWN
    events = (STATUS.events[0], replace(STATUS.events[1], kind=kind))
    workers = (STATUS.workers[0], replace(STATUS.workers[1], state=state))
    assert read == replace(STATUS, events=events, workers=workers)
    assert from_plain(Status, to_plain(read)) == read


@given(phase=NEW.filter(lambda text: text not in list(Phase)), failure=st.none() | NEW, finished=st.booleans())
def test_a_run_in_an_unknown_phase_goes_on_until_it_is_over_and_has_not_succeeded(
    *, phase: str, failure: str | None, finished: bool
) -> None:
    told = FAILED if finished else STATUS
    for document in (told, headline(told)):
        read = from_plain(type(document), to_plain(document) | {"phase": phase, "failure": failure})
        assert read.phase is (Phase.FAILED if finished else Phase.UNKNOWN)
        assert read.phase.final is finished
        if finished or failure is not None:
            known = failure is not None and failure in list(FailureKind)
            assert read.failure is (FailureKind(failure) if known else FailureKind.UNKNOWN)
        assert (read.step, read.reason) == (document.step, document.reason)


@pytest.mark.parametrize("kind", [3, None, ["started"]])
def test_what_is_no_text_is_no_kind(kind: object) -> None:
    plain = to_plain(STATUS)
    plain["events"][0]["kind"] = kind
    with pytest.raises(InvalidDocument, match="kind"):
        from_plain(Status, plain)


def test_a_spec_with_an_unknown_member_is_refused() -> None:
    """Its run would be another one than somebody has asked for."""
    plain = to_plain(RunSpec("run", "uid", ("true",)))
    plain["recovery"]["mode"] = "quantum"
    with pytest.raises(InvalidDocument, match="mode"):
        from_plain(RunSpec, plain)
