"""Scripts that come with the run: nothing of them lies where the workers are before, and nothing after."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.run.shipment import pack
from elastic_runtime.run.spec import Shipment
from elastic_runtime.run.status import Phase
from elastic_runtime.script.function import ARGUMENTS, FUNCTION
from tests.local.conftest import Start
from tests.paced import SCRIPTS, Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(300)


def test_a_script_and_its_helpers_train_through_a_resize_and_a_loss(start: Start, undisturbed: Undisturbed) -> None:
    script = Script("exact.py", holds=(10, 25))
    shipment = pack({name: (SCRIPTS / name).read_bytes() for name in ("exact.py", "exact_engines.py", "pace.py")})
    run = start(script, (1, 2, 3), ("python", script.name), scripts=shipment)
    run.at(10)
    run.resize(3)
    run.worlds(2, 3)
    assert len(list(run.folder.scratch.glob("scripts-*"))) == 3
    run.go(10)
    run.at(25)
    run.resize(2)
    run.worlds(2, 3, 2)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 3, 2, 0]
    undisturbed.assert_same(run)
    assert not run.folder.scratch.exists()


FUNCTION_SOURCE = b"""
def train(wanted, rate):
    import time
    import horovod.torch as hvd
    import torch

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=rate))

    @hvd.elastic.run
    def steps(state):
        while state.left:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.left -= hvd.size() == wanted
            state.commit()
            time.sleep(0.02)

    steps(hvd.elastic.TorchState(model=model, optimizer=optimizer, left=10))
    if hvd.rank() == 1:
        return "not of rank 0"
    print(f"rank {hvd.rank()} of {hvd.size()} at rate {rate}", flush=True)
    return {"ranks": hvd.size()}

if __name__ == "__main__":
    from elastic_runtime.script.function import call

    call(train)
"""


def test_a_function_trains_through_a_resize(start: Start) -> None:
    files = {FUNCTION: FUNCTION_SOURCE, ARGUMENTS: b'{"args": [2], "kwargs": {"rate": 0.125}}'}
    run = start(Script("unused.py"), (1, 1, 2), ("python", FUNCTION), scripts=pack(files))
    run.worlds(1)
    run.resize(2)
    status = run.end()
    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    assert "rank 0 of 2 at rate 0.125" in run.log()
    assert status.returned == '{"ranks": 2}'


SPAWNING = """
import multiprocessing
import torch
from elastic_runtime.torch import DurableState, elastic

def square(number):
    return number * number

@elastic.run
def train(state):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("squares:", pool.map(square, range(4)))

if __name__ == "__main__":
    elastic.init()
    train(DurableState(model=torch.nn.Linear(1, 1)))
"""


@pytest.mark.parametrize("engine", [pytest.param("horovod", marks=pytest.mark.long), "torch"])
def test_a_process_that_a_rank_spawns_may_import_what_the_script_does(
    start: Start, tmp_path: Path, engine: str
) -> None:
    """As a data loader's are that are not forked: they have the rank's environment, and no line to its agent."""
    script = tmp_path / "spawning.py"
    script.write_text(SPAWNING)
    run = start(Script("none"), (1, 1, 1), ("python", str(script)), engine=engine)
    run.succeed()
    assert "squares: [0, 1, 4, 9]" in run.log()


def test_a_run_whose_files_cannot_be_read_ends_at_once_and_says_why(start: Start) -> None:
    run = start(Script("unused.py"), (1, 1, 1), ("python", "train.py"), scripts=Shipment("0" * 64, 1, "AAAA"))
    run.until(run.is_over, "the launcher has ended", alive=False)
    assert run.launcher.returncode == 2
    assert "the shipped files are not compressed by zlib" in run.log()
    run.assert_nothing_left()
