"""Pods of two ranks each: both come and go with their pod."""

from __future__ import annotations

import pytest

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import PodRun
from tests.paced import Script, Undisturbed, sizes_of, whole_workers

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


def slots_in_hostfiles(run: PodRun) -> list[list[str]]:
    """What the hostfile of each worker says behind the addresses."""
    files = [run.read(worker, "/etc/mpi/hostfile") for worker in sorted(run.present())]
    return [[line.split()[1] for line in file.splitlines()] for file in files]


def test_two_slots_come_and_go_with_their_pod(start: Start, undisturbed: Undisturbed) -> None:
    run = start(
        Script("exact.py", holds=(10, 20, 30)),
        (1, 1, 2),
        slots=2,
        recovery=RecoverySpec(backoff=0.5),
        environment={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"},  # As a device plugin gives them to the container.
    )
    run.at(10)
    run.resize(2)
    run.trains(4)
    run.until(lambda: slots_in_hostfiles(run) == [["slots=2"] * 2] * 2, "both pods have both hosts in their hostfile")
    run.go(10)
    run.at(20)
    run.resize(1)
    run.until_status(lambda status: status.world_size == 2, "two ranks")
    run.resize(2)
    run.trains(4)
    run.go(20)
    run.at(30)
    lost, worlds = run.worker(3), run.trains(4)
    assert len(lost.ranks) == 2
    run.kill_worker(lost.name)
    run.until_status(lambda status: len(status.history) > worlds and status.world_size == 4, "four ranks again")

    status = run.finish()

    sizes = whole_workers(sizes_of(status), slots=2)
    assert sizes[:4] == [2, 4, 2, 4]
    assert all(size % 2 == 0 for size in sizes), "a pod's ranks come and go together"
    assert run.events(EventKind.RESTARTED, EventKind.RANK_FAILED, EventKind.SUSPENDED) == []
    assert set(run.ledger().steps()) == set(range(1, 71))
    undisturbed.assert_same(run)
    seen = {(note["worker"], note["slot"]): note["devices"] for note in run.notes() if "joined" in note}
    assert {(slot, devices) for (_, slot), devices in seen.items()} == {("0", "GPU-a"), ("1", "GPU-b")}
