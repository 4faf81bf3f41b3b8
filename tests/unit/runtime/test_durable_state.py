"""DurableState in a world of one, and its parts; worlds of several ranks are in tests/local."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch.elastic.state import StateHandler
from torch import nn

from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.file import FileStore
from elastic_runtime.checkpoint.store import Draft, open_store
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidDocument, InvalidSettings, OwnershipLost, StoreUnavailable
from elastic_runtime.rank_link import (
    CHECKPOINT,
    CheckpointFailed,
    CheckpointSkipped,
    CheckpointWritten,
    Progress,
    RankMessage,
    Resumed,
)
from elastic_runtime.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, load_checkpoint
from elastic_runtime.torch.parts import part_writers
from elastic_runtime.torch.trees import copy_tree, tensors_of
from tests.unit.runtime.rank_bench import Agent, Clock


@pytest.fixture(scope="module", autouse=True)
def horovod() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = {thread.ident for thread in threading.enumerate()}
    yield
    assert {thread.ident for thread in threading.enumerate()} <= before, "a thread was left"


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spec(tmp_path: Path) -> CheckpointSpec:
    return CheckpointSpec((tmp_path / "run").as_uri(), every=60, keep=3)


def training(seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def step(state: DurableState, count: int = 1) -> None:
    for _ in range(count):
        state.step += 1
        generator = torch.Generator().manual_seed(state.step)
        state.optimizer.zero_grad()
        state.model(torch.randn(8, 3, generator=generator)).pow(2).mean().backward()
        state.optimizer.step()
        state.scheduler.step()


def everything(state: DurableState) -> dict[str, Any]:
    return {name: getattr(state, name).state_dict() for name in ("model", "optimizer", "scheduler")}


def same(one: Any, other: Any) -> bool:
    torch.testing.assert_close(one["model"], other["model"], rtol=0, atol=0)
    torch.testing.assert_close(one["optimizer"]["state"], other["optimizer"]["state"], rtol=0, atol=0)
    return bool(one["scheduler"] == other["scheduler"])


def after(steps: int) -> dict[str, Any]:
    """A training that nothing happened to."""
    state = DurableState(**training())
    step(state, steps)
    return everything(state)


def kinds(messages: list[RankMessage]) -> list[type[RankMessage]]:
    return [type(message) for message in messages]


def of_kind(kind: type[Any], messages: list[RankMessage]) -> list[Any]:
    return [message for message in messages if isinstance(message, kind)]


# In memory


def test_restore_goes_back_to_the_commit_and_training_from_there_is_the_same() -> None:
    state = DurableState(**training(), best=float("inf"), seen=[1], shape=(2, {3: "x"}))
    step(state, 2)
    state.best, state.seen = 0.5, [1, 2]
    state.commit()
    for _ in range(2):  # twice: what is restored must not be altered by what follows
        step(state, 2)
        state.best = 0.1
        state.seen.append(3)
        state.restore()
        assert (state.step, state.best, state.seen, state.shape) == (2, 0.5, [1, 2], (2, {3: "x"}))
    step(state, 3)
    assert same(everything(state), after(5))


def test_copies_use_the_memory_of_the_copy_before_where_it_fits() -> None:
    one = copy_tree({"a": torch.zeros(3), "b": [torch.zeros(2), 5]})
    addresses = [tensor.data_ptr() for tensor in tensors_of(one)]
    two = copy_tree({"a": torch.ones(3), "b": [torch.ones(4), 6]}, onto=one)
    assert [tensor.tolist() for tensor in tensors_of(two)] == [[1] * 3, [1] * 4]
    assert two["b"][1] == 6
    assert [tensor.data_ptr() == address for tensor, address in zip(tensors_of(two), addresses, strict=True)] == [
        True,
        False,
    ]


def test_syncing_leaves_the_first_rank_as_it_is() -> None:
    # Stock broadcast_optimizer_state steps a fresh optimizer, and weight decay then moves the model.
    state = DurableState(**training())
    expected = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    state.sync()
    torch.testing.assert_close(state.model.state_dict(), expected, rtol=0, atol=0)
    assert state.optimizer.state_dict()["state"] == {}


def test_a_scheduler_still_sets_the_rate_of_its_own_optimizer() -> None:
    state = DurableState(**training())
    state.sync()
    state.restore()
    step(state, 2)
    assert state.scheduler.optimizer is state.optimizer
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_another_object_can_be_assigned() -> None:
    state = DurableState(**training())
    other = training(seed=1)
    state.model = other["model"]
    state.commit()
    expected = other["model"].state_dict()["0.weight"].clone()
    nn.init.zeros_(state.model[0].weight)
    state.restore()
    assert torch.equal(other["model"].state_dict()["0.weight"], expected)


def test_horovods_sampler_takes_the_new_world_at_a_sync() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    state = DurableState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.sync()
    assert list(sampler) == [4, 5, 6, 7, 8, 9]


def test_a_handler_that_the_script_registered_is_used(spec: CheckpointSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(StateHandler):  # type: ignore[misc]  # horovod is untyped
        saves = 0

        def save(self) -> None:
            self.saves += 1

    monkeypatch.setattr("horovod.torch.elastic.state._handler_registry", [(nn.Linear, Counting)])
    state = DurableState(model=nn.Linear(1, 1), checkpoint=spec)
    state.commit()
    assert state._handlers["model"]._inner.saves == 1
    state.finish()
    assert DurableState(model=nn.Linear(1, 1), checkpoint=spec).model.weight.tolist() == state.model.weight.tolist()


def test_tensors_are_attributes_too() -> None:
    state = DurableState(average={"w": torch.zeros(2)})
    state.commit()
    state.average["w"] += 1
    state.restore()
    assert state.average["w"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"stream": object()}, "DurableState.stream"),
        ({"names": {"a", "b"}}, "DurableState.names"),
        ({"rates": [torch.zeros(1), object()]}, "DurableState.rates"),
        ({"step": 1.0}, "DurableState.step"),
        ({"commit": 3}, "DurableState.commit"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(attributes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        DurableState(**attributes)
    assert raised.value.field == field


def test_a_state_that_could_not_be_read_again_is_refused_before_training(spec: CheckpointSpec) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"path": Path("a")}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise NotImplementedError

    DurableState(odd=Odd())  # in memory it can be kept
    with pytest.raises(InvalidSettings, match=r"^DurableState\.odd: its state cannot be kept"):
        DurableState(odd=Odd(), checkpoint=spec)


# Notifications


def test_a_notification_interrupts_once_and_always_with_a_sync() -> None:
    state = DurableState(step=0)
    state.commit()
    state.on_hosts_updated(1_700_000_000, 1)  # a removal alone: stock would skip the sync
    with pytest.raises(HostsUpdatedInterrupt) as raised:
        state.commit()
    assert raised.value.skip_sync is False
    state.on_reset()
    state.on_hosts_updated(1_700_000_000, 2)  # the same one again, late
    state.commit()
    state.on_hosts_updated(1_700_000_000.5, 2)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()


# Durable


def test_a_run_that_ends_and_starts_again_is_as_if_it_had_not(
    spec: CheckpointSpec, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = after(5)
    monkeypatch.setenv(CHECKPOINT, json.dumps({"uri": spec.uri}))
    with DurableState(**training(), link=agent.link, best=float("-inf"), shape=(1, 2)) as state:
        step(state, 3)
        state.best = 0.25
        state.commit()
    written = of_kind(CheckpointWritten, agent.heard())
    assert [message.step for message in written] == [3]

    again = DurableState(**training(seed=1), link=agent.link, best=float("-inf"), shape=(1, 2))
    assert of_kind(Resumed, agent.heard()) == [Resumed(uri=written[0].uri, step=3)]
    assert (again.step, again.best, again.shape) == (3, 0.25, (1, 2))
    step(again, 2)
    assert same(everything(again), uninterrupted)


def test_it_starts_afresh_when_told_to(spec: CheckpointSpec) -> None:
    with DurableState(step=0, checkpoint=spec) as state:
        state.step = 3
        state.commit()
    fresh = CheckpointSpec(spec.uri, resume=False, fence=2)
    assert DurableState(step=0, checkpoint=fresh).step == 0


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
    step(state, 2)
    clock.now += 60
    state.commit()
    step(state)
    state.commit()
    step(state)
    state.commit()
    state.restore()
    go_on.set()
    written = agent.until(CheckpointWritten)
    assert same(load_checkpoint(written.uri), after(2))
    state.finish()


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


def test_an_altered_checkpoint_is_passed_over_and_said_so(spec: CheckpointSpec, agent: Agent) -> None:
    state = DurableState(step=0, model=nn.Linear(2, 2), checkpoint=spec, link=agent.link)
    for number in (1, 2):
        state.step = number
        state.commit()
        state.finish()
    first, second = of_kind(CheckpointWritten, agent.heard())
    part = Path(second.uri.removeprefix("file://")) / "model.pt"
    content = bytearray(part.read_bytes())
    content[-100] ^= 1
    part.write_bytes(content)
    again = DurableState(step=0, model=nn.Linear(2, 2), checkpoint=spec, link=agent.link)
    assert again.step == 1
    skipped, resumed = agent.heard()
    assert isinstance(skipped, CheckpointSkipped)
    assert skipped.uri == second.uri
    assert "model.pt was altered" in skipped.reason
    assert resumed == Resumed(uri=first.uri, step=1)


class Payload:
    """What somebody with a right to write to the store might put there: its digest is right, its content is code."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._proof,))


