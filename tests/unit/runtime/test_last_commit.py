"""Training stops at a commit that can still be made durable, when everybody who has the state will be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt

from elastic_runtime.checkpoint.checkpoints import Checkpoints, opened_checkpoint
from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.store import Draft, open_store
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import OwnershipLost, StoreUnavailable
from elastic_runtime.protocol.rank_link import CheckpointWritten, CommitDeadline, RankMessage, TrainingStopped
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, load_checkpoint
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.checkpointing import notices
from elastic_runtime.training.checkpointing.notices import LastCommit
from elastic_runtime.training.checkpointing.parts import part_writers
from elastic_runtime.training.state import durable as module
from tests.unit.runtime.rank_bench import Agent, Clock

pytestmark = pytest.mark.usefixtures("horovod")

DEADLINE = 100.0


def judge(*commits: float, deadline: float | None = DEADLINE) -> LastCommit:
    """One that has seen these commits."""
    judge = LastCommit()
    judge.expect_end(deadline)
    for moment in commits:
        judge.commits.committed(moment)
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
        last.commits.begin()
        last.commits.committed(90.0)
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


class TestJudgementWhileWaiting:
    """No other commit will come: whoever is to write the last one does so at once."""

    def test_who_was_chosen_writes_long_before_the_deadline(self) -> None:
        last = judge()
        last.expect_end(DEADLINE, "b.0.0")
        assert last.is_held_by("b.0.0", DEADLINE - 3600.0)
        assert not last.is_held_by("a.0.0", DEADLINE)

    def test_nobody_does_without_a_deadline_or_when_training_goes_on(self) -> None:
        assert not judge().is_held_by("", 0.0), "a world trains, and nobody was chosen"
        last = judge()
        last.expect_end(DEADLINE, "b.0.0")
        last.expect_end(None)
        assert not last.is_held_by("b.0.0", 0.0)

    def test_it_is_tried_until_the_deadline_has_passed_for_long(self) -> None:
        last = judge()
        last.expect_end(DEADLINE, "b.0.0")
        assert last.is_held_by("b.0.0", 110.0)
        assert not last.is_held_by("b.0.0", 110.1)


class Stand:
    """A training of one rank, and what happens while it stands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOROVOD_HOSTNAME", "a.0.0")
        self.agent, self.clock = Agent(), Clock()
        self.spec = CheckpointSpec((folder / "run").as_uri(), every=3600)
        self.state = DurableState(step=0, checkpoint=self.spec, link=self.agent.link, clock=self.clock)
        self.looks = 0
        self.meanwhile: Callable[[], None] = lambda: None
        monkeypatch.setattr(module.time, "sleep", self._sleep)
        monkeypatch.setattr(notices, "utc_now", lambda: self.wall + timedelta(seconds=self.clock.now - 1000.0))
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

    def taken_at(self, seconds: float, keeper: str = "") -> datetime:
        """Everybody will be, so many seconds from now."""
        deadline = self.wall + timedelta(seconds=self.clock.now - 1000.0 + seconds)
        self.agent.say(CommitDeadline(deadline, keeper))
        return deadline

    def wait(self, looks: int = 1) -> None:
        """For the next world, that many looks long; writing takes no time on this clock."""
        for _ in range(looks):
            self.state.on_wait()
            assert self.state._writer is not None
            wait(self.state._writer._writing)
            self.clock.now += 0.1

    def written(self) -> list[tuple[int, bool]]:
        """Step, and whether for a notice, of what was published since the last call."""
        return [(each.step, each.handover) for each in self.agent.heard() if isinstance(each, CheckpointWritten)]

    def published(self) -> list[int]:
        """Steps of what is in the store."""
        found = []
        for name in open_store(self.spec.uri).names():
            with opened_checkpoint(f"{self.spec.uri}/{name}") as stored:
                found.append(stored.manifest.step)
        return sorted(found)


