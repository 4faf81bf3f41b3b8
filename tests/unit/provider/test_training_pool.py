"""Standing pools: their settings, how a task names one, and how one is brought up and taken down; with no processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import ClusterUnavailable, Conflict, InvalidSettings, RunNotFound
from elastic_runtime.pool.folder import PoolDir, pool_folder
from elastic_runtime.pool.settings import PoolNotebook, PoolSettings, PoolSize
from elastic_runtime.pool.status import PoolRun, PoolStatus
from elastic_runtime.run.pool import PoolSpec
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_training.archive.where import address_of
from elastic_training.clusters import pool as pools
from elastic_training.clusters import registry
from elastic_training.clusters.local import LocalCluster
from elastic_training.clusters.pool import PoolCluster, check_machine, have_up, list_pools, resize, take_down
from elastic_training.clusters.registry import check_cluster, cluster_called, has_pods, own_name
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.main import main
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Recovery, TrainingPool, Workers
from tests.unit.provider.operator_bench import operator

SETTINGS = PoolSettings("team-a", 0, 4)
SPEC = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 4))


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("pool.name", {"name": "Team A"}),
        ("pool.max", {"max": 0}),
        ("pool.max", {"max": "many"}),
        ("pool.min", {"min": 3, "max": 2}),
        ("pool.gpus", {"gpus": -1}),
        ("pool.idle", {"idle": timedelta(days=31)}),
        ("pool.idle", {"idle": "long"}),
        ("pool.jupyter", {"jupyter": 80}),
        ("pool.jupyter", {"jupyter": "yes"}),
        ("pool.jupyter_python", {"jupyter_python": "/usr/bin/python3"}),
    ],
)
def test_settings_that_cannot_be_are_refused(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        TrainingPool(**{"name": "team-a", **given})
    assert caught.value.field == field


def test_the_name_of_a_pool_is_a_cluster_of_this_machine() -> None:
    check_cluster("pool:team-a")
    with pytest.raises(InvalidSettings, match="not the name of a pool"):
        check_cluster("pool:Team A")
    assert isinstance(cluster_called("pool:team-a"), PoolCluster)
    assert own_name("pool:team-a") == "pool:team-a"
    assert not has_pods("pool:team-a")
    assert address_of(None, None, "pool:team-a") == address_of(None, None, "local")


def test_a_task_says_its_place_in_the_pool() -> None:
    task = operator(
        cluster=TrainingPool("team-a", max=4), workers=Workers(min=1, max=4, greedy=True), priority_weight=10
    )
    assert task.cluster == "pool:team-a"
    assert task.spec("run").pool == PoolSpec("team-a", 10, True)
    assert operator(task_id="other", cluster="pool:team-a").spec("run").pool == PoolSpec("team-a", 1, False)
    assert operator(task_id="third").spec("run").pool is None


def test_what_a_pool_cannot_give_is_refused_at_parse() -> None:
    with pytest.raises(InvalidSettings, match=r"workers\.greedy"):
        operator(workers=Workers(greedy=True))
    with pytest.raises(InvalidSettings, match="about pods"):
        operator(cluster="pool:team-a", image="registry/trainer:1")
    fixed = operator(cluster="pool:team-a", recovery=Recovery(mode="fixed"))
    with pytest.raises(InvalidSettings, match=r"recovery\.mode"):
        fixed.spec("run")


def test_a_notebook_needs_jupyterlab(tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "modules_of", lambda *_: [])
    with pytest.raises(InvalidSettings, match="/srv/python has no jupyterlab"):
        have_up(tmp_path, "/srv/python", "team-a", TrainingPool("team-a", jupyter=True).spec())
    with pytest.raises(InvalidSettings, match="/srv/other has no jupyterlab"):
        have_up(
            tmp_path, "/srv/python", "team-a", TrainingPool("team-a", jupyter=9000, jupyter_python="/srv/other").spec()
        )
    assert not started
    assert not list(tmp_path.glob(".pool.team-a/notebook.*"))


def test_mapped_tasks_name_a_pool_that_is_up() -> None:
    settings = {"task_id": "train", "workers": Workers(min=1)}
    with pytest.raises(InvalidSettings, match="pool:team-a"):
        ElasticTorchOperator.partial(cluster=TrainingPool("team-a"), **settings)
    ElasticTorchOperator.partial(cluster="pool:team-a", **settings).expand(command=[["python", "train.py"]])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Folders of the pools for which a keeper was started, which holds its lock."""
    found: list[str] = []
    locks = []

    def start(self: PoolDir, *_: object) -> object:
        found.append(self.path.name)
        locks.append(self.lock.open("a"))
        fcntl.flock(locks[-1], fcntl.LOCK_EX)
        (self.path / "keeper.json").touch()
        return type("Process", (), {"poll": lambda _: 0})()

    monkeypatch.setattr(PoolDir, "start", start)
    yield found
    for lock in locks:
        lock.close()


