"""What a newcomer's ``DistributedDataParallel`` has, and what is sent for it, where the others go on in place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.conftest import Start
from tests.paced import Script

pytestmark = pytest.mark.timeout(240)

TRAINING = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel, distributed
from elastic_runtime.torch import DurableState, elastic

folder, sent = Path(sys.argv[1]), []
send = distributed._sync_module_states
distributed._sync_module_states = lambda module, **more: (
    sent.append("aside" if module is aside else "model"), send(module=module, **more)
)
torch.manual_seed(os.getpid())
model, aside = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)


def over():
    word = torch.tensor(float((folder / "over").exists()))
    dist.all_reduce(word, op=dist.ReduceOp.MAX)
    return bool(word)


@elastic.run(in_place=True)
def train(state):
    parallel, beside = DistributedDataParallel(model), DistributedDataParallel(aside)
    while not over():
        words = [str(each.weight.sum().item()) for each in (model, aside)] + sent
        part = folder / f"{os.getpid()}.part"
        part.write_text(" ".join(words))
        part.replace(folder / f"{dist.get_world_size()}-{dist.get_rank()}")
        time.sleep(0.01)
        state.step += 1
        state.commit()


train(DurableState(model=model))
"""


def test_what_all_have_is_not_sent_again_and_all_else_is(start: Start, tmp_path: Path) -> None:
    """The state, and the model with it, was sent just before; the other module each rank has made for itself."""
    script = tmp_path / "wrapped.py"
    script.write_text(TRAINING)
    run = start(Script("none"), (2, 2, 3), engine="torch", command=("python", str(script), str(tmp_path)))

    def said(size: int) -> list[list[str]]:
        """Of each rank: the sums of both modules, and what its wrappers have sent up to now."""
        files = [tmp_path / f"{size}-{rank}" for rank in range(size)]
        return [file.read_text().split() for file in files] if all(file.exists() for file in files) else []

    run.until(lambda: bool(said(2)), "two ranks train")
    run.resize(3)
    run.until(lambda: bool(said(3)), "three ranks train")
    (tmp_path / "over").touch()
    run.succeed()

    of_two, of_three = said(2), said(3)
    sums = of_two[0][:2]
    assert of_two == [[*sums, "aside"]] * 2
    assert of_three == [[*sums, "aside", "aside"]] * 2 + [[*sums, "aside"]]
