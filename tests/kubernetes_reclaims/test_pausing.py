"""A run in pods that is paused for a minute: no pod of a worker is left, and the training is the same as without."""

from __future__ import annotations

import time
from typing import Any

import pytest

from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.status import EventKind, Phase
from elastic_training.concurrency.bridge import run as wait_for
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import TIMING, Place
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
PAUSE = 60.0
"""Seconds."""


@pytest.mark.shows(engine="horovod", fault="pause", place="kubernetes")
def test_a_pause_leaves_no_worker_and_costs_no_step(
    start: Start, place: Place, s3: dict[str, Any], undisturbed: Undisturbed
) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2), **s3)
    run.at(20)
    wait_for(place.cluster.pause(run.ref, by="ada"))
    run.until_status(lambda status: status.phase is Phase.PAUSED, "it is paused")
    began = time.monotonic()
    run.until(lambda: not run.pods(Part.WORKER), "no worker's pod is left")
    assert time.monotonic() - began < TIMING.leave_grace + TIMING.stop_grace + 30.0, "what a kubelet takes"
    run.go(20)
    while time.monotonic() < began + PAUSE:
        assert run.pods(Part.WORKER) == []
        assert run.status().phase is Phase.PAUSED
        time.sleep(1.0)
    wait_for(place.cluster.resume(run.ref, None, by="ada"))

    status = run.finish()

    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    assert sizes_of(status) == [2, 0, 2, 0]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED, EventKind.SUSPENDED) == []
