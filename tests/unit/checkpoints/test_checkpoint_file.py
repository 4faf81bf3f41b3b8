"""The file store: torn and altered files, crashed writers, an absent disk, URIs. A full one: test_full_disk."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from elastic_runtime.checkpoint import file, open_store, rights, validate_store_uri
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, StoredCheckpoint
from elastic_runtime.errors import InvalidSettings, StoreUnavailable

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)


def write(checkpoints: Checkpoints, step: int) -> StoredCheckpoint:
    def model(stream: PartStream) -> None:
        stream.write(f"model of step {step}".encode())

    return checkpoints.write(step, NOON, {"model.pt": model})


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []

    def read(stored: StoredCheckpoint) -> None:
        stored.open_part("model.pt").close()

    found = checkpoints.newest(read, lambda uri, reason: skipped.append((uri, reason)))
    return (None if found is None else found[0].manifest.step), skipped


def test_a_folder_in_which_none_can_be_made_is_one_sentence() -> None:
    nowhere = Checkpoints(open_store("file:///proc/nowhere/runs/run"), fence=1, keep=2)
    for ask in (nowhere.claim, lambda: write(nowhere, 1)):
        with pytest.raises(StoreUnavailable) as refused:
            ask()
        assert str(refused.value) == "/proc/nowhere/runs/run: No such file or directory"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_content(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize("file", ["model.pt", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, alter, other_content, Path.unlink])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    checkpoints: Checkpoints, folder: Path, file: str, damage: Callable[[Path], None]
) -> None:
    write(checkpoints, 1)
    broken = write(checkpoints, 2)
    damage(folder / broken.name / file)
    step, skipped = newest(checkpoints)
    assert step == 1
    assert [uri for uri, _ in skipped] == [broken.uri]
    assert any(word in skipped[0][1] for word in ("torn", "altered", "bytes", "cannot be read"))


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_a_file_system_that_does_not_answer_has_lost_nothing(
    checkpoints: Checkpoints, folder: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(checkpoints, 1)

    def away(name: str, within: int) -> int:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(rights, "open_file", away)
        with pytest.raises(StoreUnavailable, match=f"manifest.json: {os.strerror(error)}"):
            newest(checkpoints)
    assert newest(checkpoints) == (1, [])


def test_a_checkpoint_whose_folder_is_gone_for_a_moment_is_not_removed_when_it_is_back(
    checkpoints: Checkpoints, folder: Path
) -> None:
    stored = write(checkpoints, 1)
    (folder / stored.name).rename(folder / "away")
    checkpoints.store.names = lambda: [stored.name]  # type: ignore[method-assign]  # listed before it went away
    assert newest(checkpoints)[0] is None
    del checkpoints.store.names
    (folder / "away").rename(folder / stored.name)
    checkpoints.retire(write(checkpoints, 2))
    assert stored.name in checkpoints.store.names()


def test_all_damaged_is_as_none_and_each_is_named(checkpoints: Checkpoints, folder: Path) -> None:
    uris = set()
    for step in (1, 2):
        stored = write(checkpoints, step)
        truncate(folder / stored.name / "model.pt")
        uris.add(stored.uri)
    step_found, skipped = newest(checkpoints)
    assert step_found is None
    assert {uri for uri, _ in skipped} == uris


def test_a_writer_that_was_killed_leaves_nothing_to_find_and_is_swept_up(
    checkpoints: Checkpoints, folder: Path
) -> None:
    killed = f"""
