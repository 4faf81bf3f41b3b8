"""What a state refuses of the libraries themselves, by the classes that they have; one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchmetrics
from accelerate.data_loader import prepare_data_loader
from accelerate.scheduler import AcceleratedScheduler
from torchdata.nodes import IterableWrapper, Loader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch import DurableState
from elastic_runtime.torch.per_rank import check_same_on_every_rank


def schedule() -> tuple[Any, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return torch.optim.lr_scheduler.StepLR(optimizer, 10), optimizer


@pytest.fixture
def accelerated() -> Iterator[None]:
    """Accelerate's singletons are made, and forgotten."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    Accelerator(cpu=True)
    yield
    for each in (AcceleratorState, GradientState, PartialState):
        each._reset_state()


@pytest.mark.usefixtures("accelerated")
def test_a_scheduler_and_loaders_that_accelerate_has_prepared() -> None:
    inner, optimizer = schedule()
    with pytest.raises(InvalidSettings, match=r"prepared\.scheduler"):
        DurableState(scheduler=AcceleratedScheduler(inner, optimizer))
    DurableState(scheduler=AcceleratedScheduler(inner, optimizer, split_batches=True))
    DurableState(scheduler=AcceleratedScheduler(inner, optimizer).scheduler)
    loader = prepare_data_loader(torch.utils.data.DataLoader(range(8)), num_processes=2, process_index=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="GlobalBatches"):
        DurableState(loader=loader)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 reads it
def test_positions_of_torchdata() -> None:
    for given in (
        StatefulDataLoader(range(8)),  # type: ignore[arg-type]  # it has what a dataset has
        StatefulDistributedSampler(range(8), num_replicas=2, rank=0),  # type: ignore[arg-type]
        Loader(IterableWrapper(range(8))),
        IterableWrapper(range(8)),
    ):
        with pytest.raises(InvalidSettings, match="GlobalBatches"):
            DurableState(data=given)


def test_metrics_that_each_rank_accumulates_alone() -> None:
    whole = torchmetrics.MeanMetric(sync_on_compute=False)
    whole.persistent(True)
    for given in (whole, torchmetrics.MetricCollection({"loss": whole})):
        check_same_on_every_rank("DurableState.loss", given)
    alone = torchmetrics.MeanMetric()
    for metric in (
        alone,
        torchmetrics.MetricCollection({"loss": alone}),
        torchmetrics.MeanMetric(sync_on_compute=False),
    ):
        with pytest.raises(InvalidSettings, match="reset it with each epoch"):
            check_same_on_every_rank("DurableState.loss", metric)
