"""Connections of type elastic_training: where they lead, what they give, their form, hook and test button."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.providers.common.compat.sdk import AirflowFailException

from elastic_runtime.errors import FailureKind, InvalidSettings, RunNotFound
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes import rights
from elastic_training.clusters.location import location_of, read_location
from elastic_training.clusters.registry import own_name, own_name_in_loop, substituted
from elastic_training.concurrency.bridge import run
from elastic_training.hooks.elastic_training import ElasticTrainingHook
from elastic_training.hooks.form import FIELDS
from elastic_training.operators.end_training import CancelTrainingOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Pods
from tests.unit.provider.api_server import ApiServer, kubeconfig, served
from tests.unit.provider.operator_bench import NAME, deferred, operator, run_in, trying
from tests.unit.provider.virtual_time import run_virtually

RULES = Path(__file__).parents[3] / "deploy" / "rbac.yaml"
Connect = Callable[..., None]
ALWAYS = ("elastic_runtime", "psutil", "cryptography")
"""Modules that every run on this machine takes."""


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Has Airflow know a connection."""

    def add(name: str, kind: str = "elastic_training", **extra: Any) -> None:
        told = json.dumps({"conn_type": kind, "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", told)

    return add


@pytest.fixture
def moon() -> Iterator[FakeCluster]:
    """In the place of a Kubernetes."""
    with substituted("moon/base", cluster := FakeCluster()):
        yield cluster


class TestWhereItLeads:
    @pytest.mark.parametrize(
        ("extra", "name"),
        [
            ({}, "kubernetes_default"),
            ({"kubernetes_conn_id": "moon"}, "moon"),
            ({"kubernetes_conn_id": "moon", "namespace": "base", "unknown": 3}, "moon/base"),
            ({"namespace": " base ", "image": ""}, "kubernetes_default/base"),
            ({"extra__elastic_training__namespace": "base"}, "kubernetes_default/base"),
            ({"place": "local", "namespace": None}, "local"),
        ],
    )
    def test_to_a_place_with_a_name_of_its_own(self, connect: Connect, extra: dict[str, Any], name: str) -> None:
        connect("site", **extra)
        assert own_name("site") == name

    def test_a_namespace_of_the_users_goes_before_the_connections(self, connect: Connect) -> None:
        connect("site", namespace="base", kubernetes_conn_id="moon")
        assert own_name("site/crater") == "moon/crater"

    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            ({"place": "mars"}, "place of connection site: 'mars'"),
            ({"place": "local", "namespace": "base"}, "namespace of connection site: this machine has none"),
            ({"namespace": "Not One"}, "namespace of connection site"),
            ({"kubernetes_conn_id": "a/b"}, "kubernetes_conn_id of connection site"),
            ({"kubernetes_conn_id": ["moon"]}, "is not a string"),
            ({"image": "no image"}, "image of connection site"),
        ],
    )
    def test_what_it_cannot_say_is_named_with_its_field(self, extra: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidSettings, match=words):
            read_location("site", extra)

    def test_a_trigger_that_no_task_has_begun_asks_in_its_loop(self, connect: Connect, moon: FakeCluster) -> None:
        connect("site", namespace="base", kubernetes_conn_id="moon")
        connect("cloud", kind="kubernetes")
        for name, own in (("site", "moon/base"), ("site/crater", "moon/crater"), ("cloud", "cloud"), ("none", "none")):
            assert run_virtually(own_name_in_loop(name)) == own

    def test_other_connections_and_names_are_left_alone(self, connect: Connect, moon: FakeCluster) -> None:
        connect("cloud", kind="kubernetes", namespace="base")
        assert (location_of("cloud"), location_of("nobody")) == (None, None)
        for name in ("cloud", "cloud/base", "nobody", "local", "moon/base"):
            assert own_name(name) == name


