"""Ray as a place: its names, its settings, and when a launcher lives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.documents import from_json
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.ray.credentials import read_credentials
from elastic_runtime.ray.jobs import SPEC, RaySpec, job_id
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_training.clusters.jobs import SeenJobs
from elastic_training.clusters.location import RayName, read_location
from elastic_training.clusters.ray import RayCluster, RayHost
from elastic_training.clusters.registry import check_cluster, get_cluster, has_pods, own_name
from elastic_training.identity.ownership import Owner
from elastic_training.identity.page_address import has_pages
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Pods, Ray, Workers

RUN = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3))


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "ray:head:8265/runs",
            "ray:http://head:8265/runs",
            "ray:https://[fd00::1]:8265/runs",
            "ray:head/runs",
            "ray:team-a",
        ],
    )
    def test_an_address_with_a_folder_and_a_connection(self, name: str) -> None:
        check_cluster(name)
        assert not has_pods(name)

    @pytest.mark.parametrize(
        "name", ["ray:", "ray:/runs", "ray:ftp://head/runs", "ray:two words/runs", "ray:user@head/a"]
    )
    def test_others_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            check_cluster(name)
        assert "ray:HOST:PORT/FOLDER" in caught.value.remedy

    def test_are_read_as_they_are_written(self) -> None:
        assert RayName.parse("ray:head:8265/a//b/") == RayName("http://head:8265", "/a/b")
        for text in ("ray:head:8265/a", "ray:https://head/a"):
            assert str(RayName.parse(text)) == text

    def test_an_address_is_a_cluster_without_asking_anybody(self) -> None:
        assert isinstance(get_cluster("ray:head:8265/shared/runs"), RayCluster)

    def test_a_connection_leads_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = {"place": "ray", "folder": "/shared/runs/", "address": "head:8265"}
        monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "elastic_training", "extra": extra}))
        assert own_name("team") == own_name("ray:team") == "ray:head:8265/shared/runs"
        with pytest.raises(InvalidSettings, match="whose place is slurm"):
            own_name("slurm:team")

    @pytest.mark.parametrize("extra", [{"folder": "/a"}, {"address": "head:8265"}, {"address": "a b", "folder": "/a"}])
    def test_a_connection_names_both(self, extra: dict[str, str]) -> None:
        with pytest.raises(InvalidSettings, match="HOST:PORT of Ray's dashboard in address"):
            read_location("team", {"place": "ray", **extra})


class TestSettings:
    def test_become_what_actors_want(self) -> None:
        made = Ray(
            cpus=2, memory="16G", resources={"spot": 1}, labels={"zone": "a"}, launcher_resources={"head": 0.1},
            runtime_env={"pip": ["einops"]}, grace=60, strategy="SPREAD",
        ).spec("python", gpus=2)  # fmt: skip
        assert made == RaySpec(
            python="python",
            demands={
                "num_cpus": 2, "num_gpus": 2, "memory": 16 << 30, "resources": {"spot": 1},
                "label_selector": {"zone": "a"}, "scheduling_strategy": "SPREAD",
            },
            launcher_demands={"resources": {"head": 0.1}},
            runtime_env={"pip": ["einops"]},
            grace=60.0,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"cpus": -1}, "ray.cpus"),
            ({"cpus": "many"}, "ray.cpus"),
            ({"memory": "much"}, "ray.memory"),
            ({"resources": {"spot": -1}}, "ray.resources.spot"),
            ({"resources": {"GPU": 1}}, "ray.resources"),
            ({"resources": ["spot"]}, "ray.resources"),
            ({"launcher_resources": {"CPU": 1}}, "ray.launcher_resources"),
            ({"labels": {"zone": 1}}, "ray.labels"),
            ({"strategy": "PACK"}, "ray.strategy"),
            ({"strategy": "STRICT_SPREAD"}, "ray.strategy"),
            ({"strategy": "spread"}, "ray.strategy"),
            ({"strategy": ["SPREAD"]}, "ray.strategy"),
            ({"runtime_env": {"pip": object()}}, "ray.runtime_env"),
            ({"runtime_env": {"env_vars": "A=1"}}, "ray.runtime_env"),
            ({"grace": -1}, "ray.grace"),
        ],
    )
    def test_what_cannot_be_is_refused(self, wrong: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            Ray(**wrong)
        assert caught.value.field == field

    def test_an_operator_refuses_actors_elsewhere_and_pods_in_ray(self) -> None:
        arguments: dict[str, Any] = {"task_id": "t", "command": ["true"], "workers": Workers()}
        for cluster in ("local", "slurm:/shared"):
            with pytest.raises(InvalidSettings, match="it is about actors"):
                ElasticTorchOperator(**arguments, cluster=cluster, ray=Ray())
        with pytest.raises(InvalidSettings, match="it is about pods"):
            ElasticTorchOperator(**arguments, cluster="ray:head/shared", pods=Pods(labels={"a": "b"}))
        assert ElasticTorchOperator(**arguments, cluster="ray:head/shared", ray={"cpus": 2}).ray == Ray(cpus=2)


class Client:
    """Ray's API, as far as it is called here."""

    address = "http://head:8265"

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self.state = JobState.PENDING
        self.out = False

    def submit(self, request: dict[str, Any]) -> None:
        self.submitted.append(request)

    def stop(self, job: str) -> None:
        self.stopped.append(job)

    def jobs(self) -> list[Job]:
        if self.out:
            raise ClusterUnavailable("out")
        return [
            Job(job_id(RUN), RUN.uid, LAUNCHER, self.state, "", ""),
            Job("b", "other", LAUNCHER, self.state, "", ""),
        ]


