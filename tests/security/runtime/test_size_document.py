"""Whoever can write a run's size can ask for another one, and for nothing else."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher.decision.sizing import Sizing
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec

SPEC = RunSpec("run", "1", ("python",), WorkersSpec(1, 2, 4))
NOW = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [b"9" * 5000, b"-1", b"1_0", "٣".encode(), b"\xff\xfe", b"3\x00", b"1e2", b"\x1b]0;owned\x07", b"3 # \n" * 50, b""],
)
def test_garbage_is_no_size_and_does_no_harm(tmp_path: Path, text: bytes) -> None:
    run = RunDir(tmp_path / "run")
    run.create(SPEC, "me")
    (run.path / "size").write_bytes(text)
    sizing = Sizing(SPEC)
    note = sizing.look(run.asked_size(), NOW)
    assert (sizing.wanted, sizing.write) == (1 if text == b"-1" else 2, True)
    assert note is not None
    assert note.isprintable()
    assert len(note) < 200


def test_a_huge_one_is_not_read_whole(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create(SPEC, "me")
    with (run.path / "size").open("wb") as stream:
        stream.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDocument) as caught:
            run.read_size()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1000
