"""A machine joins a run of this machine, or of a pool, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_runtime.run.join import JoinSpec
from tests.joined_machine import trains_and_leaves
from tests.local.conftest import Start
from tests.local.pooled import Pool
from tests.paced import Script, Undisturbed
from tests.unit.runtime.join_bench import free_port

pytestmark = pytest.mark.timeout(300)
SCRIPT = Script("exact.py", holds=(20, 40))


@pytest.mark.parametrize("start", ["torch-in-place"], indirect=True)
def test_it_trains_and_leaves_with_no_step_lost(start: Start, undisturbed: Undisturbed) -> None:
    run = start(SCRIPT, (1, 1, 2), join=JoinSpec("127.0.0.1", free_port()))
    machine = trains_and_leaves(run, undisturbed)
    written = machine.log.read_text() + run.log()
    assert machine.token.text() not in written
    assert machine.token.secret.hex() not in written


def test_it_trains_beside_workers_of_a_pool(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Pool(tmp_path, 1).kept() as pool:
        trains_and_leaves(pool.run(SCRIPT, (1, 1, 2), 1, join=JoinSpec("127.0.0.1", free_port())), undisturbed)
