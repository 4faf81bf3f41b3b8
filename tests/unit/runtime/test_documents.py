"""Documents to JSON and back, strictly."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from elastic_runtime.documents import from_json, from_plain, time_to_text, to_json, to_plain, write_atomically
from elastic_runtime.errors import FailureKind, InvalidDocument, InvalidSettings
from elastic_runtime.protocol.rank_link import Metrics
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import CheckpointSpec, RecoveryMode, RecoverySpec, RunSpec, Timing, WorkersSpec
from elastic_runtime.run.status import (
    Checkpoint,
    Event,
    EventKind,
    Phase,
    Series,
    SizeAsked,
    Status,
    WorkerState,
    WorkerStatus,
    World,
)
from elastic_runtime.run.status_figures import GpuFigures, Hardware

NOON = datetime(2026, 1, 2, 12, 0, 0, 123000, UTC)
SPEC = RunSpec(
    "run",
    "uid",
    ("python", "train.py"),
    WorkersSpec(1, 2, 3),
    RecoverySpec(RecoveryMode.FIXED, reset_limit=3),
    CheckpointSpec("file:///there"),
    {"A": "b"},
    "/training",
    False,
    Timing(heartbeat=2),
)
STATUS = Status(
    *("run", "uid", Phase.FAILED, "why", NOON),
    failure=FailureKind.EARLY_EXIT,
    metrics={"loss": 0.5},
    series={"loss": Series(2, (1, 3), (9.0, 9.5), (1.0, 0.5))},
    asked=(SizeAsked(NOON, 2),),
    workers=(WorkerStatus("worker-0", "node", WorkerState.LOST, NOON, 1, (0,), (7, 8), gpus=(GpuFigures(0, "A"),)),),
    events=(Event(NOON, EventKind.NOTICE, "soon", "worker-0", 3),),
    checkpoint=Checkpoint("file:///there/3", 3, NOON),
    history=(World(NOON, 2, 1), World(NOON, 0, 1, 3)),
    worker_seconds={"worker-0": 1.5},
    hardware={"worker-0": Hardware((9.0, 9.5), {"cpu_percent": (None, 1.5)})},
    lost_seconds={"starting": 1.5},
)


@pytest.mark.parametrize("document", [SPEC, STATUS, ReclaimNotice("aws", NOON)])
def test_comes_back_as_it_went(document: object) -> None:
    assert from_json(type(document), to_json(document)) == document
    assert "\n" not in to_json(document)
    assert from_plain(type(document), to_plain(document)) == document


def test_what_is_plain_is_plain() -> None:
    assert type(to_plain(STATUS)["phase"]) is str
    assert type(to_plain(STATUS)["updated"]) is str


def test_times_are_utc_with_milliseconds() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert time_to_text(there) == "2026-01-02T12:00:00.123Z"
    notice = from_json(ReclaimNotice, '{"source":"aws","deadline":"2026-01-02T17:30:00.123+05:30"}')
    assert (notice.deadline, notice.deadline.tzinfo) == (NOON, UTC)


@dataclass(frozen=True, slots=True)
class Odd:
    number: int
    share: float = 0.0
    word: str = ""
    flag: bool = False
    inner: tuple[World, ...] = field(default=())
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    gaps: tuple[float | None, ...] = ()


@pytest.mark.parametrize(
    ("plain", "path"),
    [
        ({}, "number"),
        ({"number": "3"}, "number"),
        ({"number": True}, "number"),
        ({"number": 3.0}, "number"),
        ({"number": 3, "share": "0.5"}, "share"),
        ({"number": 3, "share": True}, "share"),
        ({"number": 3, "word": 7}, "word"),
        ({"number": 3, "flag": 1}, "flag"),
        ({"number": 3, "inner": [{"time": "now", "size": 1, "generation": 1}]}, "inner[0].time"),
        ({"number": 3, "inner": 7}, "inner"),
        ({"number": 3, "steps": [1, True]}, "steps"),
        ({"number": 3, "steps": [1, 2.0]}, "steps"),
        ({"number": 3, "steps": "12"}, "steps"),
        ({"number": 3, "values": [0.5, "1"]}, "values"),
        ({"number": 3, "values": 1}, "values"),
        ({"number": 3, "values": [1.0, float("inf")]}, "values"),
        ({"number": 3, "values": [None]}, "values"),
        ({"number": 3, "gaps": [None, "1"]}, "gaps"),
        ({"number": 3, "gaps": [None, float("nan")]}, "gaps"),
        ({"number": 3, "inner": [{"time": "2026-01-02T12:00:00", "size": 1, "generation": 1}]}, "no time zone"),
    ],
)
def test_nothing_is_coerced_and_the_path_is_named(plain: object, path: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        from_plain(Odd, plain)
    assert path in str(refused.value)


@pytest.mark.parametrize("mode", ["asleep", 3, None])
def test_an_enum_takes_its_own_values_alone(mode: object) -> None:
    with pytest.raises(InvalidDocument, match="mode"):
        from_plain(RunSpec, {**to_plain(SPEC), "recovery": {"mode": mode}})


def test_what_is_wrong_is_said_at_once_and_in_words() -> None:
    with pytest.raises(InvalidDocument) as refused:
        from_plain(Odd, {"number": "3", "share": None})
    assert str(refused.value) == "not a Odd: str, not int @ $.number; NoneType, not a number @ $.share"


def test_a_whole_number_is_a_number() -> None:
    assert from_plain(Odd, {"number": 3, "share": 1}).share == 1.0
    assert [type(value) for value in from_plain(Odd, {"number": 3, "values": [1, 0.5]}).values] == [float, float]


def test_an_unknown_key_is_passed_over() -> None:
    assert from_plain(Odd, {"number": 3, "colour": "red"}) == Odd(3)


def test_a_value_that_cannot_work_is_a_setting_not_a_document() -> None:
    with pytest.raises(InvalidSettings, match=r"workers\.start") as refused:
        from_plain(RunSpec, {**to_plain(SPEC), "workers": {"minimum": 3, "start": 2, "maximum": 3}})
    assert refused.value.field == "workers.min"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"'])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument):
        from_json(RunSpec, text)


def test_numbers_that_json_lacks_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_json(replace(STATUS, metrics={"loss": float("nan")}))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 400])
def test_numbers_that_could_not_be_written_again_are_not_read(number: str) -> None:
    """A rank may send them; in the status they would keep the launcher from writing it."""
    with pytest.raises(InvalidDocument):
        from_json(Metrics, f'{{"values": {{"loss": {number}}}, "step": 1}}')


class TestWriting:
    def test_replaces_the_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "status.json"
        write_atomically(path, "old")
        with path.open() as reader:
            write_atomically(path, "newer")
            assert (reader.read(), path.read_text()) == ("old", "newer")

    def test_is_for_the_owner_alone(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "key", "secret")
        assert stat.S_IMODE(os.stat(tmp_path / "key").st_mode) == 0o600

    def test_leaves_the_old_and_nothing_else_when_it_fails(self, tmp_path: Path) -> None:
        path = tmp_path / "status.json"
        write_atomically(path, "old")
        with pytest.raises(UnicodeEncodeError):
            write_atomically(path, "\ud800")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]
