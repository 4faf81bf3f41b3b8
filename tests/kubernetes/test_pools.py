"""Pools in pods: brought up once by many, resized, listed, taken down; runs that have no workers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from elastic_runtime.errors import ClusterUnavailable, Conflict, InvalidSettings, RunNotFound
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, REPLICA_SETS
from elastic_runtime.pool.pods.objects import POOL_LABEL, PoolNames
from elastic_runtime.pool.settings import PoolSettings
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.runobjects import SIZE, ObjectNames
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_training.clusters.kubernetes import connection, pools
from elastic_training.clusters.kubernetes.manifests.mutation import mutated
from elastic_training.clusters.kubernetes.manifests.pool import pool_objects
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.clusters.kubernetes.pools import NamespacePools
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.main import main
from elastic_training.settings import Workers
from elastic_training.settings.training_pool import PodPool
from tests.kubernetes.standin import SLEEPS
from tests.kubernetes_namespace import CONNECTION, IMAGE, Namespace
from tests.paced import until

pytestmark = pytest.mark.timeout(420)


class Pools:
    """Those of the namespace, and one with a name of its own, whose keeper does nothing."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace, self.name = namespace, f"test-{uuid4().hex[:8]}"
        pods = replace(namespace.pods, command=["tini", "--", "python", "-u", "-c", SLEEPS])
        self.wanted = PodPool(self.name, PoolSettings(self.name, 0, 4), pods.of_run(Workers(1, 1, 1)))
        self.of_namespace = NamespacePools(CONNECTION, namespace.name)

    def up(self, wanted: PodPool | None = None) -> PoolSettings:
        return run(self.of_namespace.have_up(wanted or self.wanted))

    def listed(self) -> list[PoolSettings]:
        found = [each.settings for each, _ in run(self.of_namespace.list())]
        return [each for each in found if each.name == self.name]

    def left(self) -> list[str]:
        kinds = "configmaps,secrets,services,replicasets,pods,networkpolicies"
        return self.namespace.kubectl("get", kinds, f"--selector={POOL_LABEL}={self.name}", "--output=name").split()

    def cluster(self) -> KubernetesCluster:
        return KubernetesCluster(CONNECTION, self.namespace.name, PodPool(self.name))


@pytest.fixture
def kept(namespace: Namespace) -> Iterator[Pools]:
    """Nothing of its pool is left afterwards."""
    made = Pools(namespace)
    try:
        yield made
        with suppress(RunNotFound):
            run(made.of_namespace.take_down(made.name))
        until(lambda: not made.left(), lambda: f"left: {made.left()}")
    finally:
        connection.forget()


def test_of_many_who_bring_it_up_at_once_one_does(kept: Pools) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: kept.up(), range(6))) == [kept.wanted.settings] * 6
    assert kept.listed() == [kept.wanted.settings]
    root = kept.namespace.ask(lambda client: client.get(CONFIG_MAPS, PoolNames(kept.name).root))
    assert root.raw["immutable"] is True


def test_it_is_resized_and_one_with_other_settings_is_refused(kept: Pools) -> None:
    with pytest.raises(InvalidSettings, match="is not up in namespace"):
        kept.up(PodPool(kept.name))
    with pytest.raises(RunNotFound, match="is not up"):
        run(kept.of_namespace.resize(kept.name, maximum=2))
    kept.up()
    changed = run(kept.of_namespace.resize(kept.name, minimum=1, maximum=2))
    assert (changed.minimum, changed.maximum) == (1, 2)
    assert kept.listed() == [changed]
    assert kept.up() == changed, "it is what it was brought up with"
    assert kept.up(PodPool(kept.name)) == changed
    with pytest.raises(InvalidSettings, match="other settings"):
        kept.up(replace(kept.wanted, settings=PoolSettings(kept.name, 0, 4, gpus=2)))
    with pytest.raises(InvalidSettings, match=r"pool\.min"):
        run(kept.of_namespace.resize(kept.name, minimum=3))


def test_one_whose_creator_has_died_is_taken_away_and_can_be_brought_up_again(
    kept: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = pool_objects(kept.wanted, uuid4().hex, kept.namespace.name, mutated)
    kept.namespace.ask(lambda client: client.create(CONFIG_MAPS, half.root()))
    monkeypatch.setattr(pools, "COMING", 1.0)
    with pytest.raises(ClusterUnavailable, match="was never completed"):
        kept.up()
    assert kept.up() == kept.wanted.settings


def test_a_run_of_it_has_no_workers_of_its_own_and_its_size_is_in_its_root(kept: Pools) -> None:
    kept.up()
    spec = RunSpec(f"run-{kept.name}", uuid4().hex, ("true",), WorkersSpec(1, 2, 4))
    cluster = kept.cluster()
    with pytest.raises(InvalidSettings, match="is more than pool"):
        run(cluster.claim(replace(spec, workers=WorkersSpec(5, 5, 5)), "me"))
    claim = run(cluster.claim(spec, "me"))
    try:
        assert run(cluster.spec(claim.ref)).pool == PoolSpec(kept.name)
        names = ObjectNames(spec.name)
        assert kept.namespace.ask(lambda client: client.find(REPLICA_SETS, names.worker)) is None
        assert run(cluster.size(claim.ref)) == 2
        assert run(cluster.ask(claim.ref, "+1", "more", "me")).workers == 3
        root = kept.namespace.ask(lambda client: client.get(CONFIG_MAPS, names.root))
        assert root.annotations[SIZE] == "3"
        assert run(cluster.ask(claim.ref, "+1", "more", "me")).workers == 3, "once"
        assert [each.pool for each in run(cluster.list()) if each.ref == claim.ref] == [kept.name]
        with pytest.raises(Conflict, match=f"has runs: {spec.name}"):
            run(kept.of_namespace.take_down(kept.name))
    finally:
        run(cluster.delete(claim.ref, "me"))


def test_the_command_brings_it_up_lists_resizes_and_ends_it(kept: Pools, capsys: pytest.CaptureFixture[str]) -> None:
    def says(*words: str) -> str:
        assert main(["pool", *words, "--on", f"{CONNECTION}/{kept.namespace.name}"]) == 0
        return capsys.readouterr().out

    told = says("up", kept.name, "--image", IMAGE, "--max", "2")
    assert f'cluster="pool:{kept.name}@{CONNECTION}/{kept.namespace.name}"' in told
    assert f"pool {kept.name}: " in says()
    assert "max=1" in says("resize", kept.name, "--max", "1")
    assert "is down" in says("down", kept.name)
    assert kept.name not in says()
    assert main(["pool", "--on", "local"]) != 0
    assert "no cluster of pods" in capsys.readouterr().err
