"""Owners of a checkpoint store that are not alone: replaced while they stood still, or begun in the same second."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from elastic_runtime.agent.saving import Saving
from elastic_runtime.checkpoint import file as file_module
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream
from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.joint import Joint
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.errors import FenceTaken, InvalidSettings, OwnershipLost, StoreUnavailable
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.script.kept_outputs import KeptFolder
from tests.security.runtime.hostile_checkpoints import NOON, write
from tests.unit.runtime.rank_bench import Agent


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(Agent()) as agent:
        yield agent


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def checkpoints(root: Path, fence: int, owner: str = "a", keep: int = 1) -> Checkpoints:
    return Checkpoints(open_store(root.as_uri()), fence, keep, owner)


@pytest.mark.parametrize("keep", [1, 2])
def test_one_that_stood_still_after_its_last_checkpoint_removes_nothing_of_a_newer_owner(
    root: Path, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = checkpoints(root, 7, keep=keep), checkpoints(root, 8, "b", keep=3)
    names = FileStore.names

    def meanwhile(store: FileStore) -> list[str]:
        monkeypatch.setattr(FileStore, "names", names)
        for step in (20, 21):
            write(new, step)
        return names(store)

    monkeypatch.setattr(FileStore, "names", meanwhile)
    write(old, 30)
    left = {(each.manifest.fence, each.manifest.step) for each in map(new.stored, new.store.names())}
    assert left == {(7, 30), (8, 20), (8, 21)}
    with pytest.raises(OwnershipLost):
        write(old, 31)


def test_a_lock_that_nobody_lets_go_of_has_an_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that is stopped, or of somebody who may write there."""
    monkeypatch.setattr(file_module, "LOCK_TIMEOUT", 0.2)
    write(checkpoints(root, 1), 1)
    handle = os.open(root / ".lock", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    begun = time.monotonic()
    try:
        for act in (checkpoints(root, 2).claim, lambda: write(checkpoints(root, 2), 2)):
            with pytest.raises(StoreUnavailable, match=r"another process has held .*/run/\.lock"):
                act()
    finally:
        os.close(handle)
    assert time.monotonic() - begun < 30
    checkpoints(root, 2).claim()


def test_a_fence_that_everybody_may_change_is_no_fence(
    agent: Agent, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(checkpoints(root, 1), 1)
    (root / ".fence").chmod(0o666)
    for act in (checkpoints(root, 2).claim, lambda: write(checkpoints(root, 2), 2)):
        with pytest.raises(InvalidSettings, match=r"everybody may write to .*/\.fence"):
            act()
    kept(agent, root, "a", "a").in_world(0)
    assert "outputs are not kept: checkpoint: everybody may write to" in caplog.text, "and training goes on"


def test_what_lies_in_the_place_of_a_new_fence_is_removed(root: Path, tmp_path: Path) -> None:
    write(checkpoints(root, 1), 1)
    (tmp_path / "elsewhere").mkdir()
    (root / ".fence-folder" / "more").mkdir(parents=True)
    (root / ".fence-link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(root / ".fence-pipe")
    write(checkpoints(root, 1), 2)
    assert not list(root.glob(".fence-*"))
    assert (tmp_path / "elsewhere").is_dir()


@pytest.mark.parametrize("record", [b"", b"[" * 100_000, b'{"parts":[{"name":"../x","size":1,"sha256":""}]}'])
def test_a_forged_record_of_a_rank_costs_one_checkpoint_and_not_the_training(root: Path, record: bytes) -> None:
    mine = checkpoints(root, 7)
    joint = Joint(mine.new_name(1, NOON), 0, 2)

    def forge(stream: PartStream) -> None:
        [draft] = root.glob(".draft-*")
        (draft / "parts-00001.json").write_bytes(record)
        stream.write(b"model")

    with pytest.raises(StoreUnavailable, match="are not those of a rank"):
        mine.write(1, NOON, {"model.pt": forge}, joint=joint)
    assert mine.store.names() == []
    write(mine, 2)


def kept(agent: Agent, root: Path, name: str, owner: str, fence: int = 7) -> KeptFolder:
    folder = root.parent / name
    folder.mkdir()
    return KeptFolder(folder, CheckpointSpec(root.as_uri(), fence=fence, owner=owner), agent.link)


def test_outputs_of_two_runs_with_one_fence_do_not_mix(
    agent: Agent, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = kept(agent, root, "a", "a.1"), kept(agent, root, "b", "b.2")
    one.in_world(0)
    (one.folder / "log.csv").write_text("one")
    one.upload()
    other.in_world(0)
    assert not list(other.folder.iterdir()), "nor does it go on from what is another run's"
    for content in ("other", "the other"):
        (other.folder / "log.csv").write_text(content)
        (other.folder / "more.csv").write_text(content)
        other.upload()
    assert {each.name: each.read_text() for each in (root / "outputs-7").iterdir()} == {"log.csv": "one"}
    [told] = [each for each in caplog.messages if "outputs are not kept" in each]
    assert "another run, a.1, which began in the same second" in told
    (one.folder / "log.csv").write_text("one more")
    one.upload()
    assert (root / "outputs-7" / "log.csv").read_text() == "one more"


def test_the_run_of_a_later_owner_keeps_its_own(agent: Agent, root: Path) -> None:
    one, later, late = kept(agent, root, "a", "a"), kept(agent, root, "b", "b", 8), kept(agent, root, "c", "a")
    for each in (one, later, late):
        each.in_world(0)
        (each.folder / "log.csv").write_text(each.folder.name)
        each.upload()
    assert (root / "outputs-8" / "log.csv").read_text() == "b"
    assert (root / "outputs-7" / "log.csv").read_text() == "c", "of the run that has the fence 7"


def test_traces_of_two_runs_with_one_fence_do_not_mix(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scratch").mkdir(mode=0o700)

    def save(owner: str) -> Saving:
        spec = CheckpointSpec(root.as_uri(), fence=7, owner=owner)
        made = Saving(ObserveSpec(timeline=True), spec, tmp_path / "scratch", {}, list)
        (made.folder / "timeline.host.0.json").write_text('[{"name": "of ' + owner + '"}]')
        (made.folder / "timeline.host.0.begin").write_text('{"time": 1, "size": 2}')
        asyncio.run(made.save())
        return made

    save("a.1")
    pieces = {each.name: each.read_bytes() for each in (root / "traces").iterdir()}
    assert len(pieces) == 1
    refused = save("b.2")
    asyncio.run(refused.save())
    assert {each.name: each.read_bytes() for each in (root / "traces").iterdir()} == pieces
    assert len([each for each in caplog.messages if "traces are not saved: " in each]) == 1
    assert asyncio.run(refused.merge(())) is None
    spec = CheckpointSpec(root.as_uri(), fence=7, owner="b.2")
    idle = Saving(ObserveSpec(timeline=True), spec, tmp_path / "scratch", {}, list)
    assert asyncio.run(idle.merge(())) is None, "nor does a worker that has saved nothing merge the other's"
    assert [each.name for each in (root / "traces").iterdir()] == list(pieces)


def test_a_claim_for_files_is_refused_for_the_same_fence_alone(root: Path) -> None:
    store = open_store(root.as_uri())
    store.claim_beside(7, "")
    assert not root.exists(), "nobody is known by no name"
    store.claim_beside(7, "a")
    store.claim_beside(7, "a")
    with pytest.raises(FenceTaken):
        store.claim_beside(7, "b")
    store.claim_beside(8, "b")
    store.claim_beside(7, "a")
    with pytest.raises(OwnershipLost):
        store.claim(7, "a")
