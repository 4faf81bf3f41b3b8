"""DurableState writes its commits beside the training: when, which, and when it cannot."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.store import Draft
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings, OwnershipLost, StoreUnavailable
from elastic_runtime.protocol.rank_link import CheckpointFailed, CheckpointWritten, Handover, Metrics
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, load_checkpoint
from elastic_runtime.training.state.collectives import Agreements
from tests.unit.runtime.durable_bench import after, of_kind, same, step, training
from tests.unit.runtime.rank_bench import Agent, Clock

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


def test_periodic_ones_are_written_beside_the_training(spec: CheckpointSpec, agent: Agent, clock: Clock) -> None:
    state = DurableState(**training(), checkpoint=spec, link=agent.link, clock=clock)
    for _ in range(3):
        step(state)
        state.commit()
        clock.now += 50
    written = agent.until(CheckpointWritten)
    assert (written.step, written.handover) == (3, False)
    step(state, 2)
    state.finish()
    assert [message.step for message in of_kind(CheckpointWritten, agent.heard())] == [5]
    assert same(load_checkpoint(written.uri), after(3))


def test_what_is_reported_is_written_beside_the_checkpoints(spec: CheckpointSpec, agent: Agent) -> None:
    with DurableState(**training(), checkpoint=spec, link=agent.link) as state:
        for _ in range(3):
            step(state)
            agent.link.send(Metrics({"loss": 1.0 / state.step}, state.step))
            state.commit()
    folder = Path(spec.uri.removeprefix("file://"), "metrics")
    lines = [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    assert [line["values"]["loss"] for line in lines if "values" in line] == [1.0, 1.0 / 2, 1.0 / 3]
    assert lines[-1]["step"] == 3
    [last] = of_kind(CheckpointWritten, agent.heard())
    assert last.stalled >= last.seconds > 0, "the training waits for the last one"


def test_the_library_of_the_format_reads_what_is_written(spec: CheckpointSpec, agent: Agent, clock: Clock) -> None:
    state = DurableState(**training(), checkpoint=spec, link=agent.link, clock=clock)
    step(state)
    clock.now += 60
    state.commit()
    model = Path(agent.until(CheckpointWritten).uri.removeprefix("file://"), "model.safetensors")
    state.finish()
    torch.testing.assert_close(load_file(model), dict(after(1)["model"]), rtol=0, atol=0)


def test_what_is_being_written_is_not_altered_by_the_training(
    spec: CheckpointSpec, agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    begin = FileStore.begin

    def slow(store: FileStore, name: str) -> Draft:
        assert go_on.wait(10)
        return begin(store, name)

    monkeypatch.setattr(FileStore, "begin", slow)
    state = DurableState(**training(), checkpoint=spec, link=agent.link, clock=clock)
    turns = sys.getswitchinterval()
    step(state, 2)
    clock.now += 60
    state.commit()
    assert sys.getswitchinterval() < turns / 10, "the writing thread does not keep the training waiting"
    step(state)
    state.commit()
    step(state)
    state.commit()
    state.restore()
    go_on.set()
    written = agent.until(CheckpointWritten)
    assert same(load_checkpoint(written.uri), after(2))
    state.finish()
    assert sys.getswitchinterval() == turns


def test_a_notice_has_one_written_at_once(spec: CheckpointSpec, agent: Agent, clock: Clock) -> None:
    state = DurableState(step=0, checkpoint=spec, link=agent.link, clock=clock)
    state.step = 1
    state.commit()
    agent.give_notice()
    state.step = 2
    state.commit()
    written = agent.until(CheckpointWritten)
    assert (written.step, written.handover) == (2, True)
    agent.give_notice()  # of another rank, a moment later: served already
    state.step = 3
    state.commit()
    clock.now += 5
    agent.give_notice()
    state.step = 4
    state.commit()
    written = agent.until(CheckpointWritten)
    assert (written.step, written.handover) == (4, True)
    state.finish()


def test_a_notice_that_others_have_heard_before_is_served_once(
    spec: CheckpointSpec, agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This rank hears of it in the next world, perhaps, and writes there: one that has left has served it."""
    state = DurableState(step=0, checkpoint=spec, link=agent.link, clock=clock)
    agree = Agreements.agree
    monkeypatch.setattr(Agreements, "agree", lambda self, mine: replace(agree(self, mine), handover=1))
    state.step = 1
    state.commit()
    assert agent.until(CheckpointWritten).handover
    monkeypatch.undo()
    clock.now += 5
    deadline = utc_now() + timedelta(seconds=30)
    agent.say(Handover("worker-1", deadline, 1))
    agent.say(Handover("worker-2", deadline, 2))
    state.step = 2
    state.commit()
    agent.until(CheckpointWritten)
    clock.now += 5
    agent.say(Handover("worker-2", deadline, 2))
    state.step = 3
    state.commit()
    state.finish()
    assert [(told.step, told.handover) for told in of_kind(CheckpointWritten, agent.heard())] == [(3, False)]


def commits(state: DurableState) -> bool:
    try:
        state.commit()
    except OwnershipLost:
        return False
    return True


