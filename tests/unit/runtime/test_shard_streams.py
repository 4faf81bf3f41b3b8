"""Shards of streams: each is once in what is committed, at any size, and a folder that is changed is found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime import Folder, Shards
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.batches import streams
from elastic_runtime.training.batches.streams import Supply
from elastic_runtime.training.batches.taking import Shard
from tests.unit.runtime.rounds_bench import train_disturbed

ALONE: Any = SimpleNamespace(rank=0, size=1, maximum=list)


@dataclass
class Growing:
    """A stream that has one more after so many looks, until it ends."""

    pace: int
    total: int
    looks: int = 0

    def __call__(self) -> tuple[int, bool]:
        self.looks += 1
        count = min(self.total, self.looks // self.pace)
        return count, count == self.total

    def name(self, index: int) -> str:
        return f"shard-{index}"


@given(
    st.randoms(use_true_random=True),
    st.integers(0, 30),
    st.integers(0, 6),
    st.sampled_from(["synchronous", "asynchronous"]),
)
def test_each_shard_is_committed_once_whatever_is_lost(rng: Random, total: int, disturbances: int, mode: str) -> None:
    size = {"per_step": rng.randint(1, 8), "every": 0.0} if mode == "synchronous" else {"every": rng.choice([1.0, 5.0])}
    settings = {"stream": Growing(rng.randint(1, 4), total), "mode": mode, **size}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "POLL", 0.0)
        committed = train_disturbed(rng, settings, disturbances)
    assert committed["counts"] == dict.fromkeys(range(total), 1)
    assert committed["shards"] == ([total, f"shard-{total - 1}"] if total else [])


@dataclass
class Slow:
    """Time that passes only while somebody sleeps, and a stream that has so many shards at these times."""

    arrivals: list[float]
    ends: float = 1e9
    now: float = 0.0
    commits: list[float] = field(default_factory=list)
    """When."""

    def supply(self, every: float) -> Supply:
        state = SimpleNamespace(commit=lambda: self.commits.append(self.now))
        return Supply(self, 1, state, every, lambda number: Shard(number, "", 0), lambda: self.now, self.sleep)

    def __call__(self) -> tuple[int, bool]:
        return sum(each <= self.now for each in self.arrivals), self.now >= self.ends

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_step_begins_when_it_is_full_or_after_a_while_with_what_there_is() -> None:
    slow = Slow([1.0, 2.0, 3.0, 20.0], ends=30.0)
    supply = slow.supply(every=5.0)
    assert supply.seen(ALONE, 0, 2) == (2, False)
    assert 2.0 <= slow.now < 2.5
    assert supply.seen(ALONE, 2, 2) == (3, False)
    assert 7.0 <= slow.now < 7.5
    assert not slow.commits
    assert supply.seen(ALONE, 3, 2) == (4, False)
    assert len(slow.commits) == 2, "the world can change while there is nothing"
    assert supply.seen(ALONE, 4, 2) == (4, True)


@pytest.mark.parametrize("ends", [0.0, 1e9])
def test_a_stream_that_has_lost_shards_is_refused(ends: float) -> None:
    slow = Slow([0.0, 3.0], ends)
    with pytest.raises(InvalidSettings, match=r"the stream has [12] shards, and 4 were trained on"):
        slow.supply(every=5.0).seen(ALONE, 4, 1)


def test_ranks_begin_with_what_all_of_them_see() -> None:
    others: Any = SimpleNamespace(
        maximum=lambda mine: [max(pair) for pair in zip(mine, [-3.0, -1.0, 0.0], strict=True)]
    )
    assert Slow([0.0] * 5, ends=0.0).supply(5.0).seen(others, 0, 2) == (3, True)
    assert Slow([0.0] * 2).supply(5.0).seen(others, 0, 2) == (2, False)


def test_a_folder_is_trained_on_in_the_order_of_names_until_it_is_said_to_be_complete(tmp_path: Path) -> None:
    folder = tmp_path / "arriving"
    steps = iter(shards := shards_of(folder, per_step=2))
    folder.mkdir()
    for name in ("1.csv", "2.csv", ".3.csv", "notes.txt"):
        (folder / name).touch()
    seen = [[shard.name for shard in next(steps)]]
    (folder / "3.csv").touch()
    (folder / "_SUCCESS").touch()
    last = next(steps)
    seen.append([shard.name for shard in last])
    assert seen == [[str(folder / "1.csv"), str(folder / "2.csv")], [str(folder / "3.csv")]]
    assert (last.size, last.ends_epoch, shards.state.shards) == (1, True, [3, str(folder / "3.csv")])
    assert list(steps) == []


def test_a_file_that_sorts_before_others_is_found_also_by_another_session(tmp_path: Path) -> None:
    for name in ("2", "4"):
        (tmp_path / name).touch()
    steps = iter(shards := shards_of(tmp_path, per_step=2))
    list(next(steps))
    (tmp_path / "3").touch()
    with pytest.raises(InvalidSettings, match=r"'3' has gone from .*, or sorts before files"):
        next(steps)
    again = shards_of(tmp_path, per_step=2)
    again.state.step, again.state.shards = 1, shards.state.shards
    (tmp_path / "5").touch()
    with pytest.raises(InvalidSettings, match=r"shard 1 was '.*4', and is '.*3' now"):
        next(iter(again))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stream": "folder"}, "Shards.stream: 'folder' cannot be called"),
        ({"epochs": 2}, "a stream is trained on once"),
        ({"count": 4}, "more than one"),
        ({"per_step": None}, "Shards.per_step"),
        ({"state": SimpleNamespace(step=0)}, r"Make the state with shards=\[\]"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=words):
        shards_of(tmp_path, **settings)


def test_a_shard_of_a_stream_has_no_part_of_a_data_set() -> None:
    with pytest.raises(InvalidSettings, match=r"Compute them from shard\.index"):
        Shard(0, "", 0).samples(10)


def shards_of(folder: Path, **settings: Any) -> Shards:
    """Of a rank that was started by hand."""
    state = SimpleNamespace(step=0, shards=[])
    link: Any = SimpleNamespace(had_agent=False)
    given_ = {"stream": Folder(folder, "[0-9]*"), "per_step": 2, "state": state}
    return Shards(world=ALONE, link=link, **{**given_, **settings})
