"""What a state refuses, since every rank would get what is right for one rank or for one world size alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch import DurableState
from elastic_runtime.torch.per_rank import check_same_on_every_rank

pytestmark = pytest.mark.usefixtures("horovod")


class Stateful:
    """As libraries' objects, by their classes' names: ``tests/frameworks`` has the real ones."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def state_dict(self) -> dict[str, int]:
        return {"last_epoch": 3}

    def load_state_dict(self, _state: dict[str, int]) -> None: ...


def played(name: str, base: type = Stateful) -> Any:
    """A class of that module and name."""
    module, _, plain = name.rpartition(".")
    return type(plain, (base,), {"__module__": module})


class Loader(DataLoader[Any]):
    """A script's own, with a position."""

    state_dict, load_state_dict = Stateful.state_dict, Stateful.load_state_dict


class Stream(IterableDataset[int]):
    state_dict, load_state_dict = Stateful.state_dict, Stateful.load_state_dict

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Sampler(DistributedSampler[int]):
    state_dict, load_state_dict = Stateful.state_dict, Stateful.load_state_dict


REFUSED = {
    "accelerate.scheduler.AcceleratedScheduler": "prepared.scheduler",
    "accelerate.data_loader.DataLoaderShard": "GlobalBatches",
    "accelerate.data_loader.DataLoaderDispatcher": "GlobalBatches",
    "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader": "GlobalBatches",
    "torchdata.nodes.loader.Loader": "GlobalBatches",
    "datasets.iterable_dataset.IterableDataset": "GlobalBatches",
    "lightning.pytorch.loops.fit_loop._FitLoop": "restart=",
    "pytorch_lightning.loops.fit_loop._FitLoop": "restart=",
    "torchmetrics.metric.Metric": "sync_on_compute",
    "deepspeed.runtime.engine.DeepSpeedEngine": "restart=",
    "megatron.core.optimizer.distrib_optimizer.DistributedOptimizer": "restart=",
    "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer": "ShardedState",
    "torch.distributed.optim.post_localSGD_optimizer.PostLocalSGDOptimizer": "DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "ShardedState",
}


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_state_refuses_by_name_and_with_a_remedy(name: str, derived: bool) -> None:
    kind = played("train.Own", played(name)) if derived else played(name)
    with pytest.raises(InvalidSettings, match=r"DurableState\.extra") as refused:
        DurableState(model=nn.Linear(2, 1), extra=kind())
    assert REFUSED[name] in refused.value.remedy


@pytest.mark.parametrize("value", [Loader([1, 2]), Stream(), Sampler([1, 2], num_replicas=2, rank=0)])  # type: ignore[arg-type]
def test_a_position_of_one_rank_is_refused_whoever_has_written_it(value: object) -> None:
    with pytest.raises(InvalidSettings, match="position of one rank"):
        DurableState(model=nn.Linear(2, 1), data=value)


@pytest.mark.parametrize("settings", [{"split_batches": True}, {"step_with_optimizer": False}])
def test_a_scheduler_of_accelerate_that_counts_each_step_once_is_kept(settings: dict[str, bool]) -> None:
    kind = played("accelerate.scheduler.AcceleratedScheduler")
    given = {"split_batches": False, "step_with_optimizer": True, **settings}
    assert DurableState(model=nn.Linear(2, 1), scheduler=kind(**given)).scheduler is not None


@pytest.mark.parametrize(
    ("sync_on_compute", "state", "kept"), [(True, {"sum": 1}, False), (False, {}, False), (False, {"sum": 1}, True)]
)
def test_a_metric_is_kept_where_each_rank_has_the_whole(sync_on_compute: bool, state: Any, kept: bool) -> None:
    metric = played("torchmetrics.metric.Metric")(sync_on_compute=sync_on_compute, state_dict=lambda: state)
    metrics = played("torchmetrics.collections.MetricCollection")(
        values=lambda: [metric], state_dict=lambda: {f"a.{name}": value for name, value in state.items()}
    )
    for given in (metric, metrics):
        if kept:
            check_same_on_every_rank("DurableState.metric", given)
        else:
            with pytest.raises(InvalidSettings, match="accumulates"):
                check_same_on_every_rank("DurableState.metric", given)


def test_what_is_set_later_is_refused_too() -> None:
    state = DurableState(model=nn.Linear(2, 1), scheduler=Stateful())
    with pytest.raises(InvalidSettings, match=r"DurableState\.scheduler"):
        state.scheduler = played("accelerate.scheduler.AcceleratedScheduler")()
    assert type(state.scheduler) is Stateful


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of two, of which this is one; nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_sharded_model_and_its_optimizer_are_of_a_sharded_state() -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(2, 1)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for given in ({"model": model}, {"optimizer": optimizer}, {"weight": model.weight}):
        with pytest.raises(InvalidSettings, match="Use ShardedState"):
            DurableState(**given)
    check_same_on_every_rank("ShardedState.model", model, may_be_sharded=True)