import os, signal
from datetime import UTC, datetime
from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
def write(stream):
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
Checkpoints(open_store({folder.as_uri()!r}), 1, 2).write(7, datetime.now(UTC), {{"model.pt": write}})
"""
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert [path.name[:7] for path in folder.glob(".draft-*")] == [".draft-"]
    assert newest(checkpoints) == (None, [])
    write(checkpoints, 1)
    assert list(folder.glob(".draft-*")) == []


def test_a_writer_that_is_at_work_is_not_swept_up(folder: Path) -> None:
    store = open_store(folder.as_uri())
    with store.begin("ckpt-f1-s1-t1-aa") as one:
        with one.part("model.pt") as stream:
            stream.write(b"one")
        with store.begin("ckpt-f1-s2-t1-bb") as two, two.part("model.pt") as stream:
            stream.write(b"two")
        one.publish(b"manifest", fence=1)
    assert store.names() == ["ckpt-f1-s1-t1-aa"]
    assert sorted(path.name for path in (folder / "ckpt-f1-s1-t1-aa").iterdir()) == ["manifest.json", "model.pt"]


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ESTALE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("call", ["open", "flock"])
def test_a_writer_of_which_nothing_can_be_known_is_not_swept_up(
    folder: Path, error: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(folder.as_uri())
    opened, locked = os.open, fcntl.flock

    def open_it(path: str | Path, flags: int, *mode: int, **within: int) -> int:
        if str(path).endswith("/.alive") and not flags & os.O_CREAT and call == "open":
            raise OSError(error, os.strerror(error))
        return opened(path, flags, *mode, **within)

    def lock_it(handle: int, how: int) -> None:
        if how & fcntl.LOCK_SH and call == "flock":
            raise OSError(error, os.strerror(error))
        locked(handle, how)

    with store.begin("ckpt-f1-s1-t1-aa") as one:
        monkeypatch.setattr(os, "open", open_it)
        monkeypatch.setattr(fcntl, "flock", lock_it)
        with store.begin("ckpt-f1-s2-t1-bb"):
            pass
        monkeypatch.undo()
        one.publish(b"manifest", fence=1)
    assert store.names() == ["ckpt-f1-s1-t1-aa"]


def test_a_joint_checkpoint_in_a_file_system_that_does_not_answer_is_unavailable(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(path: Path) -> bool:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "exists", away)
    with pytest.raises(StoreUnavailable):
        checkpoints.store.join("ckpt-f1-s1-t1-aa")


def test_what_cannot_be_made_durable_is_not_published(
    checkpoints: Checkpoints, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.claim()
    sync = file._sync_folder

    def fails(path: Path) -> None:
        if path == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(file, "_sync_folder", fails)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            write(checkpoints, 1)
    assert checkpoints.store.names() == []
    assert sorted(path.name for path in folder.iterdir()) == [".fence", ".lock"]
    write(checkpoints, 2)
    assert newest(checkpoints) == (2, [])


def test_files_that_are_none_of_ours_are_left_alone(checkpoints: Checkpoints, folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for step in (1, 2, 3):
        write(checkpoints, step)
    assert newest(checkpoints) == (3, [])
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_store_that_cannot_be_written_to_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checkpoints = Checkpoints(open_store((tmp_path / "file" / "run").as_uri()), fence=1, keep=1)
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        checkpoints.claim()
    with pytest.raises(StoreUnavailable, match="Not a directory"):
        write(checkpoints, 1)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        (
            "ftp://host/run",
            "no checkpoint store handles 'ftp://host/run'.*install the package that brings",
        ),
        ("s3a://bucket/run", r"no checkpoint store handles 's3a://bucket/run'\. Write s3://bucket/prefix"),
        ("/just/a/path", "no checkpoint store handles '/just/a/path'"),
        ("", "no checkpoint store handles ''"),
        ("file://relative/path", "not the URI of a folder on this machine"),
        ("file:///", "not the URI of a folder on this machine"),
        ("file:///a?b=c", "has a query or a fragment"),
        ("file://[/a", "is not a URI"),
    ],
)
def test_a_uri_that_no_store_knows_is_refused_with_the_remedy(uri: str, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=rf"^checkpoint: .*{problem}") as raised:
        validate_store_uri(uri)
    assert raised.value.field == "checkpoint"


def test_a_uri_with_blanks_and_a_slash_at_its_end_is_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    uri = folder.as_uri() + "/"
    validate_store_uri(uri)
    stored = write(Checkpoints(open_store(uri), fence=1, keep=1), 1)
    assert stored.uri == f"{folder.as_uri()}/{stored.name}"
    assert (folder / stored.name / "manifest.json").is_file()


def test_checking_a_uri_imports_nothing_heavy() -> None:
    program = "import sys, elastic_runtime.checkpoint as c; c.validate_store_uri('file:///a'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert {"torch", "horovod", "cattrs", "numpy", "boto3"}.isdisjoint(done.stdout.split())
