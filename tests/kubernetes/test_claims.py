"""One name, one run: whoever claims at once, whoever is killed where."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import (
    Conflict,
    FailureKind,
    InvalidSettings,
    MissingRight,
    OwnershipLost,
    PermanentError,
    RunNotFound,
)
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Json, Object
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, REPLICA_SETS, Kind
from elastic_runtime.run import runobjects
from elastic_runtime.run.status import Phase
from elastic_training.clusters.claims import Times
from elastic_training.clusters.kubernetes.documents import compare_and_set, creation, removal
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.types import ClaimOutcome
from elastic_training.concurrency.bridge import run
from tests.kubernetes.standin import OWNER, StandIn
from tests.kubernetes.wires import as_account
from tests.kubernetes_namespace import Namespace
from tests.paced import until

pytestmark = pytest.mark.timeout(420)

PAUSE = 0.3
"""Seconds between two looks by kubectl."""


class Killed(BaseException):
    """The process ends here."""


def test_of_many_who_claim_at_once_one_creates(standin: StandIn) -> None:
    with ThreadPoolExecutor(8) as pool:
        owners = [f"owner {number}" for number in range(8)]
        claims = list(pool.map(lambda owner: run(standin.cluster().claim(standin.spec(), owner)), owners))
    assert [each.outcome for each in claims].count(ClaimOutcome.CREATED) == 1
    assert len({each.ref for each in claims}) == 1
    assert run(standin.cluster().owner(claims[0].ref)) in owners


def test_of_many_who_start_over_at_once_each_has_had_its_own_and_one_is_left(standin: StandIn) -> None:
    with ThreadPoolExecutor(4) as pool:
        claims = list(
            pool.map(lambda number: run(standin.cluster().claim(standin.spec(), f"{number}", fresh=True)), range(4))
        )
    assert len({each.ref for each in claims}) == 4
    left = run(standin.cluster().find(standin.name))
    assert left in [each.ref for each in claims]
    assert len(standin.namespace.left(standin.name)) >= 5


@pytest.mark.parametrize(
    "last", [pytest.param(last, marks=() if last in (0, 4) else pytest.mark.long) for last in range(8)]
)
def test_a_creator_that_is_killed_leaves_nothing_that_stays(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    create, made = Client.create, 0

    async def create_some(self: Client, kind: Kind[Any], manifest: Json) -> Object:
        nonlocal made
        if made == last:
            raise Killed
        made += 1
        return await create(self, kind, manifest)

    with monkeypatch.context() as patched:
        patched.setattr(Client, "create", create_some)
        try:
            run(standin.cluster().claim(standin.spec(), OWNER))
        except Killed:
            assert made == last
    impatient = standin.cluster(times=Times(abandoned=timedelta(0)))
    again = run(impatient.claim(standin.spec(), "the second try"))
    assert again.outcome in (ClaimOutcome.CREATED, ClaimOutcome.ADOPTED)
    assert run(standin.cluster().owner(again.ref)) == "the second try"


def test_what_a_killed_creator_has_left_is_swept_by_others(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_complete", _die)
    with pytest.raises(Killed):
        run(standin.cluster().claim(standin.spec(), OWNER))
    ask = standin.namespace.ask
    assert ask(lambda client: creation.sweep(client, utc_now())) == []
    assert standin.name in ask(lambda client: creation.sweep(client, utc_now() + creation.UNFINISHED))
    assert standin.namespace.left(standin.name) == []


async def _die(*_: Any) -> None:
    raise Killed


def test_a_claim_whose_every_answer_is_lost_is_made_once(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    create = Client.create
    lost: set[str] = set()

    async def lose_the_first(self: Client, kind: Kind[Any], manifest: Json) -> Object:
        answer = await create(self, kind, manifest)
        if kind.plural not in lost:
            lost.add(kind.plural)
            return await create(self, kind, manifest)  # As the client does when the answer did not come.
        return answer

    monkeypatch.setattr(Client, "create", lose_the_first)
    spec = standin.spec()
    assert run(standin.cluster().claim(spec, OWNER)).ref.uid == spec.uid
    assert len(lost) >= 5


def test_a_quota_in_the_middle_takes_back_what_was_made(namespace: Namespace, standin: StandIn) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-jobs"}}
    namespace.kubectl("apply", "--filename=-", text=json.dumps(quota | {"spec": {"hard": {"count/jobs.batch": "0"}}}))
    try:
        until(
            lambda: "used" in json.loads(namespace.kubectl("get", "quota", "no-jobs", "--output=json"))["status"],
            "the quota counts",
            pause=PAUSE,
        )
        with pytest.raises(PermanentError, match=r"exceeded quota.*Raise the namespace's quota"):
            run(standin.cluster().claim(standin.spec(), OWNER))
    finally:
        namespace.kubectl("delete", "quota", "no-jobs")
    until(lambda: namespace.left(standin.name) == [], "nothing is left", pause=PAUSE)


def test_a_namespace_without_rights_says_which_and_what_to_do(namespace: Namespace, standin: StandIn) -> None:
    with as_account(namespace, "default") as connection:
        cluster = standin.cluster(connection=connection)
        with pytest.raises(MissingRight, match=r":default the right to get configmaps: deploy/rbac\.yaml"):
            run(cluster.claim(standin.spec(), OWNER))


def test_an_adopted_run_with_other_pods_is_told_of(standin: StandIn) -> None:
    first = run(standin.cluster().claim(standin.spec(), OWNER))
    assert run(standin.cluster().claim(standin.spec(), OWNER)).differs == ()
    again = run(standin.cluster(env={"NEW": "1"}).claim(standin.spec(), OWNER))
    assert again.ref == first.ref
    assert again.differs == ("pods",)


def test_a_config_map_of_somebody_else_is_left_alone(namespace: Namespace, standin: StandIn) -> None:
    namespace.kubectl("create", "configmap", standin.name)
    try:
        with pytest.raises(PermanentError, match="not of a training run"):
            run(standin.cluster().claim(standin.spec(), OWNER))
    finally:
        namespace.kubectl("delete", "configmap", standin.name)


def test_a_cluster_that_was_got_without_pods_creates_nothing(namespace: Namespace, standin: StandIn) -> None:
    with pytest.raises(InvalidSettings, match="pods"):
        run(KubernetesCluster("tests", namespace.name).claim(standin.spec(), OWNER))


def test_a_connection_that_is_not_there_is_named(standin: StandIn) -> None:
    with pytest.raises(InvalidSettings, match="Airflow connection 'nowhere' is not defined"):
        run(standin.cluster(connection="nowhere").find(standin.name))


def test_a_run_that_no_launcher_can_end_is_replaced_at_once(standin: StandIn) -> None:
    impossible = replace(standin.pods(), image="localhost/nothing:0", image_pull_policy="Never")
    cluster = KubernetesCluster("tests", standin.namespace.name, impossible)
    first = run(cluster.claim(standin.spec(), OWNER))
    run(cluster.cancel(first.ref, "enough", OWNER))
    status = run(cluster.status(first.ref))
    assert (status.failure, status.reason) == (FailureKind.CANCELLED, "cancelled: enough")
    assert run(cluster.claim(standin.spec(), OWNER)).outcome is ClaimOutcome.REPLACED


def test_a_stale_decision_is_never_carried_out(standin: StandIn) -> None:
    """What was decided on one version of the root is not done to the next: the owner, the log_lease, the deletion."""
    cluster = standin.cluster()
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    stale = standin.namespace.ask(lambda client: compare_and_set.read(client, ref))
    run(cluster.claim(standin.spec(), "the second try"))
    with pytest.raises(Conflict):
        standin.namespace.ask(lambda client: removal.remove(client, stale))
    with pytest.raises(OwnershipLost):
        run(cluster.delete(ref, OWNER))
    assert run(cluster.find(standin.name)) == ref


def test_what_is_yet_to_have_pods_goes_before_its_root(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers that are behind would make pods of it while, and after, the garbage collector takes it."""
    ref = run(standin.cluster().claim(standin.spec(), OWNER)).ref
    delete, gone = Client.delete, []

    async def note(self: Client, kind: Kind[Any], name: str, **more: Any) -> Any:
        gone.append(kind)
        return await delete(self, kind, name, **more)

    async def none_yet(*_: Any) -> list[Any]:
        return []

    async def first_step(client: Client) -> None:
        await removal.remove(client, await compare_and_set.read(client, ref))

    with monkeypatch.context() as patched:
        patched.setattr(Client, "delete", note)
        patched.setattr(removal, "_pods", none_yet)
        standin.namespace.ask(first_step)
    assert gone == [JOBS, REPLICA_SETS]


