"""Slurm as a place: its names, its settings, and when a launcher lives."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.models import Connection

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.jobs import Job
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.run.status import Phase, WorkerState, WorkerStatus
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SPEC, SlurmSpec
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.folder import FolderPlace
from elastic_training.clusters.jobs import TIMES, LauncherJob, SeenJobs
from elastic_training.clusters.location import read_location
from elastic_training.clusters.registry import check_cluster, get_cluster, has_pods, own_name
from elastic_training.clusters.slurm import ByConnection, Queue, SlurmCluster, SlurmJobs, over_ssh, rest_access
from elastic_training.concurrency.bridge import run as wait_for
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Pods, Slurm, Workers

RUN = RunSpec("run", "uid", ("true",), WorkersSpec(1, 2, 3))


class TestNames:
    @pytest.mark.parametrize("name", ["slurm:/shared/runs", "slurm:login@/shared/runs", "slurm:team-a"])
    def test_a_folder_a_connection_and_both(self, name: str) -> None:
        check_cluster(name)
        assert not has_pods(name)

    @pytest.mark.parametrize("name", ["slurm:", "slurm:relative/folder", "slurm:two words@/shared", "slurm:@/shared"])
    def test_others_are_refused(self, name: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            check_cluster(name)
        assert "slurm:/FOLDER" in caught.value.remedy

    def test_a_folder_is_a_cluster_without_asking_anybody(self) -> None:
        assert isinstance(get_cluster("slurm:/shared/runs"), SlurmCluster)
        assert own_name("slurm:login@/shared/runs") == "slurm:login@/shared/runs"

    def test_a_connection_leads_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = {"place": "slurm", "folder": "/shared/runs/", "ssh_conn_id": "login", "python": "/shared/bin/python"}
        monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "elastic_training", "extra": extra}))
        assert own_name("team") == own_name("slurm:team") == "slurm:login@/shared/runs"

    def test_one_that_leads_elsewhere_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_TEAM", json.dumps({"conn_type": "elastic_training"}))
        with pytest.raises(InvalidSettings, match="whose place is slurm"):
            own_name("slurm:team")

    @pytest.mark.parametrize("folder", ["", "shared", "/a\nb"])
    def test_a_connection_names_an_absolute_path(self, folder: str) -> None:
        with pytest.raises(InvalidSettings, match="folder of connection team"):
            read_location("team", {"place": "slurm", "folder": folder})

    def test_there_are_no_namespaces(self) -> None:
        with pytest.raises(InvalidSettings, match="namespace"):
            read_location("team", {"place": "slurm", "folder": "/a", "namespace": "b"})


class TestSettings:
    def test_become_options_of_sbatch(self) -> None:
        spec = Slurm(
            partition="gpu", account="vision", qos="spot", constraint="a100&nvlink", cpus=8, memory="16G",
            time_limit=timedelta(hours=2), grace=60, options=["--exclude=n7"], launcher_partition="cpu",
            setup=["module load cuda"], prefix=["apptainer", "exec", "x.sif"],
        ).spec("/bin/python", gpus=2)  # fmt: skip
        assert spec == SlurmSpec(
            python="/bin/python",
            options=(
                "--account=vision", "--qos=spot", "--partition=gpu", "--constraint=a100&nvlink", "--gres=gpu:2",
                "--cpus-per-task=8", "--mem=16G", "--time=120", "--exclude=n7",
            ),
            launcher_options=("--account=vision", "--qos=spot", "--partition=cpu"),
            setup=("module load cuda",),
            prefix=("apptainer", "exec", "x.sif"),
            grace=60.0,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("wrong", "field"),
        [
            ({"partition": "a b"}, "slurm.partition"),
            ({"memory": "much"}, "slurm.memory"),
            ({"time_limit": 0}, "slurm.time_limit"),
            ({"cpus": -1}, "slurm.cpus"),
            ({"options": ["--output=x"]}, "slurm.options"),
            ({"options": ["-p gpu"]}, "slurm.options"),
            ({"options": "--exclude=n7"}, "slurm.options"),
            ({"setup": ["a\nb"]}, "slurm.setup"),
            ({"launcher_options": ["--requeue"]}, "slurm.launcher_options"),
        ],
    )
    def test_what_cannot_be_is_refused(self, wrong: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            Slurm(**wrong)
        assert caught.value.field == field

    def test_templates_are_checked_later(self) -> None:
        assert Slurm(partition="{{ params.partition }}").partition == "{{ params.partition }}"

    def test_an_operator_refuses_jobs_on_this_machine_and_pods_in_slurm(self) -> None:
        arguments: dict[str, Any] = {"task_id": "t", "command": ["true"], "workers": Workers()}
        with pytest.raises(InvalidSettings, match="it is about jobs of Slurm"):
            ElasticTorchOperator(**arguments, cluster="local", slurm=Slurm())
        with pytest.raises(InvalidSettings, match="it is about pods"):
            ElasticTorchOperator(**arguments, cluster="slurm:/shared", pods=Pods(labels={"a": "b"}))
        made = ElasticTorchOperator(**arguments, cluster="slurm:/shared", slurm={"partition": "gpu"})
        assert made.slurm == Slurm(partition="gpu")


class Answers:
    """Slurm's commands, as a test has them answer."""

    def __init__(self) -> None:
        self.queue = ""
        self.out = False
        self.complaint = ""
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str], stdin: str, variables: object) -> tuple[int, str, str]:
        self.asked.append(list(command))
        if self.out:
            return 1, "", "Unable to contact slurm controller"
        if self.complaint:
            return 1, "", self.complaint
        return 0, {"sbatch": "7\n", "squeue": self.queue}.get(command[0], ""), ""


