"""Samples of Horovod's timeline, from the rank that begins them to the merged file."""

from __future__ import annotations

import asyncio
import json
import os
import queue
from pathlib import Path

import horovod
import pytest

from elastic_runtime.agent.saving import Saving
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.engines.horovod import rank
from elastic_runtime.engines.horovod.rank import MOST_SAMPLES, Timelines
from elastic_runtime.run.observe import TIMELINE_SAMPLES, TRACES, ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.tracing.timeline import Piece
from elastic_runtime.tracing.traces import has_pieces, merge_stored
from tests.unit.runtime.linked_ranks import SOON
from tests.unit.runtime.test_timeline import REDUCED, SECOND, TENSOR, merged, spans


class Calls:
    """Horovod's, of a rank that is alone."""

    def __init__(self) -> None:
        self.log = queue.SimpleQueue[str]()

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1

    def start_timeline(self, path: str) -> None:
        Path(path).write_bytes(TENSOR + REDUCED)
        self.log.put(Path(path).name)

    def stop_timeline(self) -> None:
        self.log.put("stop")

    def take(self, count: int) -> list[str]:
        return [self.log.get(timeout=SOON) for _ in range(count)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    monkeypatch.setattr(horovod, "TIMELINE_SLEEPS", True, raising=False)
    monkeypatch.setattr(rank, "LOOK", 0.001)
    for name, value in {
        "HOROVOD_TIMELINE": "", TIMELINE_SAMPLES: str(tmp_path / "timeline.json"), TRACES: str(tmp_path),
        "HOROVOD_HOSTNAME": "a",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return Calls()


def names(world: int, *samples: int) -> list[str]:
    return [f"timeline.a.{MOST_SAMPLES * world + sample}.json" for sample in samples]


def test_a_world_has_samples_until_it_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: Calls) -> None:
    monkeypatch.setattr(rank, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(rank, "FIRST_PAUSE", 0.001)
    timelines = Timelines(calls)
    assert os.environ["HOROVOD_TIMELINE"] == "DYNAMIC"
    timelines.begin()
    first, second, third = names(1, 0, 1, 2)
    assert calls.take(5) == [first, "stop", second, "stop", third]
    timelines.end()
    begins = [json.loads((tmp_path / each).with_suffix(".begin").read_text()) for each in (first, second, third)]
    assert begins[0] == begins[1] == begins[2]


def test_a_sample_ends_when_it_is_large(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> None:
    monkeypatch.setattr(rank, "SAMPLE", 10)
    timelines = Timelines(calls)
    timelines.begin()
    assert calls.take(2) == [*names(1, 0), "stop"]
    timelines.end()
    timelines.begin()
    assert calls.take(1) == names(2, 0)
    timelines.end()


@pytest.mark.parametrize("own", [True, False])
def test_there_are_none_beside_a_timeline_of_the_users_or_with_a_writer_that_takes_a_core(
    monkeypatch: pytest.MonkeyPatch, calls: Calls, own: bool
) -> None:
    if own:
        monkeypatch.setenv("HOROVOD_TIMELINE", "DYNAMIC")
    else:
        monkeypatch.delattr(horovod, "TIMELINE_SLEEPS")
    Timelines(calls).begin()
    assert calls.log.empty()


def test_a_sample_is_saved_once_the_next_has_begun(tmp_path: Path) -> None:
    spec = CheckpointSpec((tmp_path / "store").as_uri())
    saving = Saving(ObserveSpec(timeline=True, sampled=True), spec, tmp_path, {}, lambda: ["a"])
    assert saving.environment()[TIMELINE_SAMPLES].endswith("timeline.json")
    assert "HOROVOD_TIMELINE" not in saving.environment()
    store = open_store(spec.uri)
    assert asyncio.run(saving.merge([])) is None
    for name in names(1, 8, 9, 10):
        (saving.folder / name).write_bytes(TENSOR + REDUCED)
        (saving.folder / name).with_suffix(".begin").write_text('{"time": 1, "size": 2}')
        asyncio.run(saving.save())
    assert len(store.files("traces")) == 2
    assert sorted(each.suffix for each in saving.folder.iterdir()) == [".begin", ".json"]
    assert has_pieces(store, spec.fence)
    done = merge_stored(store, spec.fence, [])
    assert done is not None
    assert done.left_out == 0


def test_samples_of_a_world_are_one_world_whose_tensors_keep_their_numbers() -> None:
    begun = b'{"ph": "B", "name": "ALLREDUCE", "ts": 70, "pid": 1},'
    other = TENSOR.replace(b"allreduce.w", b"allreduce.v")
    late = other + TENSOR[2:].replace(b'"pid": 1', b'"pid": 2') + b'{"ph": "E", "ts": 60, "pid": 2},' + begun
    done, events = merged(Piece(SECOND, 2, [TENSOR, REDUCED]), Piece(SECOND, 2, [late]), Piece(9 * SECOND, 2, [TENSOR]))
    assert done.left_out == 0, "an end without its begin is that of an operation before the sample"
    assert [each[1:] for each in spans(events)] == [(0.0, 70.0), (8.0 * SECOND, 0.0)]
    tensors = {each["pid"]: each["args"]["name"] for each in events if each.get("name") == "process_name"}
    shown = [
        "run",
        *(f"world {each} of 2 ranks · allreduce.{tensor}" for each, tensor in ((1, "v"), (1, "w"), (2, "w"))),
    ]
    assert sorted(tensors.values()) == shown
    operations = [(each["ph"], each["ts"], tensors[each["pid"]][-1]) for each in events if each["ph"] in "BE"]
    assert operations == [("B", 5.0, "w"), ("E", 9.0, "w"), ("B", 70.0, "v"), ("E", 70.0, "v")]
