"""A notice, or a periodic checkpoint, while the training thread is in an evaluation: the last commit is written."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch

from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.clock import utc_now
from elastic_runtime.protocol.rank_link import CheckpointFailed, CheckpointWritten, Handover
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, load_checkpoint
from elastic_runtime.training.checkpointing.between_commits import Overdue
from elastic_runtime.training.checkpointing.notices import CommitInterval
from tests.unit.runtime.durable_bench import after, of_kind, same, step, training
from tests.unit.runtime.rank_bench import Agent


def committed(*moments: float) -> CommitInterval:
    commits = CommitInterval()
    for moment in moments:
        commits.committed(moment)
    return commits


class TestWhen:
    """Of steps of 0.1 s, the last of which was committed at 100."""

    @pytest.fixture
    def overdue(self) -> Overdue:
        return Overdue(committed(99.9, 100.0))

    def test_the_training_thread_has_a_second_to_reach_its_next_commit(self, overdue: Overdue) -> None:
        assert overdue.for_notice(write=0.0) is None
        overdue.expect(130.0, deadline=160.0)
        assert overdue.for_notice(write=5.0) == 131.0
        overdue.handled()
        assert overdue.for_notice(write=5.0) is None

    def test_long_steps_have_longer_but_no_more_than_a_quarter_of_what_is_left(self) -> None:
        overdue = Overdue(committed(80.0, 100.0))
        overdue.expect(110.0, deadline=310.0)
        assert overdue.for_notice(write=0.0) == 110.0 + 1.5 * 20
        overdue.handled()
        overdue.expect(110.0, deadline=150.0)
        assert overdue.for_notice(write=0.0) == 120.0

    def test_a_write_that_takes_all_that_is_left_begins_at_once(self, overdue: Overdue) -> None:
        overdue.expect(110.0, deadline=140.0)
        assert overdue.for_notice(write=25.0) == 110.0

    def test_of_several_notices_the_earliest_deadline_counts(self, overdue: Overdue) -> None:
        overdue.expect(110.0, deadline=130.0)
        overdue.expect(110.5, deadline=112.0)
        assert overdue.for_notice(write=0.0) == 110.5

    def test_a_notice_whose_deadline_has_long_passed_is_forgotten(self, overdue: Overdue) -> None:
        overdue.expect(110.0, deadline=120.0)
        assert not overdue.has_passed(130.0)
        assert overdue.has_passed(130.1)

    def test_a_periodic_one_waits_for_the_next_commit_as_long(self, overdue: Overdue) -> None:
        assert overdue.for_period(100.5) == 101.0
        assert overdue.for_period(140.0) == 140.0


@pytest.mark.usefixtures("horovod", "no_thread_left")
class TestState:
    def test_a_signals_handler_ends_the_training_in_the_middle_of_a_save(
        self, spec: CheckpointSpec, agent: Agent
    ) -> None:
        state = DurableState(**training(), checkpoint=spec, link=agent.link)
        step(state, 2)
        state.commit()

        def interrupted() -> None:
            with state._turn:
                notice(agent)  # Upon which the thread beside this one wants the turn.
                time.sleep(0.2)
                state.finish()

        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(30.0)
        assert not thread.is_alive()
        assert agent.until(CheckpointWritten).step == 2

    def test_a_notice_in_an_evaluation_has_the_last_commit_written(self, spec: CheckpointSpec, agent: Agent) -> None:
        state = DurableState(**training(), checkpoint=spec, link=agent.link)
        step(state, 2)
        state.commit()
        step(state)  # which is not committed
        notice(agent)
        written = agent.until(CheckpointWritten)  # This thread does nothing for the state meanwhile.
        assert (written.step, written.handover) == (2, True)
        assert same(load_checkpoint(written.uri), after(2))
        state.finish()
        assert [message.step for message in of_kind(CheckpointWritten, agent.heard())] == [3]

    def test_a_periodic_one_that_falls_due_there_too(self, spec: CheckpointSpec, agent: Agent) -> None:
        often = CheckpointSpec(spec.uri, every=0.5)
        state = DurableState(**training(), checkpoint=often, link=agent.link)
        step(state)
        state.commit()
        written = agent.until(CheckpointWritten)
        assert (written.step, written.handover) == (1, False)
        state.finish()

    def test_a_store_that_is_away_is_tried_again(
        self, spec: CheckpointSpec, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin, tries = FileStore.begin, iter([OSError("no room")])

        def begins(store: FileStore, name: str) -> object:
            for error in tries:
                raise_unavailable(error)
            return begin(store, name)

        monkeypatch.setattr(FileStore, "begin", begins)
        state = DurableState(step=0, checkpoint=spec, link=agent.link)
        state.step = 1
        state.commit()
        notice(agent)
        assert agent.until(CheckpointFailed).step == 1
        assert agent.until(CheckpointWritten).step == 1
        state.finish()

    def test_nothing_is_written_after_the_last_commit_was_gone_back_to(
        self, spec: CheckpointSpec, agent: Agent
    ) -> None:
        """Ranks that wait for a world write when the launcher has chosen them."""
        state = DurableState(step=0, checkpoint=spec, link=agent.link)
        state.step = 1
        state.commit()
        state.restore()
        assert state._between is not None
        notice(agent)
        state._between._look()
        assert not state._between._goes
        state.finish()
        assert [(each.step, each.handover) for each in of_kind(CheckpointWritten, agent.heard())] == [(1, False)]

    def test_commits_while_it_is_written_alter_nothing_of_it(self, spec: CheckpointSpec, agent: Agent) -> None:
        often = CheckpointSpec(spec.uri, every=0.0, keep=100)
        state = DurableState(**training(), checkpoint=often, link=agent.link)
        assert state._between is not None
        for _ in range(30):
            step(state)
            state.commit()
            with state._turn:  # As its own thread does, whenever that comes to it.
                state._write_between(handover=True)
        state.finish()
        written = of_kind(CheckpointWritten, agent.heard())
        assert len(written) > 1
        for each in written:
            assert same(load_checkpoint(each.uri), after(each.step))


def raise_unavailable(error: OSError) -> None:
    from elastic_runtime.errors import StoreUnavailable

    raise StoreUnavailable(str(error))


def notice(agent: Agent, seconds: float = 60.0) -> None:
    agent.say(Handover("worker-1", utc_now() + timedelta(seconds=seconds)))


def test_a_stream_of_another_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The save was made on a stream of the training thread's own; the copy is begun in a thread that has another."""
    from elastic_runtime.torch.host_copies import HostCopier
    from tests.unit.runtime.test_host_copies import Gpus, Stream

    gpus = Gpus(monkeypatch)
    copier = HostCopier(gpus, "cpu")
    source = torch.zeros(3)
    gpus.main.queue.append(lambda: source.fill_(1.0))
    copier.made([source.device])
    gpus.main = Stream()  # another thread's
    copies = copier.begin([source])
    copies.wait()
    assert copies.tensors[0].tolist() == [1.0] * 3
