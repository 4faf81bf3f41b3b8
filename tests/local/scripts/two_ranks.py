"""Two ranks of plain horovodrun, each checking what DurableState promises between ranks. Its argument is a folder."""

from __future__ import annotations

import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import horovod.torch as hvd
import pytest
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch.elastic import TorchState

from elastic_runtime.errors import StatesDiffer
from elastic_runtime.protocol.rank_link import Handover, RankLink, encode_rank_message
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, GlobalBatches
from elastic_runtime.training.state.verification import FEWEST_COMMITS

FEATURES = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))


def training() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    """As a survivor (rank 0) and a newcomer (the other) have made it: with other weights, and trained or not."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)


def train_alone(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    if hvd.rank() == 0:
        for _ in range(3):
            optimizer.zero_grad()
            torch.autograd.backward(model(FEATURES).pow(2).mean())
            optimizer.step()


def are_equal(tensor: torch.Tensor) -> bool:
    everywhere = hvd.allgather(tensor.detach().reshape(1, -1), name="compare")
    return bool(torch.equal(everywhere[0], everywhere[1]))


def stock_newcomers_drift() -> None:
    """Not a promise of ours: why ours is needed. Should it fail one day, upstream was corrected."""
    model, optimizer = training()
    train_alone(model, optimizer)
    TorchState(model=model, optimizer=optimizer).sync()
    assert not are_equal(model.weight)


def newcomers_are_exact() -> None:
    model, optimizer = training()
    train_alone(model, optimizer)
    before = model.weight.clone()
    extra = {"half": torch.full((3,), float(hvd.rank()), dtype=torch.bfloat16), "turned": torch.eye(2, 3).t()}
    best = (0.5, float("inf")) if hvd.rank() == 0 else ()
    state = DurableState(model=model, optimizer=optimizer, extra=extra, best=best, step=3 - hvd.rank())
    state.sync()
    assert hvd.rank() == 1 or torch.equal(before, model.weight)
    assert are_equal(model.weight)
    assert (state.step, state.best, state.extra["half"].tolist()) == (3, (0.5, float("inf")), [0, 0, 0])
    assert state.extra["turned"].tolist() == torch.eye(3, 2).tolist()
    assert are_equal(optimizer.state[model.weight]["exp_avg"])
    assert optimizer.state[model.weight]["step"].item() == 3


def ranks_that_differ_are_told() -> None:
    model, optimizer = training()
    state = DurableState(model=model, optimizer=optimizer)
    state.sync()
    with torch.no_grad():
        model.bias[0] += hvd.rank()  # What a script does that computes something else on one rank.
    for _ in range(FEWEST_COMMITS - 1):
        state.commit()
    with pytest.raises(StatesDiffer, match=r"At the commit of step 0, .* rank 1: model\.bias\. Keep"):
        state.commit()
    state.finish()  # On all ranks, or this would wait.
    quiet = DurableState(model=model, optimizer=optimizer, verify="syncs")
    quiet.sync()
    with torch.no_grad():
        model.bias[0] += hvd.rank()
    for _ in range(2 * FEWEST_COMMITS):
        quiet.commit()


def an_object_that_takes_nothing_is_told() -> None:
    class Deaf:
        def state_dict(self) -> dict[str, int]:
            return {"count": hvd.rank()}

        def load_state_dict(self, _state: dict[str, int]) -> None:
            """Forgets it."""

    with pytest.raises(StatesDiffer, match=r"After a sync, .* rank 1: deaf\.count"):
        DurableState(deaf=Deaf()).sync()
    DurableState(deaf=Deaf(), verify="never").sync()


def an_average_gets_no_moments_of_an_optimizer() -> None:
    model, optimizer = training()
    train_alone(model, optimizer)  # Rank 1's optimizer has no tensors: positions differ from rank 0's.
    average = torch.optim.swa_utils.AveragedModel(model)
    DurableState(model, optimizer, ema=average).sync()
    moments = [optimizer.state[each]["exp_avg"] for each in model.parameters()]
    assert not {each.data_ptr() for each in moments} & {each.data_ptr() for each in average.parameters()}
    assert all(are_equal(each) for each in (*moments, *average.parameters()))


def the_step_is_that_of_one_rank() -> None:
    """Five global batches of 7 of 30 samples, the last of 2; on two ranks, and on one that is alone."""
    results = []
    for rank, ranks in ((hvd.rank(), hvd.size()), (0, 1)):
        world = SimpleNamespace(rank=rank, size=ranks)
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if ranks > 1:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        state = DurableState(model=model, optimizer=optimizer)
        data = torch.utils.data.TensorDataset(FEATURES)
        for batch in GlobalBatches(data, 7, 0, state, epochs=2, world=world):
            optimizer.zero_grad()
            torch.autograd.backward(model(batch.data[0]).pow(2).mean() * batch.weight)
            optimizer.step()
            state.commit()
        results.append(model.weight.detach().clone())
    torch.testing.assert_close(*results)


def all_hear_what_one_was_told() -> None:
    state = DurableState(step=0)
    state._seen = 5.0 * (1 - hvd.rank())  # rank 1 is a newcomer, that has acted upon nothing yet
    state.commit()
    if hvd.rank() == 1:
        state.on_hosts_updated(1_700_000_000.25, 1)
    for _ in range(2):  # A script that catches it hears it again, until it is in another world.
        with pytest.raises(HostsUpdatedInterrupt):
            state.commit()
    state.on_reset()
    state.commit()


def a_notice_to_any_rank_has_the_first_write(folder: Path) -> None:
    agent, rank_end = socket.socketpair()
    with agent:
        link = RankLink(rank_end)
        state = DurableState(step=4, checkpoint=CheckpointSpec(folder.as_uri()), link=link)
        state.sync()
        if hvd.rank() == 1:
            agent.sendall(encode_rank_message(Handover("worker-1", datetime.now(UTC))))
        state.commit()
        state.on_run_end()
        link.close()
    first, last = sorted(folder.glob("ckpt-*/manifest.json"), key=lambda path: path.parent.name)
    assert '"handover":true' in first.read_text()
    assert '"handover":false' in last.read_text()


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    assert hvd.size() == 2
    stock_newcomers_drift()
    newcomers_are_exact()
    an_average_gets_no_moments_of_an_optimizer()
    ranks_that_differ_are_told()
    an_object_that_takes_nothing_is_told()
    the_step_is_that_of_one_rank()
    all_hear_what_one_was_told()
    a_notice_to_any_rank_has_the_first_write(Path(sys.argv[1]) / "run")
    print("all checked", flush=True)


main()
