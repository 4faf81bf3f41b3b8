"""DurableState in memory and in a world of one; worlds of several ranks are in tests/local."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch.elastic.state import StateHandler
from torch import nn

from elastic_runtime.checkpoint.manifest import MOST_STEPS
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import Progress, TrainingEnded
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.trees import copied, tensors_of
from tests.unit.runtime.durable_bench import after, everything, same, step, training
from tests.unit.runtime.rank_bench import Agent, Clock

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


# In memory


@pytest.mark.parametrize("name", ["lr scheduler", "ema:teacher", "a/b", "..", "", "x" * 109, "new\nline"])
def test_a_name_that_no_part_of_a_checkpoint_can_have_is_refused(spec: CheckpointSpec, name: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^DurableState\..*: a checkpoint cannot have a part of that name"):
        DurableState(**{name: torch.zeros(2)}, checkpoint=spec)
    DurableState(**{name: torch.zeros(2)})
    with DurableState(**{name: 9.9}, checkpoint=spec) as state:  # Of plain values all together are one part.
        state.commit()
    assert getattr(DurableState(**{name: 0.0}, checkpoint=spec), name) == 9.9


@pytest.mark.parametrize("step", [-1, MOST_STEPS + 1, 10**5000], ids=["negative", "high", "endless"])
def test_a_step_that_no_checkpoint_can_have_is_refused(spec: CheckpointSpec, step: int) -> None:
    words = rf"^DurableState\.step: .* is not from 0 to {MOST_STEPS}, and no checkpoint of it could be found again"
    if step > 0:
        with pytest.raises(InvalidSettings, match=words):
            DurableState(step=step)
    else:
        DurableState(step=step).commit()
    with DurableState(checkpoint=spec, step=min(step, 0)) as state:
        state.step = 0
        state.commit()
        state.step = step
        with pytest.raises(InvalidSettings, match=words):
            state.commit()
        state.step = MOST_STEPS
        state.commit()
    assert DurableState(checkpoint=spec).step == MOST_STEPS


@pytest.mark.parametrize("name", ["ema_teacher", "x" * 108, "Größe", "a.b-c"])
def test_what_other_names_keep_is_read_again(spec: CheckpointSpec, name: str) -> None:
    with DurableState(**{name: torch.ones(2)}, checkpoint=spec) as state:
        state.commit()
    again = DurableState(**{name: torch.zeros(2)}, checkpoint=spec)
    assert getattr(again, name).tolist() == [1, 1]


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


class Lost:
    """A world whose last collective has brought anything, since a rank is lost."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def settle(self) -> None:
        raise ConnectionError("a rank is lost")


def test_what_a_lost_rank_has_left_is_not_committed() -> None:
    state = DurableState(**training())
    step(state, 2)
    state.commit()
    step(state, 1)
    state._world = Lost(state._world)
    for save in (state.commit, state.finish):
        with pytest.raises(ConnectionError):
            save()
    state.restore()
    assert state.step == 2
    assert same(everything(state), after(2))


def test_copies_use_the_memory_of_the_copy_before_where_it_fits() -> None:
    _, one = copied(TORCH, {"a": torch.zeros(3), "b": [torch.zeros(2), 5]}, ())
    addresses = [tensor.data_ptr() for tensor in one]
    two, _ = copied(TORCH, {"a": torch.ones(3), "b": [torch.ones(4), 6]}, one)
    assert [tensor.tolist() for tensor in tensors_of(TORCH, two)] == [[1] * 3, [1] * 4]
    assert two["b"][1] == 6
    assert [
        tensor.data_ptr() == address for tensor, address in zip(tensors_of(TORCH, two), addresses, strict=True)
    ] == [
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


def test_ranks_have_the_same_state_unless_a_sampler_keeps_what_each_has_seen() -> None:
    assert DurableState(**training()).is_replicated
    assert not DurableState(**training(), sampler=hvd.elastic.ElasticSampler(range(10))).is_replicated
    assert not DurableState(**training(), verify="syncs").is_replicated, "they may round differently"


@pytest.mark.parametrize(("commits", "step"), [(True, 3), (False, 4)])
def test_a_loss_goes_back_to_where_the_last_world_was_left(commits: bool, step: int) -> None:
    state = DurableState(step=3)
    state.commit()
    state.on_hosts_updated(1_700_000_000, 2)
    leave, state.step = (state.commit, 3) if commits else (state.check_host_updates, 4)
    with pytest.raises(HostsUpdatedInterrupt):
        leave()
    state.on_reset()
    state.on_same_state()
    state.step += 1
    state.restore()
    assert state.step == step


def test_what_is_replaced_in_a_reset_is_not_saved_beside_what_is_older() -> None:
    state = DurableState(**training(), step=3)
    state.register_reset_callbacks([lambda: setattr(state, "step", 7)])
    state.commit()
    state.on_hosts_updated(1_700_000_000, 2)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state.on_reset()
    state.on_same_state()
    state.restore()
    assert state.step == 7


def test_a_handler_that_the_script_registered_is_used(spec: CheckpointSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(StateHandler):  # type: ignore[misc]  # horovod is untyped
        saves = 0

        def save(self) -> None:
            self.saves += 1

    monkeypatch.setattr("horovod.torch.elastic.state._handler_registry", [(nn.Linear, Counting)])
    state = DurableState(model=nn.Linear(1, 1), checkpoint=spec)
    state.commit()
    assert state._values.handlers["model"]._inner.saves == 1
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
        ({"names": frozenset("ab")}, "DurableState.names"),
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

    for checkpoint in (spec, None):  # Without a store, new ranks could not read it.
        with pytest.raises(InvalidSettings, match=r"^DurableState\.odd: its state cannot be kept"):
            DurableState(odd=Odd(), checkpoint=checkpoint)


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


def test_a_script_that_catches_the_interrupt_gets_it_again_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = DurableState(step=0, commit_every=10)
    state.commit()
    state.on_hosts_updated(1_700_000_000, 1)
    for _ in range(3):
        state.step += 1
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()
    (warning,) = caplog.messages
    assert "each further commit raises it again" in warning
    assert "(test_durable_state.py:" in warning
    state.on_reset()
    state.on_same_state()
    state.restore()
    assert state.step == 3, "it was committed, as all that are there have done"
    state.commit()
    state.on_hosts_updated(1_700_000_001, 1)
    for leave in (state.check_host_updates, state.check_host_updates, state.commit):
        with pytest.raises(HostsUpdatedInterrupt):
            leave()
    assert len(caplog.messages) == 1


# Progress


def test_progress_is_told_four_times_a_second_and_the_last_one_always(agent: Agent, clock: Clock) -> None:
    state = DurableState(step=0, link=agent.link, clock=clock)
    for _ in range(9):
        state.step += 1
        state.commit()
        clock.now += 0.1
    assert agent.heard() == [Progress(1), Progress(4), Progress(7)]
    state.on_run_end()
    assert agent.heard() == [TrainingEnded(9, waits=False), Progress(9)]
    state.finish()
    assert agent.heard() == [TrainingEnded(9, waits=False)]