def test_a_pool_that_was_never_brought_up_is_refused(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(InvalidSettings, match="elastic-training pool up team-a"):
        run(PoolCluster(tmp_path, "python", "team-a").claim(SPEC, "me"))
    assert not started


def test_the_first_run_brings_its_pool_up_and_others_find_it(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_training.clusters.local.check_python", lambda *_: None)
    monkeypatch.setattr("elastic_training.clusters.local.start_launcher", lambda *_: None)
    cluster = PoolCluster(tmp_path, "python", "team-a", SETTINGS)
    claim = run(cluster.claim(SPEC, "me"))
    assert started == [".pool.team-a"]
    assert run(cluster.spec(claim.ref)).pool == PoolSpec("team-a")
    other = PoolCluster(tmp_path, "python", "team-b", PoolSettings("team-b"))
    assert have_up(tmp_path, "python", "team-a") == SETTINGS
    assert len(started) == 1, "its keeper lives"
    assert [each.ref.name for each in run(cluster.list())] == ["run"]
    assert list(run(other.list())) == []
    assert [each.ref.name for each in run(LocalCluster(tmp_path, "python").list())] == ["run"]


@pytest.mark.parametrize(
    ("spec", "settings", "field"),
    [
        (RunSpec("run", "uid", ("true",), WorkersSpec(5, 5, 5)), SETTINGS, "workers.min"),
        (RunSpec("run", "uid", ("true",), WorkersSpec(1, 1, 1, 2)), PoolSettings("team-a", 0, 4, 1), "workers.slots"),
    ],
)
def test_a_run_that_can_never_have_its_workers_is_refused(
    spec: RunSpec, settings: PoolSettings, field: str, tmp_path: Path, started: list[str]
) -> None:
    pool_folder(tmp_path, "team-a").create(settings)
    with pytest.raises(InvalidSettings) as caught:
        run(PoolCluster(tmp_path, "python", "team-a").claim(spec, "me"))
    assert caught.value.field == field
    assert started == [".pool.team-a"]


def test_other_settings_of_a_pool_that_is_up_are_refused(tmp_path: Path, started: list[str]) -> None:
    have_up(tmp_path, "python", "team-a", SETTINGS)
    with pytest.raises(InvalidSettings, match="max=4"):
        have_up(tmp_path, "python", "team-a", PoolSettings("team-a", 0, 5))
    assert len(started) == 1


def test_a_pool_is_resized_while_it_is_up(tmp_path: Path, started: list[str]) -> None:
    have_up(tmp_path, "python", "team-a", SETTINGS)
    assert resize(tmp_path, "team-a", maximum=6, idle=60.0).size == PoolSize(0, 6, 60.0)
    assert pool_folder(tmp_path, "team-a").settings().before == SETTINGS.size
    have_up(tmp_path, "python", "team-a", SETTINGS)  # A task has the settings with which it was brought up,
    have_up(tmp_path, "python", "team-a", PoolSettings("team-a", 0, 6, idle=60.0))  # and another the present ones.
    with pytest.raises(InvalidSettings, match="pool resize team-a"):
        have_up(tmp_path, "python", "team-a", PoolSettings("team-a", 0, 7))
    assert resize(tmp_path, "team-a", maximum=4, idle=600.0) == SETTINGS
    with pytest.raises(InvalidSettings, match=r"pool\.min"):
        resize(tmp_path, "team-a", minimum=5)
    assert pool_folder(tmp_path, "team-a").settings() == SETTINGS
    assert len(started) == 1


def test_what_is_not_up_cannot_be_resized(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="is not up"):
        resize(tmp_path, "team-a", maximum=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("gpus", "largest"), [(0, 2), (1, 4), (2, 2)])
def test_a_larger_pool_needs_gpus_that_no_worker_has(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, gpus: int, largest: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    have_up(tmp_path, "python", "team-a", PoolSettings("team-a", 0, 2, gpus))
    assert resize(tmp_path, "team-a", maximum=largest).maximum == largest
    with pytest.raises(InvalidSettings):
        resize(tmp_path, "team-a", maximum=largest + 1)
    assert started
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resize(tmp_path, "team-a", maximum=1).maximum == 1, "a smaller pool needs none"


def test_the_remedy_for_other_settings_is_a_command_that_helps(tmp_path: Path, started: list[str]) -> None:
    have_up(tmp_path, "python", "team-a", SETTINGS)
    with pytest.raises(InvalidSettings, match="pool resize team-a --min 1 --max 6 --idle 600"):
        have_up(tmp_path, "python", "team-a", PoolSettings("team-a", 1, 6))
    with pytest.raises(InvalidSettings, match="pool down team-a"):
        have_up(tmp_path, "python", "team-a", PoolSettings("team-a", 1, 6, notebook=PoolNotebook()))
    assert started


def test_workers_need_the_gpus_of_this_machine() -> None:
    check_machine(PoolSettings("a", 0, 2, 1), {"CUDA_VISIBLE_DEVICES": ["0", "1"]})
    with pytest.raises(InvalidSettings, match="2 of this machine"):
        check_machine(PoolSettings("a", 0, 3, 1), {"CUDA_VISIBLE_DEVICES": ["0", "1"]})


def test_a_pool_with_runs_stays_up(tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_ENDING", 0.1)
    have_up(tmp_path, "python", "team-a", SETTINGS)
    found = PoolRun("digits", "uid", 10, False, 1, 2, 4, 2, ("worker-0", "worker-1"), "")
    pool_folder(tmp_path, "team-a").write_status(PoolStatus(SETTINGS, 4, 2, (found,)))
    with pytest.raises(Conflict, match="digits"):
        take_down(tmp_path, "team-a")
    assert [status.runs for status, _ in list_pools(tmp_path)] == [(found,)]
    assert started


def test_a_pool_whose_processes_do_not_end_is_told_of(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    have_up(tmp_path, "python", "team-a", SETTINGS)
    monkeypatch.setattr(pools, "_GOING", 0.1)
    with pytest.raises(ClusterUnavailable, match="have not ended"):
        take_down(tmp_path, "team-a")
    assert started
    assert list(list_pools(tmp_path)) == []


def test_what_is_not_up_cannot_be_taken_down(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="is not up"):
        take_down(tmp_path, "team-a")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(registry, "local_settings", lambda: (tmp_path, "python"))
    return lambda *words: main(["pool", *words])


def test_the_command_tells_who_has_what_and_why(
    command: Callable[..., int], tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("up", "team-a", "--max", "4") == 0
    assert 'cluster="pool:team-a"' in capsys.readouterr().out
    runs = (
        PoolRun("digits", "1", 10, False, 1, 3, 3, 3, ("worker-0", "worker-1", "worker-2"), ""),
        PoolRun("nightly", "2", 1, True, 1, 2, 4, 1, ("worker-0",), "has 1 of 2 workers"),
    )
    pool_folder(tmp_path, "team-a").write_status(PoolStatus(SETTINGS, 4, 0, runs))
    assert command() == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "pool team-a: 4 of 4 workers train, 0 are warm and free"
    assert told[2].split() == ["digits", "10", "3", "3", "has", "what", "it", "wishes", "for"]
    assert "2 (up to 4)" in told[3]
    assert told[3].endswith("has 1 of 2 workers")
    assert command("--json") == 0
    assert '"kept": true' in capsys.readouterr().out
    assert command("resize", "team-a", "--max", "6") == 0
    assert "max=6" in capsys.readouterr().out
    assert command() == 0
    assert "4 of 6 workers train" in capsys.readouterr().out
    assert command("resize", "team-a", "--max", "0") == 1
    assert command("resize", "team-a") == 1
    assert "--max" in capsys.readouterr().err
    assert command("down", "team-b") == 1
    assert started
