"""A place in Spark: names, connections, settings, and what is checked before a run is created."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.rundir import LauncherProcess, RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, Status
from elastic_runtime.spark.jobs import SPEC, SparkSpec
from elastic_training import spark
from elastic_training.clusters import local
from elastic_training.clusters.location import SparkName, read_location
from elastic_training.clusters.registry import check_cluster, get_cluster, has_pods, own_name
from elastic_training.clusters.spark import STARTING, SparkCluster, SparkDrivers, check_driver, this_machine
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Pods, Spark, Workers
from elastic_training.spark import Trained, train
from elastic_training.spark_files import Files

NAME = "spark://master:7077/shared/runs"


class TestNames:
    @pytest.mark.parametrize(
        "name", [NAME, "spark://a:7077,b:7077/shared", "spark://[::1]:7077/shared", "spark:team-a"]
    )
    def test_a_master_with_a_folder_and_a_connection(self, name: str) -> None:
        check_cluster(name)
        assert not has_pods(name)

    @pytest.mark.parametrize("name", ["spark:", "spark://master/shared", "spark://master:7077", "spark:/shared"])
    def test_others_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            check_cluster(name)
        assert "spark://HOST:PORT/FOLDER" in caught.value.remedy

    def test_a_master_with_a_folder_is_a_cluster_without_asking_anybody(self) -> None:
        assert isinstance(get_cluster(NAME), SparkCluster)
        assert own_name(NAME) == NAME
        assert SparkName.parse(NAME) == SparkName("spark://master:7077", "/shared/runs")

    def test_a_connection_leads_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = {"place": "spark", "master": "spark://master:7077", "folder": "/shared/runs/", "pyspark": "/bin/spark"}
        monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "elastic_training", "extra": extra}))
        assert own_name("team") == own_name("spark:team") == NAME
        assert read_location("team", extra).pyspark == "/bin/spark"

    def test_one_that_leads_elsewhere_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = {"place": "slurm", "folder": "/shared"}
        monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "elastic_training", "extra": extra}))
        with pytest.raises(InvalidSettings, match="whose place is spark"):
            own_name("spark:team")

    @pytest.mark.parametrize(("master", "folder"), [("", "/a"), ("yarn", "/a"), ("spark://m:7077", "a")])
    def test_a_connection_names_a_master_and_an_absolute_path(self, master: str, folder: str) -> None:
        with pytest.raises(InvalidSettings, match="master of connection team"):
            read_location("team", {"place": "spark", "master": master, "folder": folder})


class TestSettings:
    def test_become_a_specification(self) -> None:
        settings = Spark(cpus=4, memory="1G", grace=60, pyspark="/bin/spark", conf={"spark.driver.host": "10.0.0.5"})
        assert settings.spec("spark://m:1", "/bin/python", gpus=2) == SparkSpec(
            master="spark://m:1",
            python="/bin/python",
            pyspark="/bin/spark",
            cpus=4,
            gpus=2,
            memory="1g",
            grace=60.0,
            conf={"spark.driver.host": "10.0.0.5"},
        )

    def test_the_connections_pyspark_is_used_where_a_task_names_none(self) -> None:
        assert Spark().spec("spark://m:1", "/bin/python", gpus=0, pyspark="/bin/spark").pyspark == "/bin/spark"
        assert Spark().spec("spark://m:1", "/bin/python", gpus=0).pyspark == "/bin/python"

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"cpus": 0}, "spark.cpus"),
            ({"memory": "much"}, "spark.memory"),
            ({"grace": -1}, "spark.grace"),
            ({"conf": ["spark.a"]}, "spark.conf"),
            ({"conf": {"java.home": "/"}}, "spark.conf"),
            ({"conf": {"spark.task.maxFailures": "4"}}, "spark.conf"),
            ({"conf": {"spark.a": "b\nc"}}, "spark.conf"),
        ],
    )
    def test_what_cannot_be_is_refused(self, wrong: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            Spark(**wrong)
        assert caught.value.field == field

    @pytest.mark.parametrize("system", ["slurm", "ray", "spark"])
    @pytest.mark.parametrize("cluster", ["local", "slurm:/f", "ray:h:8265/f", NAME])
    def test_settings_of_a_system_that_the_cluster_is_not_in_are_refused(self, cluster: str, system: str) -> None:
        arguments: dict[str, Any] = {"task_id": "t", "command": ["true"], "workers": Workers(), system: {}}
        if cluster.startswith(f"{system}:"):
            assert getattr(ElasticTorchOperator(**arguments, cluster=cluster), system) is not None
            return
        with pytest.raises(InvalidSettings, match=f"{system}: it is about .* there are none"):
            ElasticTorchOperator(**arguments, cluster=cluster)

    def test_an_operator_refuses_tasks_on_this_machine_and_pods_in_spark(self) -> None:
        arguments: dict[str, Any] = {"task_id": "t", "command": ["true"], "workers": Workers()}
        with pytest.raises(InvalidSettings, match="it is about tasks of Spark"):
            ElasticTorchOperator(**arguments, cluster="local", spark=Spark())
        with pytest.raises(InvalidSettings, match="it is about pods"):
            ElasticTorchOperator(**arguments, cluster=NAME, pods=Pods(labels={"a": "b"}))
        made = ElasticTorchOperator(**arguments, cluster=NAME, spark={"cpus": 2})
        assert made.spark == Spark(cpus=2)


@pytest.fixture
def port() -> Iterator[int]:
    """Of something that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """That nobody else is given meanwhile, and that accepts nothing."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter with a package called pyspark."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return sys.executable


class TestBeforeARun:
    def test_one_of_several_masters_is_enough(self, python: str, port: int, closed_port: int) -> None:
        check_driver(f"spark://127.0.0.1:{closed_port},127.0.0.1:{port}", python)

    def test_no_master_is_an_outage_with_its_address(self, python: str, closed_port: int) -> None:
        words = f"no master of Spark accepts connections .127.0.0.1:{closed_port}"
        with pytest.raises(ClusterUnavailable, match=words):
            check_driver(f"spark://127.0.0.1:{closed_port}", python)

    def test_an_interpreter_without_pyspark_is_refused(self, port: int) -> None:
        with pytest.raises(InvalidSettings, match="has no pyspark") as caught:
            check_driver(f"spark://127.0.0.1:{port}", sys.executable)
        assert caught.value.field == "spark.pyspark"


class TestLauncher:
    def test_workers_have_the_credentials_whose_values_are_in_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[Any] = []
        monkeypatch.setattr(local, "start_launcher", lambda *arguments: started.append(arguments))
        folder = RunDir(tmp_path / "run")
        folder.create(RunSpec("digits", "uid", ("true",), WorkersSpec(1, 1, 1)), "me")
        credentials = {"AWS_SECRET_ACCESS_KEY": "planted"}

        SparkDrivers(SparkSpec("spark://m:1", "/a", "/b", exported=("SITE",))).start(folder, credentials)

        assert json.loads((folder.path / SPEC).read_text())["exported"] == ["AWS_SECRET_ACCESS_KEY", "SITE"]
        assert started == [("/a", folder, credentials)]
        assert "planted" not in str([path.read_text() for path in folder.path.iterdir() if path.is_file()])

    def test_one_that_starts_on_another_machine_is_not_lost_before_it_has_its_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = RunDir(tmp_path / "run")
        folder.create(RunSpec("digits", "uid", ("true",), WorkersSpec(1, 1, 1)), "me")
        monkeypatch.setattr(local, "start_launcher", lambda *_: None)
        (folder.path / "starter.json").write_text(to_json(LauncherProcess(1, 2.0)))
        drivers = SparkDrivers(SparkSpec("spark://m:1", "/a", "/b"))
        drivers.start(folder, {})
        assert not drivers.alive(folder), "it would be seen here"
        here = this_machine()
        monkeypatch.setattr("elastic_training.clusters.spark.this_machine", lambda: f"another {here}")
        assert SparkDrivers(None).alive(folder)
        now = time.time()
        os.utime(folder.path / "starter.json", (now - STARTING, now - STARTING))
        assert not SparkDrivers(None).alive(folder)


class TestFromAFrame:
    @pytest.mark.parametrize(
        "data", ["hdfs://name/frames", "gs://bucket/frames", "dbfs:/frames", "s3a://bucket", "s3://"]
    )
    def test_files_elsewhere_are_refused(self, data: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            train(object(), ["true"], cluster=NAME, data=data)
        assert caught.value.field == "data"
        assert "s3://bucket/prefix" in caught.value.remedy

    def test_each_training_has_files_of_its_own(self) -> None:
        assert Files.below("/shared/data/", "run") == Files.below("file:///shared/data", "run")
        assert Files.below("/shared/data", "run").uri == "/shared/data/run"
        assert Files.below("s3://bucket/frames", "run").uri == "s3://bucket/frames/run"

    def test_a_store_without_pyarrow_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(InvalidSettings, match="needs pyarrow, which is not installed"):
            Files.below("s3://bucket/frames", "run").write(object(), None)

    def test_a_connection_says_with_which_interpreters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = {"place": "spark", "master": "spark://m:1", "folder": "/runs", "python": "/a", "pyspark": "/b"}
        monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "elastic_training", "extra": extra}))
        seen: list[Any] = []

        def called(*arguments: Any) -> None:
            seen.extend(arguments)
            raise ClusterUnavailable("that is enough")

        monkeypatch.setattr("elastic_training.spark.cluster_called", called)
        with pytest.raises(ClusterUnavailable):
            train(object(), ["true"], cluster="team", data="/shared")
        assert seen == ["spark://m:1/runs", SparkSpec(master="spark://m:1", python="/a", pyspark="/b")]

    @pytest.mark.parametrize(("outage", "ends"), [(300.0, True), (0.0, False)])
    def test_a_status_that_cannot_be_read_for_a_moment_ends_no_run(
        self, monkeypatch: pytest.MonkeyPatch, outage: float, ends: bool
    ) -> None:
        over = Status("run", "uid", Phase.SUCCEEDED, "", utc_now())
        calls: list[str] = []

        class Played:
            answers = iter([ClusterUnavailable("status.json cannot be read"), over])

            async def claim(self, *_: object) -> SimpleNamespace:
                return SimpleNamespace(ref="run")

            async def status(self, _: object) -> Status:
                answer = next(self.answers)
                if isinstance(answer, Exception):
                    await asyncio.sleep(0.01)
                    raise answer
                return answer

            async def cancel(self, *_: object) -> None:
                calls.append("cancel")

            async def delete(self, *_: object) -> None:
                calls.append("delete")

        monkeypatch.setattr(spark, "LOOK", 0.0)
        monkeypatch.setattr(spark, "OUTAGE", outage)
        cluster: Any = Played()
        if ends:
            assert spark._to_the_end(cluster, RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3))) is over
            assert calls == ["delete"]
        else:
            with pytest.raises(ClusterUnavailable, match="cannot be read"):
                spark._to_the_end(cluster, RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3)))
            assert calls == ["cancel"]

    def test_a_model_needs_a_checkpoint_and_torch(self) -> None:
        status = Status("run", "uid", Phase.SUCCEEDED, "", utc_now())
        trained = Trained(None, None, {}, None, (2,), status, {"AWS_SECRET_ACCESS_KEY": "secret"})
        assert "secret" not in repr(trained)
        with pytest.raises(InvalidSettings, match="has left no checkpoint"):
            trained.state()
        with pytest.raises(InvalidSettings, match="no checkpoint can be read here") as caught:
            replace(trained, checkpoint="s3://bucket/runs/ckpt").state()
        assert "s3://bucket/runs/ckpt" in caught.value.remedy