def test_a_replaced_writer_ends_its_training(spec: CheckpointSpec, clock: Clock) -> None:
    old = DurableState(step=0, checkpoint=spec, clock=clock)
    DurableState(step=0, checkpoint=CheckpointSpec(spec.uri, fence=2))
    clock.now += 60
    while commits(old):  # refused in the writing thread, so told at one of the next commits
        pass
    with pytest.raises(OwnershipLost):
        old.finish()
    with pytest.raises(OwnershipLost):
        DurableState(step=0, checkpoint=spec)


def test_training_outlives_a_store_that_is_away_and_the_end_tells(
    spec: CheckpointSpec, agent: Agent, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = DurableState(step=0, checkpoint=spec, link=agent.link, clock=clock)
    folder = tmp_path / "run"
    aside = folder.rename(tmp_path / "aside")
    folder.touch()
    clock.now += 60
    state.step = 1
    state.commit()
    failed = agent.until(CheckpointFailed)
    assert failed.step == 1
    assert failed.reason.endswith("/run: File exists")
    with pytest.raises(StoreUnavailable):
        state.finish()
    assert "training goes on without the checkpoint of step 1" in caplog.text
    folder.unlink()
    aside.rename(folder)
    state.finish()
    assert [message.step for message in of_kind(CheckpointWritten, agent.heard())] == [1]


def test_a_handover_that_fails_is_tried_again_with_what_is_newest_then(
    spec: CheckpointSpec, agent: Agent, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = DurableState(step=0, checkpoint=spec, link=agent.link, clock=clock)
    folder = tmp_path / "run"
    aside = folder.rename(tmp_path / "aside")
    folder.touch()
    agent.give_notice()
    state.step = 1
    state.commit()
    assert agent.until(CheckpointFailed).step == 1
    monkeypatch.setattr(Agreements, "due", lambda _: False)  # The others have nothing to do with it.
    until_idle(state)
    state.step = 2
    state.commit()  # at once again would be no use
    folder.unlink()
    aside.rename(folder)
    assert of_kind(CheckpointFailed, agent.heard()) == []
    clock.now += 1.1
    state.step = 3
    state.commit()
    written = agent.until(CheckpointWritten)
    assert (written.step, written.handover) == (3, True)
    state.finish()


def until_idle(state: DurableState) -> None:
    assert state._writer is not None
    for future in state._writer._writing:
        future.result()


def test_training_outlives_rights_that_are_taken_away(
    spec: CheckpointSpec, agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = DurableState(step=0, checkpoint=spec, link=agent.link, clock=clock)

    def refuse(store: FileStore, name: str) -> Draft:
        raise InvalidSettings("checkpoint", "access denied", "Ask for it")

    monkeypatch.setattr(FileStore, "begin", refuse)
    clock.now += 60
    state.step = 1
    state.commit()
    assert agent.until(CheckpointFailed).reason == "checkpoint: access denied. Ask for it"
    until_idle(state)
    state.step = 2
    state.commit()
    with pytest.raises(InvalidSettings, match="access denied"):
        state.finish()


def test_commits_beside_a_checkpoint_need_no_new_memory(
    spec: CheckpointSpec, agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Semaphore(0)
    begin = FileStore.begin

    def slow(store: FileStore, name: str) -> Draft:
        assert go_on.acquire(timeout=10)
        return begin(store, name)

    monkeypatch.setattr(FileStore, "begin", slow)
    state = DurableState(**training(), checkpoint=spec, link=agent.link, clock=clock)
    addresses = []
    for _ in range(5):
        clock.now += 60
        for _ in range(3):
            step(state)
            state.commit()
            addresses.append(state._values.handlers["model"].saved.newest["0.weight"].data_ptr())
        go_on.release()
        agent.until(CheckpointWritten)
        until_idle(state)
    assert len(set(addresses)) == 2
    assert all(before != beside == again for before, beside, again in zip(*[iter(addresses)] * 3, strict=True))
    go_on.release()
    state.finish()


def test_after_an_exception_the_last_commit_is_written_and_not_what_came_after(
    spec: CheckpointSpec, agent: Agent
) -> None:
    def train() -> None:
        with DurableState(**training(), checkpoint=spec, link=agent.link) as state:
            step(state, 2)
            state.commit()
            step(state)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    (written,) = of_kind(CheckpointWritten, agent.heard())
    assert written.step == 2
    assert same(load_checkpoint(written.uri), after(2))


def test_nothing_is_written_where_nothing_was_committed(spec: CheckpointSpec, agent: Agent) -> None:
    state = DurableState(step=0, checkpoint=spec, link=agent.link)
    state.sync()
    state._write_last()
    assert of_kind(CheckpointWritten, agent.heard()) == []


def test_a_value_that_cannot_be_kept_any_more_is_named_and_training_goes_on(
    spec: CheckpointSpec, agent: Agent, clock: Clock
) -> None:
    state = DurableState(**training(), checkpoint=spec, link=agent.link, clock=clock)
    step(state)
    state.optimizer.param_groups[0]["lr"] = np.float64(0.1)
    clock.now += 60
    state.commit()
    failed = agent.until(CheckpointFailed)
    assert failed.reason.startswith("DurableState.optimizer: its state cannot be kept: numpy.float64")
    until_idle(state)
    state.optimizer.param_groups[0]["lr"] = 0.1
    clock.now += 60
    state.commit()
    assert agent.until(CheckpointWritten).step == 1
    state.finish()
