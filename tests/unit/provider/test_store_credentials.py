"""Credentials of the checkpoint store, from an Airflow connection to the ranks."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk._shared.secrets_masker import _secrets_masker

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.place import Place
from elastic_training.concurrency.bridge import run
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Pods, SecretRef
from elastic_training.settings.store_credentials import store_credentials
from tests.unit.provider.manifests_bench import everything, objects_of, pods_of
from tests.unit.provider.operator_bench import NAME, deferred, operator, run_in, trying
from tests.unit.provider.test_local_cluster import Bench

KEYS = {"AWS_ACCESS_KEY_ID": "the-key-id", "AWS_SECRET_ACCESS_KEY": "the-secret-key", "AWS_SESSION_TOKEN": ""}
GOOGLE_KEY = {"type": "service_account", "client_email": "a@b", "private_key": "-----BEGIN\nsecret\n-----END"}


@pytest.fixture(autouse=True)
def masker() -> Iterator[None]:
    """Airflow's, which afterwards knows what it knew before."""
    masker = _secrets_masker()
    patterns, replacer = set(masker.patterns), masker.replacer
    yield
    masker.patterns, masker.replacer = patterns, replacer


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give Airflow a connection ``store``."""

    def given(conn_type: str, **fields: Any) -> str:
        extra = fields.pop("extra", {})
        made = {"conn_type": conn_type, **fields, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(made))
        return "store"

    return given


def aws(connection: Any, **extra: Any) -> str:
    return str(connection("aws", login="the-key-id", password="the-secret-key", extra=extra))


class TestConnections:
    def test_keys_region_and_endpoint_of_aws(self, connection: Any) -> None:
        conn_id = aws(connection, region_name="eu-west-1", endpoint_url="http://minio:9000")
        found = store_credentials("s3://bucket/runs", conn_id)
        assert found.variables == KEYS | {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL_S3": "http://minio:9000"}
        assert not found.expiring
        assert "the-secret-key" not in repr(found)

    def test_an_endpoint_of_s3_alone_goes_before_that_of_all_services(self, connection: Any) -> None:
        conn_id = aws(connection, endpoint_url="http://all", service_config={"s3": {"endpoint_url": "http://s3"}})
        assert store_credentials("s3://bucket", conn_id).variables["AWS_ENDPOINT_URL_S3"] == "http://s3"

    def test_a_session_token_expires(self, connection: Any) -> None:
        found = store_credentials("s3://bucket", aws(connection, aws_session_token="for an hour"))
        assert found.variables["AWS_SESSION_TOKEN"] == "for an hour"
        assert found.expiring

    def test_a_role_is_assumed_by_the_amazon_provider(self, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        class AwsBaseHook:
            region_name = "us-east-2"

            def __init__(self, *, aws_conn_id: str, client_type: str) -> None:
                assert (aws_conn_id, client_type) == ("store", "s3")

            def get_credentials(self) -> Any:
                return SimpleNamespace(access_key="assumed", secret_key="for a while", token="token")

        for name in ("amazon", "amazon.aws", "amazon.aws.hooks", "amazon.aws.hooks.base_aws"):
            module = ModuleType(f"airflow.providers.{name}")
            module.AwsBaseHook = AwsBaseHook  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, module.__name__, module)
        found = store_credentials("s3://bucket", aws(connection, role_arn="arn:aws:iam::1:role/trainer"))
        assert found.variables["AWS_ACCESS_KEY_ID"] == "assumed"
        assert found.variables["AWS_REGION"] == "us-east-2"
        assert found.expiring

    def test_a_role_without_the_amazon_provider_names_what_to_install(
        self, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "airflow.providers.amazon", None)
        with pytest.raises(InvalidSettings, match=r"has role_arn.*Install apache-airflow-providers-amazon"):
            store_credentials("s3://bucket", aws(connection, role_arn="arn:aws:iam::1:role/trainer"))

    @pytest.mark.parametrize("form", ["text", "mapping", "prefixed", "file"])
    def test_a_key_of_google(self, connection: Any, tmp_path: Path, form: str) -> None:
        path = tmp_path / "key.json"
        path.write_text(json.dumps(GOOGLE_KEY))
        extra = {
            "text": {"keyfile_dict": json.dumps(GOOGLE_KEY)},
            "mapping": {"keyfile_dict": GOOGLE_KEY},
            "prefixed": {"extra__google_cloud_platform__keyfile_dict": json.dumps(GOOGLE_KEY)},
            "file": {"key_path": str(path)},
        }[form]
        found = store_credentials("gs://bucket/runs", connection("google_cloud_platform", extra=extra))
        assert json.loads(found.variables["ELASTIC_TRAINING_GCS_KEY"]) == GOOGLE_KEY

    @pytest.mark.parametrize(
        ("given", "wanted"),
        [
            ({"extra": {"connection_string": "AccountKey=k"}}, {"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=k"}),
            (
                {"login": "account", "password": "key"},
                {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "key"},
            ),
            (
                {"host": "https://account.blob.core.windows.net", "extra": {"sas_token": "?sig=s"}},
                {
                    "AZURE_STORAGE_SERVICE_ENDPOINT": "https://account.blob.core.windows.net",
                    "AZURE_STORAGE_SAS_TOKEN": "?sig=s",
                },
            ),
            (
                {"host": "account", "login": "app", "password": "secret", "extra": {"tenant_id": "t"}},
                {
                    "AZURE_STORAGE_ACCOUNT_NAME": "account",
                    "AZURE_TENANT_ID": "t",
                    "AZURE_CLIENT_ID": "app",
                    "AZURE_CLIENT_SECRET": "secret",
                },
            ),
        ],
    )
    @pytest.mark.parametrize("uri", ["az://container/runs", "abfs://container@account.dfs.core.windows.net/runs"])
    def test_what_a_connection_to_azure_may_hold(
        self, connection: Any, given: dict[str, Any], wanted: dict[str, str], uri: str
    ) -> None:
        found = store_credentials(uri, connection("wasb", **given)).variables
        assert {name: value for name, value in found.items() if value} == wanted
        # Nothing of another origin in the pods' environment is mixed in.
        assert {"AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"} <= set(found)

    @pytest.mark.parametrize(
        ("uri", "conn_type", "fields", "problem"),
        [
            ("s3://bucket", "google_cloud_platform", {}, "is of type 'google_cloud_platform'.*needs 'aws'"),
            ("s3://bucket", "aws", {}, r"has no access key.*worker_service_account"),
            ("s3://bucket", "aws", {"login": "k", "password": "s", "extra": {"region_name": ["x"]}}, "not a string"),
            ("gs://bucket", "google_cloud_platform", {}, r"has no key \(keyfile_dict or key_path\)"),
            ("gs://bucket", "google_cloud_platform", {"extra": {"keyfile_dict": "{"}}, "not the JSON"),
            (
                "gs://bucket",
                "google_cloud_platform",
                {"extra": {"keyfile_dict": {"type": "external_account", "credential_source": {"executable": {}}}}},
                "not the JSON of a service account or user",
            ),
            ("gs://bucket", "google_cloud_platform", {"extra": {"key_path": "/nowhere"}}, "cannot be read"),
            ("az://container", "wasb", {"login": "account"}, "has no connection_string, sas_token"),
            ("file:///srv", "aws", {}, "file:// takes no credentials from a connection"),
        ],
    )
    def test_what_cannot_work_is_said_without_a_secret(
        self, connection: Any, uri: str, conn_type: str, fields: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(InvalidSettings, match=f"^checkpoint_conn_id: .*{problem}"):
            store_credentials(uri, connection(conn_type, **fields))

    def test_a_connection_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

        monkeypatch.setattr(BaseHook, "get_connection", Mock(side_effect=AirflowNotFoundException("no store")))
        with pytest.raises(InvalidSettings, match=r"checkpoint_conn_id: Airflow connection 'store' is not defined"):
            store_credentials("s3://bucket", "store")


class TestOperator:
    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ({"checkpoint_uri": "file:///srv"}, "file:// takes no credentials"),
            ({"checkpoint_uri": "s3://bucket", "checkpoint_conn_id": ""}, "it is empty"),
            ({"checkpoint_uri": "s3://bucket", "checkpoint_conn_id": 3}, "an? int is not the id of a connection"),
        ],
    )
    def test_what_is_known_is_checked_at_parse(self, arguments: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidSettings, match=problem):
            operator(**{"checkpoint_conn_id": "store", **arguments})

    def test_without_a_store_there_is_nothing_to_log_in_to(self, fake: FakeCluster, connection: Any) -> None:
        with pytest.raises(
            AirflowFailException, match="checkpoint_conn_id: it is for the store of checkpoint_uri, which is not set"
        ):
            operator(checkpoint_conn_id=aws(connection)).execute({"ti": trying()})

    def test_templates_are_left_for_later(self) -> None:
        operator(checkpoint_uri="{{ params.store }}", checkpoint_conn_id="{{ params.connection }}")
        assert "checkpoint_conn_id" in ElasticHorovodOperator.template_fields

    def test_other_operators_names_for_it_are_refused_with_ours(self) -> None:
        for name in ("aws_conn_id", "gcp_conn_id", "wasb_conn_id"):
            with pytest.raises(InvalidSettings, match=f"^{name}: .*checkpoint_conn_id="):
                operator(**{name: "aws_default"})

    def test_the_run_is_given_the_credentials_and_its_spec_is_not(self, fake: FakeCluster, connection: Any) -> None:
        train = operator(deferrable=True, checkpoint_uri="s3://bucket/runs", checkpoint_conn_id=aws(connection))
        deferred(train, trying())
        assert fake.credentials == KEYS
        assert "the-secret-key" not in str(run_in(fake).spec)

    def test_without_a_connection_it_is_given_none(self, fake: FakeCluster) -> None:
        deferred(operator(deferrable=True, checkpoint_uri="s3://bucket/runs"), trying())
        assert fake.credentials == {}

    def test_temporary_ones_are_warned_of(
        self, fake: FakeCluster, connection: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Mock()
        monkeypatch.setattr(ElasticHorovodOperator, "log", log)
        conn_id = aws(connection, aws_session_token="for an hour")
        deferred(operator(deferrable=True, checkpoint_uri="s3://bucket/runs", checkpoint_conn_id=conn_id), trying())
        assert any("temporary" in call.args[0] for call in log.warning.call_args_list)
        assert "for an hour" not in str(log.mock_calls)

    def test_a_connection_without_credentials_ends_the_task_for_good(self, fake: FakeCluster, connection: Any) -> None:
        train = operator(checkpoint_uri="s3://bucket/runs", checkpoint_conn_id=connection("aws"))
        with pytest.raises(AirflowFailException, match="has no access key"):
            train.execute({"ti": trying()})
        assert NAME not in fake.runs


def environment_of(pid: int) -> set[bytes]:
    """Of a process that was just started: exec has descriptors closed before it has laid out the variables."""
    end = time.monotonic() + 10.0
    while not (found := Path(f"/proc/{pid}/environ").read_bytes()):
        assert time.monotonic() < end
        time.sleep(0.001)
    return set(found.split(b"\0"))


class TestPlaces:
    def test_in_pods_they_are_a_secret_of_the_run_that_the_workers_have_as_environment(self) -> None:
        pods = Pods(image="trainer:1", secrets=[SecretRef("mine")])
        objects = objects_of(pods, credentials=KEYS)
        found = everything(objects)
        secret = found["Secret store"]
        assert {name: base64.b64decode(value).decode() for name, value in secret["data"].items()} == KEYS
        assert secret["metadata"]["ownerReferences"][0]["kind"] == "ConfigMap"
        launcher, worker = pods_of(objects)
        name = secret["metadata"]["name"]
        # What the user says goes before it: of two sources of environment the last counts.
        assert worker["spec"]["containers"][0]["envFrom"] == [
            {"secretRef": {"name": name}},
            {"secretRef": {"name": "mine"}},
        ]
        assert "envFrom" not in launcher["spec"]["containers"][0]

    def test_without_them_nothing_is_different(self) -> None:
        assert everything(objects_of(credentials={})) == everything(objects_of())
        assert "Secret store" not in everything(objects_of())

    def test_on_this_machine_they_are_in_the_launcher_s_environment_and_in_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", "of the worker's own")
        bench = Bench(tmp_path)
        bench.cluster.set_rank_credentials(KEYS)
        ref = bench.claim()
        pid = json.loads((bench.folder.path / "starter.json").read_text())["pid"]
        try:
            assert {f"{name}={value}".encode() for name, value in KEYS.items()} <= environment_of(pid)
            assert os.stat(f"/proc/{pid}/environ").st_mode & 0o077 == 0
        finally:
            run(bench.cluster.delete(ref, "try 1"))
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if b"the-secret-key" in path.read_bytes()]

    def test_a_place_that_cannot_hand_them_over_says_so(self) -> None:
        place = SimpleNamespace(where="on the moon")
        Place.set_rank_credentials(place, {})  # type: ignore[arg-type]
        with pytest.raises(InvalidSettings, match=r"workers on the moon are given no credentials.*Leave it out"):
            Place.set_rank_credentials(place, KEYS)  # type: ignore[arg-type]
