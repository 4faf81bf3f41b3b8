"""Training stops at a commit that can still be made durable, when everybody who has the state will be taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import horovod.torch as hvd
import pytest
from horovod.common.exceptions import HostsUpdatedInterrupt

from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.store import Draft
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import StoreUnavailable
from elastic_runtime.rank_link import CheckpointWritten, LastCommitBy
from elastic_runtime.spec import CheckpointSpec
from elastic_runtime.torch import DurableState
from elastic_runtime.torch import state as module
from elastic_runtime.torch.last_commit import LastCommit
from tests.unit.runtime.rank_bench import Agent, Clock

DEADLINE = 100.0


def judge(*commits: float, deadline: float | None = DEADLINE) -> LastCommit:
    """One that has seen these commits."""
    judge = LastCommit()
    judge.expect_end(deadline)
    for moment in commits:
        judge.committed(moment)
    return judge


class TestJudgement:
    def test_there_is_no_last_commit_without_a_deadline(self) -> None:
        assert not judge(99.0, deadline=None).is_here(99.0, 0.0, 0)

    def test_the_next_commit_and_its_write_have_to_fit_with_caution(self) -> None:
        # 1 s of margin, and half as much again of 2 s to the next commit and of 4 s to write it.
        assert not judge(87.9, 89.9).is_here(89.9, 4.0, 0)
        assert judge(88.0, 90.0).is_here(90.0, 4.0, 0)

    def test_a_write_under_way_comes_before(self) -> None:
        assert not judge(80.0, 82.0).is_here(82.0, 4.0, 1)
        assert judge(82.0, 84.0).is_here(84.0, 4.0, 1)

    def test_what_a_reset_took_is_no_interval_of_commits(self) -> None:
        last = judge(40.0, 40.5)
        last.begin()
        last.committed(90.0)
        assert not last.is_here(90.0, 0.0, 0)

    def test_it_stays_until_the_deadline_has_passed_for_long(self) -> None:
        last = judge(98.0, 99.0)
        assert last.is_here(99.0, 0.0, 0)
        assert last.is_here(110.0, 0.0, 0)
        assert not last.is_here(110.1, 0.0, 0)

    def test_it_can_be_taken_back(self) -> None:
        last = judge(98.0, 99.0)
        last.expect_end(None)
        assert not last.is_here(99.0, 0.0, 0)


@pytest.fixture(scope="module", autouse=True)
def horovod() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


class Stand:
    """A training of one rank, and what happens while it stands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agent, self.clock = Agent(), Clock()
        self.spec = CheckpointSpec((folder / "run").as_uri(), every=3600)
        self.state = DurableState(step=0, checkpoint=self.spec, link=self.agent.link, clock=self.clock)
        self.looks = 0
        self.meanwhile: Callable[[], None] = lambda: None
        monkeypatch.setattr(module.time, "sleep", self._sleep)
        monkeypatch.setattr(module, "utc_now", lambda: self.wall + timedelta(seconds=self.clock.now - 1000.0))
        self.wall = utc_now()

    def _sleep(self, seconds: float) -> None:
        self.looks += 1
        self.clock.now += seconds
        self.meanwhile()

    def train(self, steps: int, seconds: float = 1.0) -> None:
        """That many steps, each so long, with a commit."""
        for _ in range(steps):
            self.clock.now += seconds
            self.state.step += 1
            self.state.commit()

    def taken_at(self, seconds: float) -> datetime:
        """Everybody will be, so many seconds from now."""
        deadline = self.wall + timedelta(seconds=self.clock.now - 1000.0 + seconds)
        self.agent.say(LastCommitBy(deadline))
        return deadline


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    before = {thread.ident for thread in threading.enumerate()}
    made = Stand(tmp_path, monkeypatch)
    yield made
    made.state.finish()
    made.agent.close()
    assert {thread.ident for thread in threading.enumerate()} <= before, "a thread was left"


class TestState:
    def test_stands_at_the_last_commit_and_has_it_durable(self, stand: Stand) -> None:
        stand.train(2)
        stand.taken_at(10.0)
        stand.train(7)
        assert stand.looks == 0
        durable = []

        def meanwhile() -> None:
            if not durable:
                durable.append(stand.agent.until(CheckpointWritten))
            if stand.looks == 20:
                raise KeyboardInterrupt  # its worker is taken

        stand.meanwhile = meanwhile
        with pytest.raises(KeyboardInterrupt):
            stand.train(1)
        assert [(written.step, written.handover) for written in durable] == [(10, True)]

    def test_tries_again_while_it_stands_but_not_without_a_pause(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand.train(2)
        attempts: list[float] = []

        def begin(_store: FileStore, _name: str) -> Draft:
            attempts.append(stand.clock.now)
            raise StoreUnavailable("no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(FileStore, "begin", begin)
            stand.taken_at(0.0)
            writer = stand.state._writer
            assert writer is not None

            def meanwhile() -> None:
                wait(writer._writing)  # which takes no time on this clock

            stand.meanwhile = meanwhile
            stand.train(1)  # until ten seconds after the deadline
        assert 9 <= len(attempts) <= 11
        assert all(later - earlier >= 0.9 for earlier, later in pairwise(attempts))

    def test_goes_on_when_nobody_was_taken(self, stand: Stand) -> None:
        stand.train(2)
        stand.taken_at(3.0)
        stand.train(5, seconds=0.5)
        assert stand.state.step == 7
        assert 10 <= stand.looks * 0.05 <= 14, "until ten seconds after the deadline"

    def test_goes_on_at_once_when_somebody_stays(self, stand: Stand) -> None:
        stand.train(2)
        stand.taken_at(2.0)
        stand.meanwhile = lambda: stand.agent.say(LastCommitBy(None)) if stand.looks == 5 else None
        stand.train(3)
        assert stand.looks == 5

    def test_others_that_take_over_end_the_stand(self, stand: Stand) -> None:
        stand.train(2)
        stand.taken_at(2.0)
        stand.meanwhile = lambda: stand.state.on_hosts_updated(1_700_000_000, 3) if stand.looks == 5 else None
        with pytest.raises(HostsUpdatedInterrupt):
            stand.train(1)
        assert stand.looks == 5

    def test_only_a_commit_is_stood_at(self, stand: Stand) -> None:
        stand.train(2)
        stand.taken_at(0.0)
        stand.state.check_host_updates()
        assert stand.looks == 0

    def test_who_keeps_nothing_durable_does_not_stand(self, tmp_path: Path, stand: Stand) -> None:
        stand.state.finish()
        stand.state = DurableState(step=0, link=stand.agent.link, clock=stand.clock)
        stand.taken_at(0.0)
        stand.train(3)
        assert stand.looks == 0
