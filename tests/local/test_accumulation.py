"""Micro-batches make the same training at any world size, one that divides them or not, and after a loss."""

from __future__ import annotations

import os
import signal

import pytest

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import Phase
from tests.local.conftest import Start
from tests.paced import Script, Undisturbed, ready, sizes_of

pytestmark = pytest.mark.timeout(300)


def test_the_same_losses_and_weights_through_resizes_and_a_loss(start: Start) -> None:
    alone = start(Script("accumulated.py"), (2, 2, 2))
    assert alone.end().phase is Phase.SUCCEEDED
    script = Script("accumulated.py", holds=(10, 30, 40), freezes=(20,))
    run = start(script, (1, 2, 5), recovery=RecoverySpec(backoff=5.0))
    run.at(10)
    run.resize(3)  # which does not divide four micro-batches
    run.worlds(2, 3)
    run.go(10)
    run.at(20)
    run.resize(5)  # more ranks than micro-batches
    run.until_status(lambda status: len(ready(status)) == 5, "two newcomers that are ready")
    run.go(20)  # Both come at once.
    run.until_status(lambda status: status.world_size == 5, "five ranks")
    run.at(30)
    run.resize(2)
    run.until_status(lambda status: status.world_size == 2, "two ranks")
    run.go(30)
    run.at(40)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    run.until_status(lambda status: status.world_size == 1, "one rank")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    # Four for a moment, where the other newcomer's rank takes more than five seconds.
    assert [size for size in sizes_of(status) if size != 4][:5] == [2, 3, 5, 2, 1]
    for epoch in run.ledger().epochs():
        assert run.ledger().samples(epoch) == dict.fromkeys(range(100), 1)
    undisturbed = Undisturbed.by(alone)
    undisturbed.assert_same_losses(run)
    undisturbed.assert_same_weights(run)
