"""Whoever else makes, or can write to, the folder of local runs, or one run's, is not believed, whatever is asked."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.local import LocalCluster
from elastic_training.clusters.registry import get_cluster
from elastic_training.clusters.types import LOG_START, RunRef
from elastic_training.concurrency.bridge import run

SPEC = RunSpec(name="run", uid="1", command=("python",))
REF = RunRef("run", "1")
OWNER = "try 1"


def of_another_user(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can play another user")
    os.chown(path, 65534, 65534)


def writable_for_its_group(path: Path) -> None:
    path.chmod(0o770)


def writable_for_all(path: Path) -> None:
    path.chmod(0o707)


def a_link(path: Path) -> None:
    elsewhere = path.with_name(".elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def a_file(path: Path) -> None:
    path.rename(path.with_name(".elsewhere"))
    path.touch()


async def watched(cluster: Cluster) -> None:
    async with aclosing(cluster.watch(REF, LOG_START, 5.0)) as updates:
        async for _ in updates:
            return


ATTACKS: list[Callable[[Path], None]] = [of_another_user, writable_for_its_group, writable_for_all, a_link, a_file]
ASKED: dict[str, Callable[[Cluster], Coroutine[Any, Any, Any]]] = {
    "find": lambda cluster: cluster.find("run"),
    "status": lambda cluster: cluster.status(REF),
    "owner": lambda cluster: cluster.owner(REF),
    "ask": lambda cluster: cluster.ask(REF, 1, "a wish"),
    "reclaim": lambda cluster: cluster.reclaim(REF, "w0", timedelta(seconds=1)),
    "cancel": lambda cluster: cluster.cancel(REF, "enough", OWNER),
    "collect": lambda cluster: cluster.collect(REF, OWNER),
    "delete": lambda cluster: cluster.delete(REF, OWNER),
    "take_log_lease": lambda cluster: cluster.take_log_lease(REF, OWNER),
    "renew_lease": lambda cluster: cluster.renew_lease(REF, "token"),
    "log_lease_holder": lambda cluster: cluster.log_lease_holder(REF),
    "watch": watched,
    "claim": lambda cluster: cluster.claim(SPEC, OWNER),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With a run that has succeeded, as everything in it says."""
    path = tmp_path / "runs"
    path.mkdir(mode=0o700)
    planted = RunDir(path / "run")
    planted.create(SPEC, OWNER)
    planted.write_status(Status("run", "1", Phase.SUCCEEDED, "believe me", utc_now()))
    return path


@pytest.fixture
def cluster(root: Path) -> LocalCluster:
    return LocalCluster(root, sys.executable, poll=0.01)


def test_the_run_is_there_as_long_as_nobody_else_was(cluster: LocalCluster) -> None:
    assert run(cluster.find("run")) == REF
    assert [each.ref for each in run(cluster.list())] == [REF]


@pytest.mark.parametrize("place", ["", "run"], ids=["root", "run's folder"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_in_it_is_believed_whatever_is_asked(
    place: str, attack: Callable[[Path], None], root: Path, cluster: LocalCluster
) -> None:
    attack(root / place)

    for name, ask in ASKED.items():
        with pytest.raises(InvalidSettings) as caught:
            run(ask(cluster))
        assert caught.value.field == "[elastic_training] local_root", name
        assert f"{root / place} is not a folder of this user alone" in str(caught.value), name
        assert "remove it, make it yours with mode 700, or name another folder" in caught.value.remedy, name


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_squatted_root_is_not_listed(attack: Callable[[Path], None], root: Path, cluster: LocalCluster) -> None:
    attack(root)

    with pytest.raises(InvalidSettings, match="not a folder of this user alone"):
        run(cluster.list())


@pytest.mark.parametrize("attack", ATTACKS)
def test_nor_is_a_squatted_run_among_others(attack: Callable[[Path], None], root: Path, cluster: LocalCluster) -> None:
    mine = RunDir(root / "mine")
    mine.create(RunSpec(name="mine", uid="2", command=("python",)), OWNER)
    attack(root / "run")

    assert [each.ref.name for each in run(cluster.list())] == ["mine"]


def test_a_watch_that_goes_on_looks_every_time(root: Path, cluster: LocalCluster) -> None:
    planted = RunDir(root / "run")
    planted.write_status(Status("run", "1", Phase.RUNNING, "", utc_now()))

    async def follow() -> None:
        async with aclosing(cluster.watch(REF, LOG_START, 5.0)) as updates:
            async for _ in updates:
                writable_for_all(root / "run")

    with planted.lock.open("a") as launcher:
        fcntl.flock(launcher, fcntl.LOCK_EX)
        with pytest.raises(InvalidSettings, match="not a folder of this user alone"):
            run(follow())


def test_the_folder_lies_in_airflows_home_and_not_where_others_can_be_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.configuration import AIRFLOW_HOME

    assert run(get_cluster("local").plan(SPEC)).startswith(f"folder {AIRFLOW_HOME}/elastic_training/run;")
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", "/srv/runs")
    assert run(get_cluster("local").plan(SPEC)).startswith("folder /srv/runs/run;")


def test_what_is_made_is_this_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "deep" / "runs", str(tmp_path / "no-python"))
    before = os.umask(0)
    try:
        with pytest.raises(InvalidSettings, match="local_python"):
            run(cluster.claim(SPEC, OWNER))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "runs").stat().st_mode) == 0o700