class TestLauncher:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> RunDir:
        folder = RunDir(tmp_path / "run")
        folder.create(RUN, "owner")
        return folder

    @pytest.fixture
    def client(self) -> Client:
        return Client()

    @pytest.fixture
    def host(self, client: Client) -> RayHost:
        return RayHost(client, SeenJobs("Ray", client.jobs), RaySpec("python"))  # type: ignore[arg-type]

    def test_is_a_job_and_its_credentials_are_in_one_file_of_this_user_alone(
        self, host: RayHost, client: Client, folder: RunDir
    ) -> None:
        assert not host.alive(folder)
        host.start(folder, {"SECRET": "a secret"})
        assert "a secret" not in json.dumps(client.submitted)
        [file] = [path for path in folder.path.rglob("*") if path.is_file() and "a secret" in path.read_text()]
        assert file.stat().st_mode & 0o777 == 0o600
        assert read_credentials(folder.path) == {"SECRET": "a secret"}
        host.tidy(folder)
        assert not file.exists()

    @pytest.mark.parametrize(
        ("base", "page"),
        [
            ("", None),
            ("airflow.example", None),
            (
                "https://airflow.example/team/",
                "https://airflow.example/team/elastic-training/task?dag_id=digits&run_id=manual__1%2B2&task_id=train&map_index=-1",
            ),
        ],
    )
    def test_names_its_task_and_the_page(
        self,
        host: RayHost,
        client: Client,
        folder: RunDir,
        monkeypatch: pytest.MonkeyPatch,
        base: str,
        page: str | None,
    ) -> None:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
        folder.write_owner(Owner("digits", "manual__1+2", "train", -1, 2, "nonce").text())
        host.start(folder, {})
        shown = {"dag_id": "digits", "run_id": "manual__1+2", "task_id": "train", "map_index": "-1", "try_number": "2"}
        shown |= {"page": page} if page and has_pages() else {}
        metadata = client.submitted[0]["metadata"]
        assert {name: metadata.get(name) for name in (*shown, "page")} == {"page": None, **shown}
        assert from_json(RaySpec, (folder.path / SPEC).read_text()).shown == shown

    @pytest.mark.parametrize(("state", "lives"), [("pending", True), ("running", True), ("over", False)])
    def test_lives_while_its_job_does(
        self, host: RayHost, client: Client, folder: RunDir, state: str, *, lives: bool
    ) -> None:
        host.start(folder, {})
        client.state = JobState(state)
        assert host.alive(folder) is lives

    def test_is_not_given_up_while_ray_does_not_answer(self, host: RayHost, client: Client, folder: RunDir) -> None:
        host.start(folder, {})
        client.out = True
        assert host.alive(folder)

    def test_is_stopped_and_no_other(self, host: RayHost, client: Client, folder: RunDir) -> None:
        host.start(folder, {})
        host.kill(folder)
        host.tidy(folder)
        assert client.stopped == [job_id(RUN), job_id(RUN)]
