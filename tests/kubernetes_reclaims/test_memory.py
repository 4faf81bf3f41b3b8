"""A worker that needs 1.4 times its memory gets it from the run itself. The kernel enforces the pods' real limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind
from tests.kubernetes_namespace import REPOSITORY
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import Place
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(600)
MEGABYTES = 768
"""Of a worker, and that the script needs besides what it needs anyway: 1.4 times as much together."""
LIMIT, GROWN = MEGABYTES << 20, MEGABYTES * 3 << 19
GROWS = RecoverySpec(backoff=0.1, grow_memory=1.5, up_to=4 << 30)


@pytest.mark.long
def test_a_script_that_needs_more_memory_than_its_workers_have_ends_right(
    start: Start, place: Place, undisturbed: Undisturbed
) -> None:
    place.namespace.kubectl("apply", f"--filename={REPOSITORY / 'deploy' / 'rbac-grow-memory.yaml'}")
    limited = replace(place, memory=f"{MEGABYTES}Mi")
    script = Script("hungry.py", (str(MEGABYTES),), holds=(10, 60), step_seconds=0.1)
    run = start(script, (1, 2, 2), at=limited, recovery=GROWS)
    run.at(10)
    hungry, other = run.worker(1).name, run.worker(0).name
    run.go(10)
    run.at(60)
    run.until_status(
        lambda status: {each.memory_limit_bytes for each in status.workers if each.ranks} == {LIMIT, GROWN},
        "a larger worker trains beside the other one",
    )
    assert run.worker(0).name == other
    assert run.worker(1).name != hungry, "this Kubernetes replaces it"

    status = run.finish()

    [given] = status.memory
    assert (given.worker, given.before, given.after) == (hungry, LIMIT, GROWN)
    assert run.events(EventKind.MEMORY) == [f"memory {hungry}"]
    assert status.rank_failures == 0
    undisturbed.assert_same(run)