@pytest.mark.parametrize("nested", [False, True])
def test_code_in_a_checkpoint_is_not_run_but_passed_over(
    spec: CheckpointSpec, agent: Agent, tmp_path: Path, nested: bool
) -> None:
    proof = tmp_path / "it ran"
    with DurableState(model=nn.Linear(2, 2), checkpoint=spec) as state:
        state.step = 1
        state.commit()
    payload = {"weight": torch.zeros(2, 2), "bias": Payload(proof)} if nested else Payload(proof)
    parts = part_writers({"model": payload}, {"step": 2})
    bad = Checkpoints(open_store(spec.uri), fence=1, keep=3).write(2, utc_now(), parts)

    again = DurableState(model=nn.Linear(2, 2), checkpoint=spec, link=agent.link)

    assert again.step == 1
    skipped = of_kind(CheckpointSkipped, agent.heard())
    assert [message.uri for message in skipped] == [bad.uri]
    assert "not what torch.load(weights_only=True) takes" in skipped[0].reason
    with pytest.raises(InvalidDocument):
        load_checkpoint(bad.uri)
    assert not proof.exists()


def test_a_checkpoint_of_another_model_is_refused(spec: CheckpointSpec) -> None:
    with DurableState(model=nn.Linear(2, 2), checkpoint=spec) as state:
        state.commit()
    with pytest.raises(InvalidSettings, match="does not fit the model of this script"):
        DurableState(model=nn.Linear(3, 3), checkpoint=spec)