@pytest.fixture
def stand(no_thread_left: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    made = Stand(tmp_path, monkeypatch)
    yield made
    made.state.finish()
    made.agent.close()


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
        stand.meanwhile = lambda: stand.agent.say(CommitDeadline(None)) if stand.looks == 5 else None
        stand.train(3)
        assert stand.looks == 5

    def test_others_that_take_over_end_the_stand(self, stand: Stand) -> None:
        stand.train(2)
        stand.taken_at(2.0)
        stand.meanwhile = lambda: stand.state.on_hosts_updated(1_700_000_000, 3) if stand.looks == 5 else None
        with pytest.raises(HostsUpdatedInterrupt):
            stand.train(1)
        assert stand.looks == 5

    def test_stands_for_a_pause_until_the_launcher_ends_it_and_tells_once_the_commit_is_durable(
        self, stand: Stand
    ) -> None:
        stand.train(2)
        stand.agent.say(CommitDeadline(None, stops=True))
        heard: list[RankMessage] = []

        def meanwhile() -> None:
            assert stand.state._writer is not None
            wait(stand.state._writer._writing)  # which takes no time on this clock
            heard.extend(stand.agent.heard())
            if stand.looks == 1000:
                stand.agent.say(CommitDeadline(None))

        stand.meanwhile = meanwhile
        stand.train(2)
        assert (stand.state.step, stand.looks) == (4, 1000), "and trains on where it is withdrawn"
        kinds = [type(each) for each in heard if isinstance(each, CheckpointWritten | TrainingStopped)]
        assert kinds[:2] == [CheckpointWritten, TrainingStopped], "nobody ends a commit that is not durable"
        told = [each for each in heard if isinstance(each, TrainingStopped)]
        assert set(told) == {TrainingStopped(3)}
        assert 40 <= len(told) <= 60, "again and again, for another launcher"

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


class TestWaiting:
    """For a world, after the end of the one before: no commit comes, and no collective may be called."""

    def test_who_was_chosen_writes_its_commit_at_once_and_once(self, stand: Stand) -> None:
        stand.train(3)
        stand.wait(3)
        assert stand.written() == []
        stand.taken_at(60.0, keeper="a.0.0")
        stand.wait(50)
        messages = stand.agent.heard()
        assert [(each.step, each.handover) for each in messages if isinstance(each, CheckpointWritten)] == [(3, True)]
        assert {each for each in messages if isinstance(each, TrainingStopped)} == {TrainingStopped(3)}

    def test_what_is_written_is_the_commit_and_not_what_the_step_after_it_has_left(self, stand: Stand) -> None:
        stand.state = DurableState(
            weight=torch.zeros(2), checkpoint=stand.spec, link=stand.agent.link, clock=stand.clock
        )
        stand.train(3)
        stand.state.weight += 1.0
        stand.state.step += 1
        stand.taken_at(60.0, keeper="a.0.0")
        stand.wait()
        [name] = open_store(stand.spec.uri).names()
        assert load_checkpoint(f"{stand.spec.uri}/{name}")["weight"].tolist() == [0.0, 0.0]
        assert stand.published() == [3]
        stand.state.restore()

    def test_horovod_is_not_asked(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        stand.train(3)
        stand.taken_at(60.0, keeper="a.0.0")
        with monkeypatch.context() as patch:
            patch.setattr(stand.state, "_world", None)  # As good as that, after hvd.shutdown().
            stand.wait()
        assert stand.written() == [(3, True)]

    def test_another_that_was_chosen_writes(self, stand: Stand) -> None:
        stand.train(3)
        stand.taken_at(60.0, keeper="b.0.0")
        stand.wait(3)
        assert stand.written() == []
        stand.taken_at(60.0, keeper="a.0.0")  # b is gone
        stand.wait(3)
        assert stand.written() == [(3, True)]

    def test_who_has_heard_nothing_of_the_state_has_nothing_to_write(self, stand: Stand) -> None:
        stand.taken_at(60.0, keeper="a.0.0")
        stand.wait(3)
        assert stand.published() == []

    @pytest.mark.parametrize("step", [3, 4])
    def test_what_another_has_written_is_told_of_and_not_written_again(self, stand: Stand, step: int) -> None:
        stand.train(3)
        checkpoints = Checkpoints(open_store(stand.spec.uri), stand.spec.fence, keep=1)
        checkpoints.write(step, utc_now(), part_writers(TORCH, {}, {"step": step}))
        stand.taken_at(60.0, keeper="a.0.0")
        stand.wait(3)
        assert (stand.written(), stand.published()) == ([(step, True)], [step])
        stand.state.step = 5
        stand.state.commit()

    def test_a_newer_one_that_comes_after_all_is_not_retired_for_it(self, stand: Stand) -> None:
        spec = CheckpointSpec(stand.spec.uri, every=3600, keep=1)
        stand.state = DurableState(step=0, checkpoint=spec, link=stand.agent.link, clock=stand.clock)
        stand.train(3)
        checkpoints = Checkpoints(open_store(spec.uri), spec.fence, keep=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "reached", lambda self, step: None)
            checkpoints.write(4, utc_now(), part_writers(TORCH, {}, {"step": 4}))
            stand.taken_at(60.0, keeper="a.0.0")
            stand.wait()
        assert stand.published() == [3, 4]

    def test_a_newer_owner_is_not_written_against(self, stand: Stand) -> None:
        stand.train(3)
        Checkpoints(open_store(stand.spec.uri), stand.spec.fence + 1, keep=1).claim()
        stand.taken_at(60.0, keeper="a.0.0")
        with pytest.raises(OwnershipLost):
            stand.wait(3)
        with pytest.raises(OwnershipLost):
            stand.state.finish()
        assert stand.published() == []
        stand.state = DurableState(step=0, link=stand.agent.link, clock=stand.clock)

    def test_a_store_that_is_away_is_tried_again(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        stand.train(3)
        attempts: list[float] = []
        begin = FileStore.begin

        def away(store: FileStore, name: str) -> Draft:
            attempts.append(stand.clock.now)
            if len(attempts) < 3:
                raise StoreUnavailable("no space left on device")
            return begin(store, name)

        monkeypatch.setattr(FileStore, "begin", away)
        stand.taken_at(60.0, keeper="a.0.0")
        stand.wait(50)
        assert len(attempts) == 3
        assert all(later - earlier >= 0.9 for earlier, later in pairwise(attempts))
        assert stand.written() == [(3, True)]

    def test_a_notice_that_was_heard_meanwhile_is_heeded_at_the_next_commit(self, stand: Stand) -> None:
        stand.train(3)
        stand.agent.give_notice()
        stand.wait()
        assert stand.written() == []
        stand.train(1)
        assert stand.agent.until(CheckpointWritten).step == 4
