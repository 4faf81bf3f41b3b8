"""A training with GlobalBatches and a DurableState, with or without all metrics; a file gets its steps a second."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

from elastic_runtime.torch import DurableState, GlobalBatches, report
from elastic_runtime.training.checkpointing.metric_lines import MetricLines

WARM = 100
"""Steps that are not measured."""


def main(steps: int, metrics: bool, result: Path) -> None:
    """Train so many steps of 256 samples."""
    if not metrics:  # As if the runtime had none of it.
        for kind, name in ((MetricLines, "add"), (GlobalBatches, "_tell_size")):
            setattr(kind, name, lambda _self, _told: None)
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    features, width, classes = 256, 384, 10
    model = torch.nn.Sequential(torch.nn.Linear(features, width), torch.nn.ReLU(), torch.nn.Linear(width, classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    data = TensorDataset(torch.randn(16384, features), torch.randint(classes, (16384,)))
    state = DurableState(model, optimizer)

    @hvd.elastic.run  # type: ignore[untyped-decorator]  # horovod has no types
    def train(state: DurableState) -> None:
        begun = 0.0
        for batch in GlobalBatches(data, 256, 0, state, epochs=steps // 64):
            inputs, labels = batch.data
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels) * batch.weight
            loss.backward()  # type: ignore[no-untyped-call]  # of torch
            optimizer.step()
            if metrics:
                report(batch.step, loss=loss, rate=0.01, epoch=batch.epoch, weight=batch.weight, samples=256)
            state.commit()
            if batch.step == WARM:
                begun = time.monotonic()
        if hvd.rank() == 0:
            result.write_text(str((state.step - WARM) / (time.monotonic() - begun)))

    train(state)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "on", Path(sys.argv[3]))