def test_collecting_ends_what_nobody_else_would(standin: StandIn) -> None:
    impossible = replace(standin.pods(), image="localhost/nothing:0", image_pull_policy="Never")
    cluster = KubernetesCluster("tests", standin.namespace.name, impossible)
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    until(lambda: run(cluster.status(ref)).failure is FailureKind.POD_REFUSED, "the pod is refused", pause=PAUSE)
    run(cluster.collect(ref, OWNER))
    until(
        lambda: not any("pod/" in each or "job" in each for each in standin.namespace.left(standin.name)),
        "nothing that was started is left",
        pause=PAUSE,
    )
    assert run(cluster.status(ref)).phase is Phase.FAILED


def test_a_pod_that_does_not_go_does_not_hold_a_deletion_up(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a dead node; here, one with a finalizer would not do: it is deaf to SIGTERM, with a long grace."""
    monkeypatch.setattr(removal, "OVERDUE", timedelta(seconds=-3600))
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(3600)"
    cluster = standin.cluster(deaf)
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    standin.wait_until_launched(ref)
    run(cluster.delete(ref, OWNER))
    with pytest.raises(RunNotFound):
        run(cluster.find(standin.name))


def test_a_job_that_somebody_has_kept_is_not_taken_for_ours(standin: StandIn) -> None:
    cluster = standin.cluster()
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    job = standin.namespace.ask(lambda client: client.get(JOBS, f"{standin.name}-launcher"))
    standin.wait_until_launched(ref)
    standin.namespace.kubectl("delete", "configmap", standin.name, "--cascade=orphan")
    until(
        lambda: standin.namespace.ask(lambda client: client.find(CONFIG_MAPS, standin.name)) is None,
        "the status document is gone",
        pause=PAUSE,
    )
    try:
        with pytest.raises(PermanentError, match="belongs to no run"):
            run(cluster.claim(standin.spec(), OWNER))
    finally:
        every = ",".join(("configmaps", "secrets", "services", "jobs", "replicasets", "networkpolicies"))
        mine = runobjects.selector(run=standin.name)
        standin.namespace.kubectl("delete", every, f"--selector={mine}")
    assert job.labels[runobjects.UID_LABEL] == ref.uid
    # The pod goes by the garbage collector alone.
    until(lambda: standin.namespace.left(standin.name) == [], "nothing is left", 240.0, PAUSE)
