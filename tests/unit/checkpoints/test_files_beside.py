"""What is kept beside the checkpoints: appears whole or not at all, is read in bounds, and is no checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.checkpoint.s3 import S3Store
from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.errors import InvalidDocument, StoreUnavailable


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, s3_store: S3Store) -> CheckpointStore:
    return s3_store if request.param == "s3" else open_store((tmp_path / "store").as_uri())


def test_written_whole_replaced_and_found_again(store: CheckpointStore) -> None:
    assert store.files("traces") == []
    for content in (b"one", b"another"):
        with store.write_file("traces/a.json") as stream:
            stream.write(content)
    assert store.files("traces") == ["traces/a.json"]
    assert store.files("metrics") == []
    assert store.names() == []
    with store.open_beside("traces/a.json", 7) as read:
        assert read.read() == b"another"


def test_the_old_can_be_told_and_removed(store: CheckpointStore) -> None:
    with store.write_file("traces/a.json") as stream:
        stream.write(b"one")
    assert -5 < store.ages("traces")["traces/a.json"] < 60
    store.delete_file("traces/a.json")
    store.delete_file("traces/a.json")
    assert store.ages("traces") == {}


def test_a_write_that_fails_leaves_the_file_before(store: CheckpointStore) -> None:
    with store.write_file("traces/a.json") as stream:
        stream.write(b"one")
    with pytest.raises(KeyboardInterrupt):
        _write_half(store)
    assert store.files("traces") == ["traces/a.json"]
    with store.open_beside("traces/a.json", 3) as read:
        assert read.read() == b"one"


def _write_half(store: CheckpointStore) -> None:
    with store.write_file("traces/a.json") as stream:
        stream.write(b"half")
        raise KeyboardInterrupt


def test_too_large_or_missing_is_not_read(store: CheckpointStore) -> None:
    with store.write_file("traces/a.json") as stream:
        stream.write(b"four")
    with pytest.raises(InvalidDocument, match="more than 3"):
        store.open_beside("traces/a.json", 3)
    with pytest.raises(InvalidDocument, match=r"b\.json"):
        store.open_beside("traces/b.json", 3)


def test_a_folder_of_somebody_else_is_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    (root / "traces").symlink_to(elsewhere)
    store = open_store(root.as_uri())
    with pytest.raises(StoreUnavailable), store.write_file("traces/a.json") as stream:
        stream.write(b"x")
    assert list(elsewhere.iterdir()) == []
