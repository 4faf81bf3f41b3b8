"""DurableState(commit_every=…): which calls of commit() commit."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from horovod.common.exceptions import HostsUpdatedInterrupt

from elastic_runtime import Shards
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import (
    CheckpointWritten,
    CommitDeadline,
    Progress,
    TrainingEnded,
    TrainingStopped,
)
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, GlobalBatches, load_checkpoint
from elastic_runtime.training.state import durable
from elastic_runtime.training.state.collectives import Signals
from tests.unit.runtime.durable_bench import after, everything, same, step, training
from tests.unit.runtime.rank_bench import Agent, Clock

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


def train(state: DurableState, steps: int) -> None:
    for _ in range(steps):
        step(state)
        state.commit()


@pytest.mark.parametrize("value", [0, -1, 10_001, 1.0, True, "3", None])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"^DurableState\.commit_every: .* is not a whole number from 1 to"):
        DurableState(commit_every=value)


def test_a_restore_goes_back_to_the_last_call_that_committed() -> None:
    state = DurableState(**training(), commit_every=3)
    train(state, 8)
    state.restore()
    assert state.step == 6
    assert same(everything(state), after(6))
    train(state, 2)
    state.restore()
    assert state.step == 7, "the third call since then"


def test_each_call_is_told_a_few_times_a_second_and_the_end_is_a_commit(agent: Agent, clock: Clock) -> None:
    """The launcher plans by them: when ranks can leave, and whether there is anything that no checkpoint has."""
    state = DurableState(**training(), commit_every=100, link=agent.link, clock=clock)
    for _ in range(4):
        train(state, 1)
        clock.now += 0.2
    assert agent.heard() == [Progress(1), Progress(3)]
    state.on_run_end()
    assert agent.heard() == [TrainingEnded(4, waits=False), Progress(4)]
    state.restore()
    assert state.step == 4


def test_a_change_of_the_world_is_a_commit() -> None:
    state = DurableState(**training(), commit_every=100)
    train(state, 2)
    state.on_hosts_updated(1_700_000_000, 1)
    with pytest.raises(HostsUpdatedInterrupt):
        train(state, 1)
    step(state)
    state.restore()
    assert state.step == 3
    assert same(everything(state), after(3))


def test_a_notice_has_the_present_step_durable(spec: CheckpointSpec, agent: Agent) -> None:
    state = DurableState(**training(), commit_every=100, checkpoint=spec, link=agent.link)
    train(state, 4)
    agent.give_notice()
    train(state, 1)
    written = agent.until(CheckpointWritten)
    assert (written.step, written.handover) == (5, True)
    assert same(load_checkpoint(written.uri), after(5))
    state.finish()


def test_each_call_commits_while_the_last_commit_is_awaited(agent: Agent, clock: Clock) -> None:
    state = DurableState(**training(), commit_every=100, link=agent.link, clock=clock)
    train(state, 2)
    agent.say(CommitDeadline(utc_now() + timedelta(hours=1)))
    for number in (3, 4, 5):
        train(state, 1)
        assert state._values.step == number
    agent.say(CommitDeadline(None))
    train(state, 1)
    before = state._values.step
    train(state, 10)
    assert state._values.step == before, "nobody will be taken any more"


def test_ranks_stand_at_the_very_call_at_which_they_learn_that_no_other_would_be_durable(
    spec: CheckpointSpec, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = DurableState(**training(), commit_every=100, checkpoint=spec, link=agent.link)
    train(state, 2)
    agent.say(CommitDeadline(utc_now() + timedelta(seconds=1.0)))
    stood: list[int] = []

    def pause(_seconds: float) -> None:
        if not stood:
            agent.until(CheckpointWritten)
        stood.append(state.step)
        if len(stood) == 5:
            agent.say(CommitDeadline(None))

    monkeypatch.setattr(durable.time, "sleep", pause)
    train(state, 1)
    assert stood == [3] * 5
    told = {type(each) for each in agent.heard()}
    assert TrainingStopped in told
    assert CheckpointWritten not in told, "it is one commit, however long they stand"
    state.finish()


def test_in_another_world_newcomers_know_no_more_than_others(agent: Agent) -> None:
    """A rank that committed at its first call, and another that did not, would compare their states there, or not."""
    state = DurableState(**training(), commit_every=100, link=agent.link)
    agent.say(CommitDeadline(utc_now() + timedelta(hours=1)))
    train(state, 2)
    assert state._values.step == 2
    agent.say(CommitDeadline(None))
    state.on_reset()
    state.sync()
    train(state, 1)
    assert state._values.step == 2


def test_only_listening_does_not_commit() -> None:
    state = DurableState(**training(), commit_every=100)
    step(state)
    state.on_hosts_updated(1_700_000_000, 1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    assert state._values.step == 0


def test_the_receipt_has_the_samples_of_the_batches_that_each_step_was_trained_on() -> None:
    def spans(commit_every: int) -> list[tuple[int, int, str, int]]:
        state = DurableState(**training(), commit_every=commit_every)
        for size, epochs in ((2, 2), (4, 6)):  # 8 steps, and 2 of the 4 that are left.
            for batch in GlobalBatches(range(8), size=size, seed=size, state=state, epochs=epochs):
                assert batch.step == state.step
                state.commit()
                if state.step == 10:
                    break
        state.finish()
        note = json.loads(state._receipt.note())
        return [(each["first"], each["last"], each["total"], each["batches"]["size"]) for each in note["spans"]]

    assert spans(5) == spans(1)
    assert [(first, last, size) for first, last, _, size in spans(5)] == [(1, 8, 2), (9, 10, 4)]


def test_asynchronous_shards_refuse_it() -> None:
    with pytest.raises(InvalidSettings, match=r"^Shards\.mode: the state commits at one in 2 calls"):
        Shards(count=4, mode="asynchronous", seed=0, state=DurableState(**training(), shards=[], commit_every=2))


@pytest.mark.parametrize(
    ("signals", "asks"),
    [
        (Signals(), False),
        (Signals(updated=3.0, seen=3.0), False),
        (Signals(updated=4.0, seen=3.0), True),
        (Signals(handover=1), True),
        (Signals(write=1.0), True),
        (Signals(always=True), True),
    ],
)
def test_what_ranks_tell_each_other_asks_for_a_commit(signals: Signals, asks: bool) -> None:
    assert signals.asks is asks
