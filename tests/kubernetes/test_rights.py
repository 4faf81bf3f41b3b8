"""With the rights of deploy/rbac.yaml alone, Airflow can do all that it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from datetime import timedelta

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.status import Phase, WorkerState, WorkerStatus
from elastic_training.clusters.types import ClaimOutcome, LogLines, StatusChanged
from tests.kubernetes.loops import run
from tests.kubernetes.standin import OWNER, StandIn
from tests.kubernetes.wires import as_account
from tests.kubernetes_namespace import Namespace

pytestmark = pytest.mark.timeout(240)
SPEAKS = "print('a word')\nimport time\ntime.sleep(3600)"
ACCOUNT = "airflow"
ROLE = "elastic-training-airflow"


@pytest.fixture(scope="module")
def account(namespace: Namespace) -> Iterator[str]:
    """A service account with that role."""
    namespace.kubectl("create", "serviceaccount", ACCOUNT)
    try:
        namespace.kubectl(
            "create", "rolebinding", ACCOUNT, f"--role={ROLE}", f"--serviceaccount={namespace.name}:{ACCOUNT}"
        )
        yield ACCOUNT
    finally:
        namespace.kubectl("delete", f"serviceaccount/{ACCOUNT}", f"rolebinding/{ACCOUNT}", "--ignore-not-found")


def test_airflows_role_is_enough_for_the_whole_life_of_a_run(
    namespace: Namespace, standin: StandIn, account: str
) -> None:
    with as_account(namespace, account) as connection:
        cluster = standin.cluster(SPEAKS, connection=connection)
        ref = run(cluster.claim(standin.spec(), OWNER)).ref
        assert run(cluster.claim(standin.spec(), OWNER)).outcome is ClaimOutcome.ADOPTED
        assert not run(cluster.ask(ref, 2, "a wish")).done
        assert run(cluster.size(ref)) == 2

        log_lease = run(cluster.take_log_lease(ref, OWNER))
        assert run(first_word(standin, connection, log_lease.cursor)) == "a word"
        run(cluster.advance(ref, log_lease.token, log_lease.cursor))
        run(cluster.renew_lease(ref, log_lease.token))

        of_run = runobjects.selector(run=ref.name, part=Part.WORKER)
        taken = namespace.ask(lambda client: client.list(PODS, of_run))[0].name
        status = WorkerStatus(taken, "node", WorkerState.TRAINING, utc_now(), 1)
        standin.publish(ref, Phase.RUNNING, workers=(status,))
        run(cluster.reclaim(ref, taken, timedelta(seconds=1)))
        assert run(cluster.status(ref)).phase is Phase.RUNNING

        run(cluster.cancel(ref, "enough", OWNER))
        standin.publish(ref, Phase.FAILED)
        again = run(cluster.claim(standin.spec(), OWNER))
        assert again.outcome is ClaimOutcome.REPLACED
        standin.publish(again.ref, Phase.SUCCEEDED)
        run(cluster.collect(again.ref, OWNER))
        run(cluster.delete(again.ref, OWNER))
    assert namespace.left(ref.name) == []


async def first_word(standin: StandIn, connection: str, cursor: str) -> str:
    """Of the launcher, as a triggerer hears it: over the shared watch, whose first update is a status."""
    cluster = standin.cluster(connection=connection)
    ref = await cluster.find(standin.name)
    heard = ""
    async with asyncio.timeout(120), aclosing(cluster.watch(ref, cursor, 1.0)) as updates:
        async for update in updates:
            if isinstance(update, LogLines):
                heard = update.lines[0]
                break
            assert not isinstance(update, StatusChanged) or not update.status.phase.final
    return heard