@pytest.fixture
def slurm() -> Answers:
    return Answers()


@pytest.fixture
def jobs(slurm: Answers) -> SlurmJobs:
    return SlurmJobs(Queue(Commands(slurm)), SlurmSpec("python"))


@pytest.fixture
def folder(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create(RUN, "me")
    return made


class TestLauncher:
    def test_is_a_job_and_its_settings_are_beside_it(self, jobs: SlurmJobs, folder: RunDir, slurm: Answers) -> None:
        jobs.start(folder, {})
        assert json.loads((folder.path / SPEC).read_text())["python"] == "python"
        assert json.loads((folder.path / "starter.json").read_text())["job"] == "7"
        assert "--comment=elastic-training uid launcher" in slurm.asked[0]

    def test_and_workers_inherit_the_credentials_whose_values_are_in_no_file(
        self, jobs: SlurmJobs, folder: RunDir, slurm: Answers
    ) -> None:
        jobs.start(folder, {"AWS_SECRET_ACCESS_KEY": "planted", "AWS_ACCESS_KEY_ID": "planted"})
        names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
        assert json.loads((folder.path / SPEC).read_text())["exported"] == names
        assert f"--export=NIL,{','.join(names)}" in slurm.asked[0]
        assert (
            "planted" not in f"{slurm.asked} {[path.read_text() for path in folder.path.iterdir() if path.is_file()]}"
        )

    @pytest.mark.parametrize(
        ("queue", "lives"),
        [
            ("7|PENDING|N/A||Priority|elastic-training uid launcher\n", True),
            ("7|RUNNING|N/A|n1|None|elastic-training uid launcher\n", True),
            ("7|FAILED|N/A|n1|None|elastic-training uid launcher\n", False),
            # Its submission had failed, as it seemed, so that there was another one.
            (
                "6|RUNNING|N/A|n1|None|elastic-training uid launcher\n"
                "7|FAILED|N/A|n1|None|elastic-training uid launcher\n",
                True,
            ),
            ("6|RUNNING|N/A|n1|None|elastic-training other launcher\n", False),
            ("6|RUNNING|N/A|n1|None|elastic-training uid worker-0\n", False),
            ("", False),
        ],
    )
    def test_lives_while_its_job_waits_or_runs(
        self, jobs: SlurmJobs, folder: RunDir, slurm: Answers, queue: str, lives: bool
    ) -> None:
        jobs.start(folder, {})
        slurm.queue = queue
        assert jobs.alive(folder) is lives

    def test_is_not_given_up_while_slurm_does_not_answer(self, jobs: SlurmJobs, folder: RunDir, slurm: Answers) -> None:
        jobs.start(folder, {})
        slurm.out = True
        assert jobs.alive(folder)

    def test_is_not_given_up_while_slurm_refuses_to_be_looked_at(
        self, jobs: SlurmJobs, folder: RunDir, slurm: Answers
    ) -> None:
        jobs.start(folder, {})
        slurm.complaint = "squeue: error: Invalid authentication credential"
        assert jobs.alive(folder)

    def test_one_that_waits_says_why_and_is_withdrawn_with_its_run(
        self, jobs: SlurmJobs, slurm: Answers, tmp_path: Path
    ) -> None:
        cluster = Cluster(FolderPlace(tmp_path / "runs", jobs, TIMES, 1.0))
        ref = wait_for(cluster.claim(RUN, "me")).ref
        slurm.queue = "7|PENDING|N/A||PartitionTimeLimit|elastic-training uid launcher\n"
        status = wait_for(cluster.status(ref))
        assert status.phase is Phase.PENDING
        assert status.reason.startswith("the launcher's job 7 is in the queue: Slurm does not start it")
        assert "shorten time_limit" in status.reason
        wait_for(cluster.cancel(ref, "the task is cleared", "me"))
        assert slurm.asked[-1] == ["scancel", "--quiet", "7"]

    def test_one_that_runs_ends_by_itself(self, jobs: SlurmJobs, slurm: Answers, tmp_path: Path) -> None:
        cluster = Cluster(FolderPlace(tmp_path / "runs", jobs, TIMES, 1.0))
        ref = wait_for(cluster.claim(RUN, "me")).ref
        slurm.queue = "7|RUNNING|N/A|n1|None|elastic-training uid launcher\n"
        assert wait_for(cluster.status(ref)).reason == "the launcher is starting"
        wait_for(cluster.cancel(ref, "the task is cleared", "me"))
        assert "scancel" not in {command[0] for command in slurm.asked}

    def test_both_are_ended_where_there_are_two(self, jobs: SlurmJobs, folder: RunDir, slurm: Answers) -> None:
        jobs.start(folder, {})
        slurm.queue = "6|RUNNING|N/A|n1|None|elastic-training uid launcher\n"
        jobs.kill(folder)
        assert slurm.asked[-1][2:] == ["6", "7"]

    def test_a_system_that_is_slow_to_answer_is_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, asked = [1000.0], []

        def ask() -> list[Job]:
            asked.append(now[0])
            now[0] += 5.0
            return []

        monkeypatch.setattr("elastic_training.clusters.jobs.time.time", lambda: now[0])
        seen = SeenJobs("Slurm", ask)
        for _ in range(3):
            seen.jobs()
        assert asked == [1000.0]
        seen.jobs(newer_than=1001.0)
        assert len(asked) == 2

    def test_an_outage_is_found_out_once_in_a_while(self, jobs: SlurmJobs, folder: RunDir, slurm: Answers) -> None:
        (folder.path / "starter.json").write_text(to_json(LauncherJob("7", time.time() - 60)))
        slurm.out = True
        for _ in range(5):
            assert jobs.alive(folder)
        assert [command[0] for command in slurm.asked] == ["squeue"]

    @pytest.mark.parametrize(
        ("node", "words"), [("n1.cluster", ("ssh", "--", "n1.cluster")), ("-oProxyCommand=x", ()), ("", ())]
    )
    def test_a_shell_is_on_the_workers_node(self, jobs: SlurmJobs, node: str, words: tuple[str, ...]) -> None:
        worker = WorkerStatus("worker-0", node, WorkerState.TRAINING, utc_now(), 1)
        assert jobs.shell_in(worker) == words

    def test_a_new_one_is_not_missed_by_an_answer_of_before(
        self, jobs: SlurmJobs, folder: RunDir, slurm: Answers
    ) -> None:
        assert jobs._seen.jobs() == {}
        jobs.start(folder, {})
        slurm.queue = "7|PENDING|N/A||Priority|elastic-training uid launcher\n"
        assert jobs.alive(folder)

    def test_many_who_look_ask_once(self, jobs: SlurmJobs, folder: RunDir, slurm: Answers) -> None:
        (folder.path / "starter.json").write_text(to_json(LauncherJob("7", time.time() - 60)))
        for _ in range(5):
            jobs.alive(folder)
        assert [command[0] for command in slurm.asked] == ["squeue"]

    def test_what_it_leaves_is_ended(self, jobs: SlurmJobs, folder: RunDir, slurm: Answers) -> None:
        slurm.queue = (
            "8|RUNNING|N/A|n1|None|elastic-training uid worker-0\n"
            "9|RUNNING|N/A|n1|None|elastic-training another worker-0\n"
            "10|COMPLETED|N/A|n1|None|elastic-training uid worker-1\n"
        )
        jobs.tidy(folder)
        assert slurm.asked[-1] == ["scancel", "--quiet", "8"]


class TestConnections:
    def test_one_of_type_http_leads_to_slurmrestd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        said = {"conn_type": "http", "host": "head", "port": 6820, "login": "me", "password": "planted"}
        monkeypatch.setenv("AIRFLOW_CONN_LOGIN", json.dumps(said))
        with pytest.raises(ClusterUnavailable, match="slurmrestd at http://head:6820 does not answer") as caught:
            ByConnection("login").jobs()
        assert "planted" not in str(caught.value)

    def test_any_other_one_is_for_commands_over_ssh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LOGIN", json.dumps({"conn_type": "ssh", "host": "head"}))
        monkeypatch.setitem(sys.modules, "airflow.providers.ssh.hooks.ssh", None)
        with pytest.raises(InvalidSettings, match="apache-airflow-providers-ssh"):
            ByConnection("login").jobs()

    def test_one_that_is_not_there_is_named(self) -> None:
        with pytest.raises(InvalidSettings, match="no Airflow connection 'nobodys'"):
            ByConnection("nobodys").jobs()

    @pytest.mark.parametrize(
        ("said", "address"),
        [
            ({"host": "head", "port": 6820}, "http://head:6820"),
            ({"host": "head", "schema": "https"}, "https://head"),
            ({"host": "https://head/", "port": 443}, "https://head:443"),
            ({"host": "[::1]", "port": 1}, "http://[::1]:1"),
        ],
    )
    def test_where_it_is(self, said: dict[str, Any], address: str) -> None:
        found = rest_access(Connection(conn_id="c", conn_type="http", login="me", password="planted", **said))
        assert found.address == address
        assert "planted" not in repr(found)

    @pytest.mark.parametrize(
        "changes", [{"host": ""}, {"login": None}, {"password": None}, {"schema": "ftp"}, {"host": "a/b"}]
    )
    def test_one_that_says_too_little_is_refused(self, changes: dict[str, Any]) -> None:
        said = {"host": "head", "login": "me", "password": "planted", **changes}
        with pytest.raises(InvalidSettings, match="leads to no slurmrestd") as caught:
            rest_access(Connection(conn_id="c", conn_type="http", **said))
        assert "planted" not in str(caught.value)


def test_without_the_ssh_provider_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.ssh.hooks.ssh", None)
    with pytest.raises(InvalidSettings, match="apache-airflow-providers-ssh"):
        Commands(over_ssh("login")).jobs()


class Remote:
    """In the place of Airflow's SSHHook and its client: a shell of this machine."""

    def __init__(self, **_settings: object) -> None: ...

    def get_conn(self) -> Remote:
        return self

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_error: object) -> None: ...

    words: ClassVar[list[str]] = []

    def exec_command(self, words: str, **_more: object) -> tuple[Any, Any, Any]:
        self.words.append(words)
        output, errors = io.BytesIO(), io.BytesIO()

        def write(data: bytes) -> None:
            done = subprocess.run(["sh", "-c", words], input=data, capture_output=True, check=False)
            channel.recv_exit_status = lambda: done.returncode
            for stream, content in ((output, done.stdout), (errors, done.stderr)):
                stream.write(content)
                stream.seek(0)

        channel = SimpleNamespace(shutdown_write=lambda: None)
        said = SimpleNamespace(read=output.read, channel=channel)
        return SimpleNamespace(write=write, channel=channel), said, errors


def answered_by(monkeypatch: pytest.MonkeyPatch, hook: object) -> None:
    module = ModuleType("airflow.providers.ssh.hooks.ssh")
    module.SSHHook = hook  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_over_ssh_a_word_is_passed_on_as_it_is_and_no_secret_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    answered_by(monkeypatch, Remote)
    shell = over_ssh("login")
    words = ["sh", "-c", 'cat; printf "|%s|%s" "$SECRET" "$1"', "sh", "it's $HOME"]
    answer = shell(words, "#!/bin/sh\n'quoted' $x\n", {"SECRET": "a'b $(id)"})
    assert answer == (0, "#!/bin/sh\n'quoted' $x\n|a'b $(id)|it's $HOME", "")
    assert "a'b" not in Remote.words[-1]
    assert shell(["sh", "-c", "echo no >&2; exit 3"], "", {}) == (3, "", "no\n")


def test_an_outage_over_ssh_names_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_settings: object) -> None:
        raise TimeoutError("timed out")

    answered_by(monkeypatch, refuse)
    with pytest.raises(ClusterUnavailable, match="squeue cannot be called over 'login': TimeoutError"):
        Commands(over_ssh("login")).jobs()