class TestTasks:
    @pytest.fixture(autouse=True)
    def site(self, connect: Connect, store: str) -> None:
        connect("site", kubernetes_conn_id="moon", namespace="base", image="trainer:1", checkpoint_uri=store)

    def test_a_training_has_its_defaults_and_its_trigger_the_places_own_name(
        self, moon: FakeCluster, store: str
    ) -> None:
        training = operator(cluster="site", deferrable=True)
        parting = deferred(training, task := trying())
        assert parting.trigger.cluster == "moon/base"
        assert task.pushed["cluster"] == "site"
        checkpoint = run_in(moon).spec.checkpoint
        assert checkpoint is not None
        assert checkpoint.uri == f"{store}/{NAME}"
        assert training.image == "trainer:1"

    def test_what_the_operator_says_goes_before(self, moon: FakeCluster, tmp_path: Path) -> None:
        uri = f"file://{tmp_path}/mine"
        deferred(training := operator(cluster="site", image="mine:2", checkpoint_uri=uri, deferrable=True), trying())
        assert (training.image, training.checkpoint_uri) == ("mine:2", uri)
        deferred(training := operator(cluster="site", pods=Pods(image="pods:3"), deferrable=True), trying())
        assert training.image == "pods:3"

    @pytest.mark.parametrize(("pods", "image"), [(Pods(), "ours:1"), (Pods(launcher_image="mine:1"), "mine:1")])
    def test_launchers_have_the_image_that_it_names_for_them(
        self, connect: Connect, moon: FakeCluster, pods: Pods, image: str
    ) -> None:
        connect("site", kubernetes_conn_id="moon", namespace="base", image="trainer:1", launcher_image="ours:1")
        deferred(training := operator(cluster="site", pods=pods, deferrable=True), trying())
        assert (training.image, training.pods.launcher_image) == ("trainer:1", image)

    def test_credentials_come_with_the_place_that_they_are_for(
        self, connect: Connect, moon: FakeCluster, tmp_path: Path
    ) -> None:
        site = {"kubernetes_conn_id": "moon", "namespace": "base", "image": "trainer:1"}
        connect("site", **site, checkpoint_uri="s3://bucket/runs", checkpoint_conn_id="keys")
        connect("keys", kind="aws", aws_access_key_id="id", aws_secret_access_key="key-of-this-test-alone")
        deferred(training := operator(cluster="site", deferrable=True), trying())
        assert training.checkpoint_conn_id == "keys"
        assert "key-of-this-test-alone" in moon.credentials.values()
        moon.runs.clear()
        deferred(training := operator(cluster="site", checkpoint_uri=f"file://{tmp_path}", deferrable=True), trying())
        assert training.checkpoint_conn_id is None

    def test_no_checkpoints_are_kept_where_the_operator_wants_none(self, moon: FakeCluster) -> None:
        deferred(operator(cluster="site", checkpoint_uri="", deferrable=True), trying())
        assert run_in(moon).spec.checkpoint is None

    def test_a_wrong_connection_ends_the_task_without_another_try(self, connect: Connect) -> None:
        connect("site", place="mars")
        with pytest.raises(AirflowFailException, match="place of connection site"):
            operator(cluster="site").execute({"ti": trying()})
        sensor = ScaleWorkersSensor(task_id="more", training_task_id="train", workers=3, cluster="site")
        with pytest.raises(AirflowFailException, match="place of connection site"):
            sensor.poke({"ti": trying()})

    def test_others_find_the_training_by_it(self, moon: FakeCluster) -> None:
        deferred(operator(cluster="site", deferrable=True), trying())
        sensor = ScaleWorkersSensor(task_id="more", training_task_id="train", workers=3, cluster="site")
        sensor.poke({"ti": trying()})
        assert run_in(moon).size == 3
        CancelTrainingOperator(task_id="end", training_task_id="train", cluster="site").execute({"ti": trying()})
        assert run_in(moon).status.failure is FailureKind.CANCELLED


