"""Collectives of a script under torch.distributed beside those of this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elastic_runtime.run.spec import Timing
from elastic_runtime.run.status import Phase
from elastic_runtime.world import WORLD
from tests.local.conftest import Start
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(300)

LONG = 120.0
"""Seconds for a whole run, with the start of its processes on a busy machine."""

IN_FLIGHT = """
import torch
import torch.distributed as dist
from elastic_runtime.torch import DurableState, elastic
from elastic_runtime.world import current_world


@elastic.run
def train(state):
    while state.step < 4:
        state.step += 1
        flag, early = torch.ones(3), dist.get_rank() == 0
        if early:
            work = dist.all_reduce(flag, async_op=True)
        greatest = current_world().maximum([float(dist.get_rank() + state.step)])
        if not early:
            work = dist.all_reduce(flag, async_op=True)
        work.wait()
        assert (flag.tolist(), greatest) == ([2.0] * 3, [state.step + 1.0]), (flag, greatest)
        state.commit()


train(DurableState(model=torch.nn.Linear(1, 1)))
"""
"""With the collective that compares states, and has ranks agree."""
MESSAGE = """
import torch
import torch.distributed as dist
from elastic_runtime.torch import ShardedState, elastic
from torch.distributed.fsdp import fully_shard


def build():
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@elastic.run
def train(state):
    while state.step < 4:
        state.step += 1
        other, coming = 1 - dist.get_rank(), torch.zeros(1)
        work = dist.irecv(coming, other)
        state.commit()
        dist.send(torch.tensor([float(state.step)]), other)
        work.wait()
        assert coming.item() == state.step, coming


train(ShardedState(build))
"""
"""Each commit sends the other rank a copy of the part."""
GROUPS = """
import torch
import torch.distributed as dist
from elastic_runtime.torch import DurableState, elastic


@elastic.run
def train(state):
    state.commit()
    group = dist.new_group([0, 1])
    print(f"groups: {sorted(dist.distributed_c10d._world.pg_names.values())}")


train(DurableState(model=torch.nn.Linear(1, 1)))
"""
LONG_LAST_WRITE = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from elastic_runtime.engines.torch import own_group
from elastic_runtime.torch import DurableState, elastic

own_group.WATCHED_TIMEOUT = timedelta(seconds=4)


class Slow(DurableState):
    def finish(self):
        super().finish()
        if dist.get_rank() == 0:
            time.sleep(12)


@elastic.run
def train(state):
    state.commit()


train(Slow(model=torch.nn.Linear(1, 1)))
"""
ENDS = """
import torch.distributed as dist
from elastic_runtime.engines.torch import own_group

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
own_group.own_group()
own_group.let_go()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("text", [IN_FLIGHT, MESSAGE], ids=["collective", "message"])
def test_what_a_script_has_in_flight_meets_what_it_was_sent_for(start: Start, tmp_path: Path, text: str) -> None:
    script = tmp_path / "beside.py"
    script.write_text(text)
    timing = Timing(forming=5.0, stop_grace=1.0)
    run = start(Script("none"), (2, 2, 2), engine="torch", command=("python", str(script)), timing=timing)
    assert run.end(LONG).phase is Phase.SUCCEEDED, run.report("succeeded")


def test_ranks_wait_for_the_last_checkpoint_for_longer_than_a_collective_may_take(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "last.py"
    script.write_text(LONG_LAST_WRITE)
    run = start(Script("none"), (2, 2, 2), engine="torch", command=("python", str(script)))
    status = run.end(LONG)
    assert status.phase is Phase.SUCCEEDED, run.report("succeeded")
    assert sizes_of(status) == [2, 0]


def test_a_script_sees_the_groups_that_it_has_made_alone(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    run = start(Script("none"), (2, 2, 2), engine="torch", command=("python", str(script)))
    assert run.end(LONG).phase is Phase.SUCCEEDED, run.report("succeeded")
    assert "groups: ['0', '1']" in run.log()


def test_a_process_may_end_as_soon_as_its_world_is_over() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", ["torch"], indirect=True)
def test_ranks_share_a_world_if_the_launcher_was_started_where_elastic_was_imported(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORLD, "elastic_runtime.engines.torch.world:WORLD")  # As the import leaves it.
    run = start(Script("exact.py", epochs=1), (2, 2, 2))
    run.worlds(2)
    run.succeed()
