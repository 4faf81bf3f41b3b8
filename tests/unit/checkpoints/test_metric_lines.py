"""What rank 0 reports, as JSON lines beside the checkpoints."""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.errors import InvalidSettings, StoreUnavailable
from elastic_runtime.protocol.rank_link import BatchSize, Metrics, Progress
from elastic_runtime.training.checkpointing import metric_lines
from elastic_runtime.training.checkpointing.metric_lines import MetricLines

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def lines(store: CheckpointStore) -> list[dict[str, Any]]:
    found = []
    for name in sorted(store.files("metrics")):
        with store.open_beside(name, 10**6) as stream:
            found += [json.loads(line) for line in stream.read().decode().splitlines()]
    return found


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return open_store(f"file://{tmp_path}/run")


def test_each_line_has_time_and_step(store: CheckpointStore) -> None:
    kept = MetricLines(store, 3, lambda: NOON)
    for message in (BatchSize(64.0), Progress(5), Metrics({"loss": 0.5}), Metrics({"accuracy": 1.0}, 4)):
        kept.add(message)
    kept.upload()
    time = "2026-01-02T12:00:00.000Z"
    assert lines(store) == [
        {"time": time, "step": None, "samples": 64.0},
        {"time": time, "step": 5},
        {"time": time, "step": 5, "values": {"loss": 0.5}},
        {"time": time, "step": 4, "values": {"accuracy": 1.0}},
    ]


def test_a_signals_handler_adds_a_line_in_the_middle_of_another(store: CheckpointStore) -> None:
    kept = MetricLines(store, 3, lambda: NOON)

    def interrupted() -> None:
        with kept._lock:
            kept.add(Progress(5))

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive()
    kept.upload()
    assert [line["step"] for line in lines(store)] == [5]


def test_no_file_is_written_twice_whoever_owns_the_run(store: CheckpointStore) -> None:
    for fence in (1, 2, 2):
        kept = MetricLines(store, fence, lambda: NOON)
        for step in (1, 2):
            kept.add(Progress(step))
            kept.upload()
            kept.upload()
    assert len(store.files("metrics")) == 6
    assert len(lines(store)) == 6


class Away(FileStore):
    """Does not take files, for a while."""

    error: Exception | None = StoreUnavailable("away")

    def write_file(self, name: str) -> AbstractContextManager[BinaryIO]:
        if self.error is not None:
            raise self.error
        return super().write_file(name)


def test_what_a_store_did_not_take_it_gets_the_next_time(store: CheckpointStore, tmp_path: Path) -> None:
    away = Away(store.uri)
    kept = MetricLines(away, 1)
    kept.add(Progress(1))
    kept.upload()
    kept.add(Progress(2))
    away.error = None
    kept.upload()
    assert [line["step"] for line in lines(store)] == [1, 2]


def test_a_store_of_checkpoints_alone_is_asked_once(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    away = Away(store.uri)
    away.error = InvalidSettings("checkpoint", "keeps checkpoints", "use another")
    kept = MetricLines(away, 1)
    for step in range(3):
        kept.add(Progress(step))
        kept.upload()
    assert len(caplog.records) == 1


def test_memory_is_bounded_and_what_is_left_out_is_counted(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_lines, "ROOM", 1000)
    kept = MetricLines(store, 1)
    for step in range(100):
        kept.add(Progress(step))
    kept.upload()
    *told, last = lines(store)
    assert last == {"left_out": 100 - len(told)}
    kept.add(Progress(100))
    kept.upload()
    assert lines(store)[-1]["step"] == 100


def test_of_too_many_files_the_oldest_go(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_lines, "MOST_FILES", 4)
    old = [f"metrics/00000002-20260101T120000-{'ab' * 4}-{number:04d}.jsonl" for number in range(4)]
    others = ["metrics/mine.jsonl", "metrics/00000001-20260101T120000-cafecafe-0001.csv"]
    for name in old + others:
        with store.write_file(name) as stream:
            stream.write(b"{}\n")
    kept = MetricLines(store, 10, lambda: NOON)
    for step in range(3):
        kept.add(Progress(step))
        kept.upload()
        assert set(old) <= set(store.files("metrics")) or step  # Not with the first, which may be written in haste.
    left = set(store.files("metrics"))
    assert left > {*others, *old[2:]}
    assert not left & set(old[:2])
    assert len(left) == 4 + len(others) + 1


def test_a_store_that_does_not_delete_costs_nothing(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> None:
        raise StoreUnavailable("access denied")

    monkeypatch.setattr(metric_lines, "MOST_FILES", 1)
    monkeypatch.setattr(store, "delete_file", refused)
    kept = MetricLines(store, 1, lambda: NOON)
    for step in range(3):
        kept.add(Progress(step))
        kept.upload()
    assert len(store.files("metrics")) == 3