def test_what_a_checkpoint_lacks_stays_as_the_script_made_it(
    spec: CheckpointSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with DurableState(step=5, old=1, checkpoint=spec) as state:
        state.commit()
    again = DurableState(step=0, new=2, checkpoint=spec)
    assert (again.step, again.new) == (5, 2)
    assert {record.message.split(" is only")[0] for record in caplog.records} == {"old", "new"}


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
    spec: CheckpointSpec, agent: Agent, clock: Clock, tmp_path: Path
) -> None:
    state = DurableState(step=0, checkpoint=spec, link=agent.link, clock=clock)
    folder = tmp_path / "run"
    aside = folder.rename(tmp_path / "aside")
    folder.touch()
    agent.give_notice()
    state.step = 1
    state.commit()
    assert agent.until(CheckpointFailed).step == 1
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
            addresses.append(state._handlers["model"].saved.newest["0.weight"].data_ptr())
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


# Progress


def test_progress_is_told_four_times_a_second_and_the_last_one_always(agent: Agent, clock: Clock) -> None:
    state = DurableState(step=0, link=agent.link, clock=clock)
    for _ in range(9):
        state.step += 1
        state.commit()
        clock.now += 0.1
    assert agent.heard() == [Progress(1), Progress(4), Progress(7)]
    state.on_run_end()
    assert agent.heard() == [Progress(9)]
    state.finish()
    assert agent.heard() == []
