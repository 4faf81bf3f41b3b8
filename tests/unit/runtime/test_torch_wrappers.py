"""``DistributedDataParallel`` that is made anew as the same object: what a script has put on it stays."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from elastic_runtime.engines.torch import parallel
from elastic_runtime.engines.torch.parallel import Wrappers
from elastic_runtime.errors import InvalidSettings


@pytest.fixture(scope="module")
def first_group() -> None:
    """The first gradients that a process exchanges open what stays."""
    connect()
    DistributedDataParallel(nn.Linear(2, 1))(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()


@pytest.fixture
def wrappers(first_group: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wrappers]:
    for name in ("__init__", "register_comm_hook"):  # torch's own: other tests' ranks watch them, too.
        monkeypatch.setattr(DistributedDataParallel, name, inspect.unwrap(getattr(DistributedDataParallel, name)))
    monkeypatch.setattr(parallel, "maximum", lambda numbers, _is_broken: list(numbers))
    connect()
    wrappers = Wrappers(lambda: False)
    wrappers.watch()
    yield wrappers
    if dist.is_initialized():
        dist.destroy_process_group()
    seen.clear()
    gc.collect()  # Reducers are in cycles, and hold the sockets of their process groups.


def connect() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def into_next_world(wrappers: Wrappers, *, has_same: bool = True) -> None:
    wrappers.release()
    dist.destroy_process_group()
    connect()
    wrappers.rebuild(has_same=has_same)
    wrappers.rebuild_within(has_same=has_same)


def summed(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    seen.append(group)
    future = torch.futures.Future[Tensor]()
    future.set_result(bucket.buffer())
    return future


seen: list[Any] = []
# torch compares the annotations themselves.
summed.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}


def test_hooks_and_mode_stay(wrappers: Wrappers) -> None:
    called: list[str] = []
    with wrappers.in_training(in_place=True):
        wrapper = DistributedDataParallel(nn.Linear(2, 1))
        before = wrapper.register_forward_pre_hook(lambda *_: called.append("before"))
        wrapper.register_forward_hook(lambda *_, **__: called.append("after"), with_kwargs=True)
        wrapper.register_full_backward_hook(lambda *_: called.append("backward"))
        wrapper.eval()
        for _ in range(2):
            into_next_world(wrappers)
            wrapper(torch.ones(1, 2, requires_grad=True)).sum().backward()
            assert called == ["before", "after", "backward"]
            assert not wrapper.training
            called.clear()
        before.remove()
        with torch.no_grad():
            wrapper(torch.ones(1, 2))
        assert called == ["after"]


def test_hooks_outlast_a_world_that_is_lost_while_it_is_made(
    wrappers: Wrappers, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = DistributedDataParallel(nn.Linear(2, 1))
    wrapper.register_comm_hook(3, summed)
    called: list[str] = []
    wrapper.register_forward_hook(lambda *_: called.append("after"))
    with monkeypatch.context() as lost:
        lost.setattr(parallel, "alike", lambda *_: False)
        lost.setattr(nn.parallel.distributed, "_verify_param_shape_across_processes", fail)
        with pytest.raises(ConnectionError):
            into_next_world(wrappers, has_same=False)
    into_next_world(wrappers)
    seen.clear()
    wrapper(torch.ones(1, 2)).sum().backward()
    assert (called, seen) == (["after"], [3])


def fail(*_: Any) -> None:
    raise ConnectionError("a rank is lost")


def test_a_communication_hook_has_the_new_process_group(wrappers: Wrappers) -> None:
    wrapper = DistributedDataParallel(nn.Linear(2, 1))
    wrapper.register_comm_hook(dist.group.WORLD, summed)
    into_next_world(wrappers)
    seen.clear()
    wrapper(torch.ones(1, 2)).sum().backward()
    assert len(seen) == 1
    assert seen[0] is dist.group.WORLD


def test_one_with_a_state_that_changes_is_refused_where_its_wrapper_goes_on_in_place(wrappers: Wrappers) -> None:
    with wrappers.in_training(in_place=True), pytest.raises(InvalidSettings, match="PowerSGDState, would differ"):
        register()


def test_one_of_before_the_training_function_is_refused_there_and_not_in_a_script_without_one(
    wrappers: Wrappers,
) -> None:
    register()
    with pytest.raises(InvalidSettings, match="PowerSGDState, would differ"), wrappers.in_training():
        raise AssertionError("it does not begin")


def register() -> None:
    DistributedDataParallel(nn.Linear(2, 1)).register_comm_hook(PowerSGDState(None), powerSGD_hook)


def test_one_is_taken_where_each_world_has_its_own_wrapper(wrappers: Wrappers) -> None:
    with wrappers.in_training():
        register()


def test_mixed_precision_registers_its_own(wrappers: Wrappers) -> None:
    from torch.nn.parallel.distributed import _MixedPrecision

    precision = _MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    try:
        wrapper = DistributedDataParallel(nn.Linear(2, 1), mixed_precision=precision)
    except (AssertionError, RuntimeError) as error:
        pytest.skip(f"needs a GPU: {error}")
    into_next_world(wrappers)
    assert len(wrapper._comm_hooks) == 1
