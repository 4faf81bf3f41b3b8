"""Steps of a run are trained again at another world size, and compared with what its receipt has."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from elastic_runtime.audit.replaying import replay
from elastic_runtime.audit.verifying import verify
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.run.status import Phase
from tests.local.conftest import ENGINES, S3, Start
from tests.local.harness import ScriptedRun
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)
SCRIPT = """
import horovod.torch as hvd
import torch
from elastic_runtime.torch import DurableState, GlobalBatches

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1, bias=False)
# Whole numbers: their sums are exact in any order, unless {noise} is added.
with torch.no_grad():
    model.weight.copy_(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
data = [torch.arange(4.0) + i % 5 + {noise} * (i * 0.37 % 1) for i in range(64)]
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.5), named_parameters=model.named_parameters()
)
state = DurableState(model=model, optimizer=optimizer)
batches = GlobalBatches(data, size=16, seed=0, state=state, epochs=2)


@hvd.elastic.run
def train(state):
    for batch in batches:
        optimizer.zero_grad()
        (model(batch.data).mean() * batch.weight).backward()
        optimizer.step()
        state.commit()
        if batch.step == 4 and hvd.rank() == 0 and {writes}:
            state._begin_write()
            state._writer.close()


train(state)
"""


@pytest.mark.parametrize(("noise", "equal"), [("0.0", True), ("1.0", False)])
def test_another_world_size_has_the_same_weights_where_sums_are_exact(
    start: Start, tmp_path: Path, noise: str, equal: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(noise=noise, writes="True"))
    spec = CheckpointSpec((tmp_path / "store").as_uri(), keep=5)
    run = start(Script("exact.py"), (2, 2, 2), command=(sys.executable, str(script)), checkpoint=spec)
    assert run.finish().phase is Phase.SUCCEEDED, run.report("no success")
    found = verify(open_store(spec.uri))
    assert (found.step, found.samples, found.worlds) == (8, 128, [(1, 2)])

    same = replay(run.spec, step=5, workers=2, timeout=200)
    assert (same.start, same.step, same.differing) == (4, 8, ())
    other = replay(run.spec, step=5, workers=1, timeout=200)
    assert (other.start, other.step) == (4, 8)
    if equal:
        assert other.differing == ()
    else:
        assert other.differing
        assert other.tensors is not None
        assert other.is_within(1e-5)
        assert not other.is_within(0.0)


def trains_at_three_sizes(run: ScriptedRun) -> None:
    """Two ranks, three, and one, to the run's success. It holds at steps 10, 25 and 40."""
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    run.go(10)
    run.at(25)
    run.resize(1)
    run.go(25)
    run.at(40)
    run.until_status(lambda status: status.world_size == 1, "one rank")
    assert run.finish().phase is Phase.SUCCEEDED, run.report("no success")


def test_a_receipt_goes_through_resizes(start: Start, tmp_path: Path) -> None:
    spec = CheckpointSpec((tmp_path / "store").as_uri(), keep=5)
    run = start(Script("exact.py", holds=(10, 25, 40)), checkpoint=spec)
    trains_at_three_sizes(run)
    found = verify(open_store(spec.uri))
    assert (found.step, found.unknown) == (70, 0)
    assert [ranks for _, ranks in found.worlds] == [2, 3, 1]


def test_another_rank_goes_on_with_the_receipt_when_rank_0_is_lost(start: Start, tmp_path: Path) -> None:
    spec = CheckpointSpec((tmp_path / "store").as_uri(), every=0.2, keep=5)
    run = start(Script("exact.py", holds=(10, 25)), checkpoint=spec)
    run.at(10)
    run.go(10)
    run.at(25)
    run.kill_rank(0)
    run.go(25)
    assert run.finish().phase is Phase.SUCCEEDED, run.report("no success")
    found = verify(open_store(spec.uri))
    assert (found.step, found.unknown) == (70, 0)
    assert found.resumed == 0


def test_a_sharded_training_has_its_receipt_in_an_object_store(start: Start, s3: S3) -> None:
    spec = CheckpointSpec(s3.uri, every=0.2, keep=5)
    environment = ENGINES["torch-sharded-in-place"]["environment"] | s3.environment
    run = start(Script("exact.py", holds=(10, 25, 40)), checkpoint=spec, engine="torch", environment=environment)
    trains_at_three_sizes(run)
    with closing(open_store(spec.uri)) as store:
        found = verify(store)
    assert (found.step, found.unknown, found.resumed) == (70, 0, 0)
    # Two between, where another worker goes than was said at first.
    assert [ranks for _, ranks in found.worlds] in ([2, 3, 1], [2, 3, 2, 1])
    assert found.checkpoints, "each part of every rank was read"