class TestHook:
    @pytest.fixture
    def hook(self, connect: Connect, moon: FakeCluster) -> ElasticTrainingHook:
        connect("site", kubernetes_conn_id="moon", namespace="base", image="trainer:1")
        deferred(operator(cluster="site", deferrable=True), trying())
        return ElasticTrainingHook("site")

    def test_lists_tells_scales_and_cancels(self, hook: ElasticTrainingHook, moon: FakeCluster) -> None:
        assert [each.ref.name for each in hook.list_runs()] == [NAME]
        assert hook.get_status(NAME).world_size == 2
        assert hook.scale(NAME, 3) == 3
        assert hook.scale(NAME, "-1") == 2
        assert hook.scale(NAME, "-1") == 1
        with pytest.raises(InvalidSettings, match="bounds"):
            hook.scale(NAME, 9)
        hook.cancel(NAME)
        assert hook.get_status(NAME).failure is FailureKind.CANCELLED
        assert run(hook.get_conn().find(NAME)).name == NAME

    def test_misses_what_is_not_there(self, hook: ElasticTrainingHook) -> None:
        for ask in (hook.get_status, hook.cancel):
            with pytest.raises(RunNotFound):
                ask("nothing")


class TestForm:
    def test_airflow_shows_it(self) -> None:
        """By the code that answers the page of Airflow 3's connections."""
        (form,) = [each for each in HookMetaService.hook_meta_data() if each.connection_type == "elastic_training"]
        assert form.hook_name == "Elastic Training"
        assert form.extra_fields is not None
        assert list(form.extra_fields) == [each.name for each in FIELDS]
        place = form.extra_fields["place"]
        assert (place["schema"]["enum"], place["value"]) == (
            ["kubernetes", "local", "slurm", "spark", "ray"],
            "kubernetes",
        )
        assert form.standard_fields is not None
        assert form.standard_fields.host is not None
        assert form.standard_fields.host.hidden
        assert form.default_conn_name in (None, "elastic_training_default")

    def test_the_hook_says_the_same_to_older_airflows(self) -> None:
        behaviour = ElasticTrainingHook.get_ui_field_behaviour()
        assert "host" in behaviour["hidden_fields"]
        assert set(behaviour["placeholders"]) == {each.name for each in FIELDS}


