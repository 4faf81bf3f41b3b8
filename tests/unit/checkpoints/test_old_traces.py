"""What earlier tries have left beside the checkpoints goes in time, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.tracing.traces import MOST_EVENTS, OWNERS, retire


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return open_store((tmp_path / "run").as_uri())


def keep(store: CheckpointStore, *names: str) -> None:
    for name in names:
        with store.write_file(name) as stream:
            stream.write(b"x")


def left(store: CheckpointStore) -> set[str]:
    return {*store.files("traces"), *store.files("tensorboard")}


def test_of_the_newest_owners_all_stays(store: CheckpointStore) -> None:
    names = [f"traces/profile-{fence}-rank-0-host.json.gz" for fence in range(1, OWNERS + 3)]
    keep(store, *names)
    retire(store, OWNERS + 2)
    assert left(store) == set(names[2:])
    retire(store, OWNERS + 1)  # A try that was replaced, and does not know it.
    assert left(store) == set(names[2:])


def test_pieces_of_a_merged_timeline_go_with_the_next_owner(store: CheckpointStore) -> None:
    merged = ["traces/piece-1-0000000000000001-2-host.gz", "traces/timeline-1.json.gz"]
    torn = ["traces/piece-2-0000000000000001-2-host.gz"]
    own = ["traces/piece-3-0000000000000001-2-host.gz", "traces/timeline-3.json.gz"]
    keep(store, *merged, *torn, *own)
    retire(store, 3)
    assert left(store) == {merged[1], *torn, *own}


def test_old_events_go_and_what_others_have_put_there_stays(store: CheckpointStore, tmp_path: Path) -> None:
    events = [f"tensorboard/events.out.tfevents.{number}.host" for number in range(MOST_EVENTS + 2)]
    others = ["traces/notes-1.txt", "traces/piece-x.gz", "tensorboard/projector.pbtxt"]
    keep(store, *events, *others)
    for age, name in enumerate(reversed(events)):
        os.utime(tmp_path / "run" / name, (1e9 - age, 1e9 - age))
    retire(store, 5)
    assert left(store) == {*events[2:], *others}
