"""Trainings whose workers are pods of a standing pool: they come warm, and pass from one training to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from elastic_runtime.errors import Conflict, InvalidSettings
from elastic_runtime.pool.pods.objects import PoolPart
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.runobjects import Part
from elastic_training.clusters.kubernetes.place import KubernetesCluster
from elastic_training.concurrency.bridge import run as wait_for
from elastic_training.settings import Workers
from elastic_training.settings.training_pool import PodPool
from tests.kubernetes_namespace import CONNECTION
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import Place, PodRun
from tests.kubernetes_reclaims.pooled import NAME, SETTINGS, PooledPlace, kept
from tests.paced import Script, Undisturbed, sizes_of

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def pooled(place: Place) -> Iterator[PooledPlace]:
    with kept(place) as made:
        yield made


def begin(start: Start, place: PooledPlace, script: Script, wanted: int, priority: int) -> PodRun:
    return start(script, (1, wanted, 2), at=place, engine="torch", pool=PoolSpec(NAME, priority))


@pytest.mark.shows(engine="torch", fault="resize", place="pool")
def test_two_trainings_hand_a_worker_over_and_back_and_lose_no_step(
    start: Start, pooled: PooledPlace, undisturbed: Undisturbed
) -> None:
    low = begin(start, pooled, Script("exact.py", holds=(10, 20)), 2, 1)
    low.at(10)
    low.trains(2)
    assert low.pods(Part.WORKER) == [], "it has none of its own"
    high = begin(start, pooled, Script("exact.py", holds=(10,)), 2, 10)
    low.go(10)
    low.at(20)
    high.trains(2)
    low.trains(1)
    assert any("priority 1 beside" in event.message for event in low.status().events)
    high.at(10)
    with pytest.raises(Conflict, match="has runs"):
        wait_for(pooled.pools.take_down(NAME))
    pooled.namespace.kubectl("delete", "--wait=false", *pooled.pods_of(PoolPart.KEEPER))
    high.resize(1)
    low.trains(2)
    for run in (high, low):
        run.finish()
        undisturbed.assert_same(run)
    assert len(pooled.pods_of(PoolPart.HOST)) == SETTINGS.maximum, "they stay"


@pytest.mark.long
@pytest.mark.shows(engine=("horovod", "torch", "torch-sharded"), fault="resize", place="pool")
@pytest.mark.parametrize(
    ("engine", "environment"),
    [
        pytest.param("horovod", {}, id="horovod"),
        pytest.param("torch", {"IN_PLACE": "1"}, id="torch-in-place"),
        pytest.param("torch", {"SHARDED": "1"}, id="torch-sharded"),
    ],
)
def test_other_engines_and_states_are_resized_in_a_pool(
    start: Start, pooled: PooledPlace, undisturbed: Undisturbed, engine: str, environment: dict[str, str]
) -> None:
    script, pool = Script("exact.py", holds=(10, 20)), PoolSpec(NAME, 1)
    run = start(script, (1, 2, 3), at=pooled, engine=engine, pool=pool, environment=environment)
    for step, size in ((10, 3), (20, 1)):
        run.at(step)
        run.resize(size)
        run.trains(size)
        run.go(step)
    run.finish()
    assert sizes_of(run.status())[-3:] == [3, 1, 0]
    undisturbed.assert_same(run)


@pytest.mark.shows(engine="torch", fault="notice", place="pool")
def test_a_pod_that_will_be_taken_is_replaced_and_no_step_is_lost(
    start: Start, pooled: PooledPlace, undisturbed: Undisturbed
) -> None:
    run = begin(start, pooled, Script("exact.py", holds=(10, 20)), 2, 1)
    run.at(10)
    run.trains(2)
    taken = run.worker(1).name
    run.delete_worker(taken)
    run.go(10)
    run.at(20)
    run.until_status(lambda status: taken not in [each.name for each in status.workers if each.ranks], "it has left")
    run.trains(2)
    assert WorkerName.parse(taken).pod not in {WorkerName.parse(name).pod for name in run.present()}
    run.finish()
    undisturbed.assert_same(run)


def test_a_pool_has_another_size_and_other_settings_are_refused(
    start: Start, pooled: PooledPlace, undisturbed: Undisturbed
) -> None:
    wait_for(pooled.pools.resize(NAME, maximum=1))
    run = begin(start, pooled, Script("exact.py", holds=(10,)), 2, 1)
    run.at(10)
    run.trains(1)
    assert any("which has 1 at most" in event.message for event in run.status().events)
    wait_for(pooled.pools.resize(NAME, maximum=SETTINGS.maximum))
    run.trains(2)
    run.finish()
    undisturbed.assert_same(run)
    other = PodPool(NAME, replace(SETTINGS, gpus=1), pooled.pods.of_run(Workers(1, 1, 1)))
    with pytest.raises(InvalidSettings, match="is up with other settings"):
        wait_for(
            KubernetesCluster(CONNECTION, pooled.namespace.name, other).claim(replace(run.spec, name="another"), "me")
        )
