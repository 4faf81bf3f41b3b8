"""Workers of several slots: each of their ranks comes and goes with them, and sees a device of its own."""

from __future__ import annotations

import os
import signal
from collections import defaultdict

import pytest

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed, sizes_of, whole_workers

pytestmark = pytest.mark.timeout(300)


def ranks_by_worker(run: ScriptedRun) -> list[list[int]]:
    """Of those that train."""
    return sorted(list(worker.ranks) for worker in run.status().workers if worker.ranks)


def test_two_slots_come_and_go_with_their_worker(start: Start, undisturbed: Undisturbed) -> None:
    run = start(
        Script("exact.py", holds=(10, 20, 30, 40)),
        (1, 1, 2),
        slots=2,
        recovery=RecoverySpec(backoff=0.5),
        environment={"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,MIG-c,MIG-d"},
    )
    run.at(10)
    run.resize(2)
    run.trains(4)
    assert ranks_by_worker(run) == [[0, 1], [2, 3]]
    run.go(10)
    run.at(20)
    run.resize(1)
    run.until_status(lambda status: status.world_size == 2, "two ranks")
    run.resize(2)
    run.trains(4)
    run.go(20)
    run.at(30)
    lost, worlds = run.worker(3), run.trains(4)
    os.kill(run.agent_pid(lost.name), signal.SIGKILL)  # Both of its ranks go with it.
    run.until_status(lambda status: len(status.history) > worlds and status.world_size == 4, "four ranks again")
    run.go(30)
    run.at(40)
    run.reclaim(run.worker(0).name)
    run.until_status(lambda _: run.events(EventKind.LEFT)[1:], "the leave")
    run.until_status(lambda status: status.world_size == 4, "four ranks once more")

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.LOST) == [f"lost {lost.name}"]
    assert run.events(EventKind.RESTARTED, EventKind.RANK_FAILED, EventKind.SUSPENDED) == []
    sizes = whole_workers(sizes_of(status), slots=2)
    assert sizes[:4] == [2, 4, 2, 4]
    assert all(size % 2 == 0 for size in sizes), "a worker's ranks come and go together"
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    assert_devices_of_their_own(run, slots=2)


@pytest.mark.long
def test_three_slots_of_one_worker(start: Start, undisturbed: Undisturbed) -> None:
    run = start(
        Script("exact.py", holds=(20,)), (1, 1, 1), slots=3, environment={"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"}
    )
    run.at(20)
    assert ranks_by_worker(run) == [[0, 1, 2]]
    status = run.finish()
    assert sizes_of(status) == [3, 0]
    undisturbed.assert_same(run)
    seen = {note["slot"]: note["devices"] for note in run.notes() if "joined" in note}
    assert seen == {"0": "0,1", "1": "2,3", "2": "4,5"}
    assert_devices_of_their_own(run, slots=3)


def assert_devices_of_their_own(run: ScriptedRun, slots: int) -> None:
    """As docs/training-script.md says it: the first of the devices that a rank sees is its own."""
    devices: dict[str, dict[str, str]] = defaultdict(dict)
    for note in (note for note in run.notes() if "joined" in note):
        assert (note["local_rank"], note["local_size"]) == (0, 1)
        assert (note["cross_rank"], note["cross_size"]) == (note["rank"], note["size"])
        assert devices[note["worker"]].setdefault(note["slot"], note["devices"]) == note["devices"]
    for by_slot in devices.values():
        shares = [set(share.split(",")) for share in by_slot.values()]
        assert len(shares) == slots
        assert len(set.union(*shares)) == sum(map(len, shares)), "two ranks of a worker see one device"
