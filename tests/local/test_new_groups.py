"""Process groups that a script makes besides its world's, under torch.distributed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.conftest import Start
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(240)


def test_a_further_group_finds_its_ranks_by_the_store_of_the_world(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "groups.py"
    script.write_text("""
import gc
import torch
import torch.distributed as dist
from elastic_runtime.torch import DurableState, elastic


@elastic.run
def train(state):
    gc.collect()
    group = dist.new_group([0, 1])
    dist.all_reduce(one := torch.ones(1), group=group)
    print(f"of both: {one.item():g}")


train(DurableState(model=torch.nn.Linear(1, 1)))
""")
    status = start(Script("none"), (2, 2, 2), engine="torch", command=("python", str(script))).succeed()
    assert sizes_of(status) == [2, 0]