class TestButton:
    """What :meth:`ElasticTrainingHook.test_connection` tests."""

    @pytest.fixture
    def cloud(self, connect: Connect) -> Iterator[None]:
        with served() as extra:
            connect("cloud", kind="kubernetes", **extra)
            yield

    @staticmethod
    def pressed(connect: Connect, **extra: Any) -> tuple[bool, str]:
        connect("site", kubernetes_conn_id="cloud", **extra)
        return ElasticTrainingHook("site").test_connection()

    def test_a_server_that_gives_all_rights_is_good(self, connect: Connect, cloud: None, tmp_path: Path) -> None:
        good, words = self.pressed(connect, namespace="training", image="trainer:1")
        assert good, words
        assert "all rights in namespace training; image trainer:1; no default place of checkpoints" in words
        assert ApiServer.tried == ["training"]

    def test_missing_rights_are_named_with_the_remedy(self, connect: Connect, cloud: None) -> None:
        ApiServer.denied = {("jobs", "create"), ("jobs", "get"), ("pods/log", "get")}
        good, words = self.pressed(connect, namespace="training")
        assert not good
        assert "create, get jobs.batch; get pods/log. deploy/rbac.yaml" in words

    def test_a_namespace_that_is_not_there_is_found_out(self, connect: Connect, cloud: None) -> None:
        good, words = self.pressed(connect, namespace="nowhere")
        assert not good
        assert 'namespaces "nowhere" not found' in words

    def test_a_server_that_is_not_there_is_named(self, connect: Connect) -> None:
        connect("cloud", kind="kubernetes", kube_config=json.dumps(kubeconfig("http://127.0.0.1:1")))
        good, words = self.pressed(connect)
        assert not good
        assert "127.0.0.1" in words

    def test_a_kubernetes_connection_that_is_not_there_is_named(self, connect: Connect) -> None:
        good, words = self.pressed(connect)
        assert not good
        assert "Airflow connection 'cloud' is not defined" in words

    def test_rights_are_those_of_the_role_that_is_shipped(self) -> None:
        roles = {
            each["metadata"]["name"]: each
            for each in yaml.safe_load_all(RULES.read_text())
            if each and each["kind"] == "Role"
        }
        granted = {
            (group, resource, verb)
            for rule in roles["elastic-training-airflow"]["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert {*rights.NEEDED, *rights.OPTIONAL} == granted

    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """Settings of local runs; the interpreter has all that is looked for."""
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT", str(tmp_path / "runs"))
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON", python := str(tmp_path / "python"))
        Path(python).touch(0o700)
        self.has(tmp_path, *ALWAYS, "tensorflow", "horovod")
        return tmp_path

    @staticmethod
    def has(machine: Path, *modules: str) -> None:
        """Have that machine's interpreter say that it has these, and no others."""
        (machine / "python").write_text(f"#!/bin/sh\necho '{json.dumps(modules)}'\n")

    def test_this_machine_has_a_folder_and_an_interpreter(self, connect: Connect, machine: Path, store: str) -> None:
        good, words = self.pressed(connect, place="local", checkpoint_uri=store)
        assert good, words
        assert str(machine / "runs") in words
        assert "can be read" in words
        assert "ElasticHorovodOperator" not in words

    def test_torch_alone_will_do_and_operators_that_need_horovod_are_named(
        self, connect: Connect, machine: Path
    ) -> None:
        self.has(machine, *ALWAYS, "torch")
        good, words = self.pressed(connect, place="local")
        assert good, words
        assert "it has no horovod, which ElasticHorovodOperator and @task.elastic_horovod need" in words

    @pytest.mark.parametrize(
        ("has", "lacking"),
        [
            ((), "elastic_runtime, psutil, cryptography, torch or tensorflow"),
            (("elastic_runtime", "torch", "horovod"), "psutil, cryptography"),
            ((*ALWAYS, "horovod"), "torch or tensorflow"),
            ((*ALWAYS, "tensorflow"), "horovod"),
        ],
    )
    def test_what_an_interpreter_lacks_is_named_with_the_remedy(
        self, connect: Connect, machine: Path, has: tuple[str, ...], lacking: str
    ) -> None:
        self.has(machine, *has)
        good, words = self.pressed(connect, place="local")
        assert not good
        assert f"{machine / 'python'} has no {lacking}. Install elastic-runtime[torch], [horovod] or" in words

    def test_a_real_interpreter_is_looked_into(
        self, connect: Connect, machine: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This one has Airflow and the runtime, and no framework."""
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON", sys.executable)
        good, words = self.pressed(connect, place="local")
        assert not good
        assert f"{sys.executable} has no torch or tensorflow. " in words

    @pytest.mark.parametrize("python", ["/no/such/python", "/bin/true", "/bin/false"])
    def test_what_is_no_interpreter_is_named(
        self, connect: Connect, machine: Path, monkeypatch: pytest.MonkeyPatch, python: str
    ) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__LOCAL_PYTHON", python)
        good, words = self.pressed(connect, place="local")
        assert not good
        assert f"{python} cannot be started" in words

    def test_a_folder_that_others_may_write_to_is_refused(self, connect: Connect, machine: Path) -> None:
        (machine / "runs").mkdir()
        (machine / "runs").chmod(0o777)
        good, words = self.pressed(connect, place="local")
        assert not good
        assert "is not a folder of this user alone" in words

    def test_a_field_that_is_wrong_is_named_without_an_id_that_nobody_has_given(self, connect: Connect) -> None:
        good, words = self.pressed(connect, place="mars")
        assert not good
        assert words == "place: 'mars' is not a place. Write 'kubernetes', 'local', 'slurm', 'spark' or 'ray'"

    def test_a_place_of_checkpoints_that_nobody_knows_is_refused(self, connect: Connect, machine: Path) -> None:
        good, words = self.pressed(connect, place="local", checkpoint_uri="ftp://host/runs")
        assert not good
        assert "ftp://host/runs" in words
