"""Rank 0's folder of outputs: what of it is kept, by whom, and who goes on from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.protocol.rank_link import OutputsSaved
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.script import kept_outputs as module
from elastic_runtime.script.kept_outputs import KeptFolder
from elastic_runtime.script.leaving import Notice
from tests.unit.runtime.rank_bench import Agent


class Ranks:
    """Of a run, each with a folder of its own, and one store."""

    def __init__(self, base: Path, agent: Agent) -> None:
        self.base, self.agent = base, agent
        self.store = base / "store"

    def rank(self, name: str, fence: int = 7) -> KeptFolder:
        folder = self.base / name
        folder.mkdir()
        return KeptFolder(folder, CheckpointSpec(self.store.as_uri(), fence=fence), self.agent.link)

    def stored(self, fence: int = 7) -> dict[str, str]:
        folder = self.store / f"outputs-{fence}"
        return {each.name: each.read_text() for each in folder.iterdir()} if folder.exists() else {}

    def told(self) -> list[tuple[int, int]]:
        return [(each.files, each.bytes) for each in self.agent.heard() if isinstance(each, OutputsSaved)]


@pytest.fixture
def ranks(tmp_path: Path, agent: Agent) -> Ranks:
    return Ranks(tmp_path, agent)


class TestWhatIsKept:
    def test_of_the_first_rank_alone(self, ranks: Ranks) -> None:
        for number in (0, 1):
            kept = ranks.rank(f"rank-{number}")
            kept.in_world(number)
            (kept.folder / "log.csv").write_text(f"of {number}")
            kept.upload()
        assert ranks.stored() == {"log.csv": "of 0"}
        assert ranks.told() == [(1, 4)]

    def test_what_is_new_and_no_more_what_is_gone(self, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
        kept = ranks.rank("a")
        kept.in_world(0)
        (kept.folder / "plots" / "loss").mkdir(parents=True)
        (kept.folder / "plots" / "loss" / "by-step.svg").write_text("one")
        (kept.folder / "log.csv").write_text("1")
        kept.upload()
        written: list[str] = []
        write = FileStore.write_file
        monkeypatch.setattr(FileStore, "write_file", lambda store, name: written.append(name) or write(store, name))
        kept.upload()
        assert (written, ranks.stored()) == ([], {"log.csv": "1", "plots--loss--by-step.svg": "one"})
        (kept.folder / "log.csv").write_text("1 2")
        (kept.folder / "plots" / "loss" / "by-step.svg").unlink()
        kept.upload()
        assert (written, ranks.stored()) == (["outputs-7/log.csv"], {"log.csv": "1 2"})
        assert ranks.told() == [(2, 4), (1, 3)]

    def test_before_its_worker_is_taken(self, ranks: Ranks) -> None:
        kept = ranks.rank("a")
        kept.in_world(0)
        (kept.folder / "log.csv").write_text("1")
        kept.noticed(Notice(utc_now(), ("worker-1",), mine=False, everyone=False))
        assert ranks.stored() == {}
        kept.noticed(Notice(utc_now(), ("worker-0",), mine=True, everyone=False))
        assert ranks.stored() == {"log.csv": "1"}

    def test_after_the_handover_where_there_is_one(self, ranks: Ranks) -> None:
        kept = ranks.rank("a")
        kept._link.writes_checkpoints = True
        kept.in_world(0)
        (kept.folder / "log.csv").write_text("1")
        kept.noticed(Notice(utc_now(), ("worker-0",), mine=True, everyone=True))
        assert ranks.stored() == {}
        kept.upload()
        assert ranks.stored() == {"log.csv": "1"}

    @pytest.mark.parametrize("name", ["a b", "a--b", "ä", "a-", "-a", "x" * 201, "1/2/3/4/5/6"])
    def test_not_under_names_that_could_be_taken_for_others(
        self, ranks: Ranks, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        kept = ranks.rank("a")
        kept.in_world(0)
        (kept.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (kept.folder / name).write_text("x")
        (kept.folder / ".hidden").write_text("x")
        (kept.folder / "fine").write_text("x")
        for _ in range(2):
            kept.upload()
        assert ranks.stored() == {"fine": "x"}
        assert len([record for record in caplog.records if "not kept" in record.message]) == ("/" not in name)

    def test_neither_links_nor_pipes(self, ranks: Ranks, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("secret")
        kept = ranks.rank("a")
        kept.in_world(0)
        (kept.folder / "link").symlink_to(tmp_path / "secret")
        (kept.folder / "folder").symlink_to(tmp_path)
        os.mkfifo(kept.folder / "pipe")
        kept.upload()
        assert ranks.stored() == {}

    def test_not_too_many_and_not_too_much(
        self, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(module, "MOST_FILES", 3)
        monkeypatch.setattr(module, "MOST_BYTES", 1000)
        kept = ranks.rank("a")
        kept.in_world(0)
        for number, size in enumerate((10, 2000, 20, 30, 40)):
            (kept.folder / str(number)).write_bytes(b"x" * size)
        kept.upload()
        assert sorted(ranks.stored()) == ["0", "2", "3"]
        assert "more than 0 MiB" in caplog.text
        assert "there are 3 already" in caplog.text

    def test_a_store_that_is_away_is_tried_again(
        self, ranks: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        kept = ranks.rank("a")
        kept.in_world(0)
        (kept.folder / "log.csv").write_text("1")
        with monkeypatch.context() as patch:
            patch.setattr(FileStore, "write_file", _away)
            kept.upload()
        assert "training goes on" in caplog.text
        kept.upload()
        assert ranks.stored() == {"log.csv": "1"}


def _is_away(*_given: object) -> NoReturn:
    raise StoreUnavailable("no answer")


def _away(_store: FileStore, _name: str) -> None:
    raise StoreUnavailable("no space left on device")


class TestWhoGoesOn:
    def test_another_worker_from_what_the_first_one_had(self, ranks: Ranks) -> None:
        one, other = ranks.rank("a"), ranks.rank("b")
        one.in_world(0)
        other.in_world(1)
        (one.folder / "plots").mkdir()
        (one.folder / "plots" / "loss.svg").write_text("one")
        one.world_ends(leaves=True)
        (one.folder / "late").write_text("by who is not the first any more")
        one.upload()
        other.world_ends(leaves=False)
        other.in_world(0)
        assert (other.folder / "plots" / "loss.svg").read_text() == "one"
        (other.folder / "plots" / "loss.svg").write_text("two")
        other.upload()
        assert ranks.stored() == {"plots--loss.svg": "two"}

    @pytest.mark.parametrize("method", ["claim_beside", "names", "ages", "open_beside"])
    def test_another_worker_also_when_the_store_was_away_at_first(
        self, ranks: Ranks, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = ranks.rank("a"), ranks.rank("b")
        one.in_world(0)
        for name in ("kept", "log.csv", "plots", "stale"):
            (one.folder / name).write_text(f"{name} of one")
        one.upload()
        (other.folder / "stale").write_text("of other, before")
        with monkeypatch.context() as patch:
            patch.setattr(FileStore, method, _is_away)
            other.in_world(0)
            (other.folder / "log.csv").write_text("log.csv of other")
            (other.folder / "plots").mkdir()
            (other.folder / "plots" / "loss.svg").write_text("loss of other")
            other.upload()
        assert ranks.stored() == {name: f"{name} of one" for name in ("kept", "log.csv", "plots", "stale")}
        other.upload()
        kept = {"kept": "kept of one", "stale": "stale of one", "log.csv": "log.csv of other"}
        assert {name: (other.folder / name).read_text() for name in kept} == kept
        assert ranks.stored().items() >= {**kept, "plots--loss.svg": "loss of other"}.items()
        assert "log.csv was written before the store's could be gone on from" in caplog.text

    def test_a_take_over_that_fails_half_way_goes_on(self, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = ranks.rank("a"), ranks.rank("b")
        one.in_world(0)
        for name in "abc":
            (one.folder / name).write_text(name)
        one.upload()
        opened = FileStore.open_beside

        def fails(store: FileStore, name: str, most: int) -> BinaryIO:
            return _is_away() if name.endswith("/b") else opened(store, name, most)

        with monkeypatch.context() as patch:
            patch.setattr(FileStore, "open_beside", fails)
            other.in_world(0)
            other.world_ends(leaves=False)
        assert sorted(path.name for path in other.folder.iterdir() if path.name[0] != ".") == ["a"]
        other.in_world(0)  # the first one again
        assert {path.name: path.read_text() for path in other.folder.iterdir()} == {name: name for name in "abc"}

    def test_who_stays_the_first_keeps_its_own(self, ranks: Ranks) -> None:
        kept = ranks.rank("a")
        kept.in_world(0)
        (kept.folder / "log.csv").write_text("1")
        kept.upload()
        (kept.folder / "log.csv").write_text("1 2")
        kept.world_ends(leaves=False)
        kept.in_world(0)
        assert (kept.folder / "log.csv").read_text() == "1 2"

    def test_a_later_try_from_the_one_before_which_then_cannot_overwrite_it(self, ranks: Ranks) -> None:
        old = ranks.rank("a", fence=7)
        old.in_world(0)
        (old.folder / "log.csv").write_text("old")
        old.upload()
        (ranks.store / "ckpt-f7-s1-t1-0a").mkdir()
        (ranks.store / "ckpt-f7-s1-t1-0a" / "manifest.json").write_text("{}")
        new = ranks.rank("b", fence=8)
        new.in_world(0)
        assert (new.folder / "log.csv").read_text() == "old"
        (new.folder / "log.csv").write_text("new")
        new.upload()
        (old.folder / "log.csv").write_text("late")
        old.upload()
        assert (ranks.stored(8), ranks.stored(7)) == ({"log.csv": "new"}, {"log.csv": "late"})
        older = ranks.rank("c", fence=7)
        older.in_world(0)
        assert (older.folder / "log.csv").read_text() == "late", "nothing of who comes after it"

    def test_what_somebody_else_put_there_leaves_the_folder_nowhere(self, ranks: Ranks, tmp_path: Path) -> None:
        folder = ranks.store / "outputs-7"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "..--..--escaped").write_text("x")
        (folder / "link").symlink_to("/etc/passwd")
        (folder / "fine").write_text("x")
        for path in (ranks.store, folder):
            path.chmod(0o700)
        kept = ranks.rank("a")
        kept.in_world(0)
        assert sorted(each.name for each in kept.folder.rglob("*")) == ["fine"]
        assert not list(tmp_path.rglob("escaped"))
