"""The training that every benchmark runs: a stock Elastic Horovod script, the same for both sides.

It commits every step and appends one JSON line ``{"t", "step", "rank", "size", "entry"}`` to a file of its own,
``RECORDS/PID.jsonl``, after each step: ``t`` is ``time.time_ns()``, ``entry`` counts how often Horovod has entered the
training function in this process, which tells the steps before a reset from those after it.

It ends at the step that the file STOP names. Every rank looks for that file at each step and the number in it lies a
good many steps ahead, so that all ranks stop at the same step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.own_session import take_own_session  # the path above has to be there first

FEATURES, WIDTH, CLASSES = 256, 384, 10
SAMPLES = 16_384
GLOBAL_BATCH = 256
FOREVER = 1_000_000
Batch = tuple[torch.Tensor, torch.Tensor, float]
"""Features, labels, and the weight of the mean loss. Whoever hands it out has counted it in ``state.step``."""


def main() -> None:
    """Train until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True, help="folder for the step records")
    parser.add_argument("--stop", type=Path, required=True, help="file that will name the last step")
    parser.add_argument("--input", choices=sorted(INPUTS), default="fixed", help="where batches come from")
    options = parser.parse_args()

    take_own_session()
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    make_state, batches = INPUTS[options.input]
    state = make_state(model, optimizer)
    entries = 0
    with (options.records / f"{os.getpid()}.jsonl").open("a", buffering=1) as records:

        @hvd.elastic.run  # type: ignore[untyped-decorator]  # horovod has no types
        def train(state: Any) -> None:
            nonlocal entries
            entries += 1
            for features, labels, weight in batches(state):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(features), labels) * weight
                loss.backward()  # type: ignore[no-untyped-call]  # of torch
                optimizer.step()
                record = {"t": time.time_ns(), "step": state.step, "rank": hvd.rank(), "size": hvd.size()}
                records.write(json.dumps({**record, "entry": entries}) + "\n")
                state.commit()
                if _stopped(options.stop, state.step):
                    return

        train(state)


def _stopped(stop: Path, step: int) -> bool:
    try:
        return step >= int(stop.read_text())
    except FileNotFoundError:
        return False


def _dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(features, torch.randint(CLASSES, (SAMPLES,), generator=generator))


def _stock_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)


def _fixed_batches(state: Any) -> Iterator[Batch]:
    """The same batch over and over: nothing but the step itself."""
    features, labels = _dataset()[: GLOBAL_BATCH // 2]
    while True:
        state.step += 1
        yield features, labels, 1.0


def _sampled_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    sampler = hvd.elastic.ElasticSampler(_dataset(), shuffle=True, seed=0)
    return hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0, epoch=0)


def _sampled_batches(state: Any) -> Iterator[Batch]:
    """As Horovod's own elastic examples do it: ElasticSampler, and a batch recorded before each commit."""
    share = GLOBAL_BATCH // hvd.size()
    loader: DataLoader[Any] = DataLoader(state.sampler.dataset, batch_size=share, sampler=state.sampler)
    while True:
        for index, (features, labels) in enumerate(loader):
            # Recorded ahead of the step, so that the step's own commit covers it.
            state.sampler.record_batch(index, share)
            state.step += 1
            yield features, labels, 1.0
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


def _durable_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    from elastic_runtime.torch import DurableState  # only this input needs it: the peer runs without the package

    return DurableState(model=model, optimizer=optimizer, step=0)


def _global_batches(state: Any) -> Iterator[Batch]:
    from elastic_runtime.torch import GlobalBatches

    for batch in GlobalBatches(_dataset(), size=GLOBAL_BATCH, seed=0, state=state, epochs=FOREVER):
        yield *batch.data, batch.weight


INPUTS: dict[str, tuple[Callable[..., Any], Callable[[Any], Iterator[Batch]]]] = {
    "fixed": (_stock_state, _fixed_batches),
    "sampler": (_sampled_state, _sampled_batches),
    "helpers": (_durable_state, _global_batches),
}

if __name__ == "__main__":
    main()
