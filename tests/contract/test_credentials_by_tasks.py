"""Ranks log in to the checkpoint store with the credentials of an Airflow connection, in every kind of cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException

from elastic_runtime.documents import to_json
from elastic_runtime.run.status import Phase
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import LOG_START
from elastic_training.concurrency.bridge import run
from elastic_training.decorators.training import elastic_horovod_task
from elastic_training.settings import Workers
from tests.contract.cluster_kinds import FakeKind, Kind, KubernetesKind, SqliteKind
from tests.contract.watching import lines_of, over, to_the_end, until
from tests.s3_server import new_bucket, s3_client, s3_server
from tests.unit.provider.fakes import FakeTaskInstance

pytestmark = pytest.mark.timeout(600)
SECRET = "planted-in-the-connection"


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@elastic_horovod_task(
    workers=Workers(min=1), checkpoint_conn_id="store", checkpoint_uri="s3://bucket", wait_for_completion=False,
    deferrable=False,
)  # fmt: skip
def train(uri):
    import hashlib
    import os

    import horovod.torch as hvd

    hvd.init()
    if uri:
        from elastic_runtime.checkpoint import open_store

        open_store(uri).claim(7)
    print("logs in with", hashlib.sha256(os.environ["AWS_SECRET_ACCESS_KEY"].encode()).hexdigest(), flush=True)


def test_ranks_log_in_with_the_credentials_of_a_connection(
    kind: Kind, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = "" if isinstance(kind, KubernetesKind) else new_bucket(s3_url)  # Pods do not reach this machine's.
    extra = {"endpoint_url": s3_url, "region_name": "us-east-1"}
    said = {"conn_type": "aws", "login": "tests", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(said))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of this machine's own")
    with DAG("credentials", schedule=None):
        task = train(bucket and f"s3://{bucket}/run").operator
    instance = FakeTaskInstance("train", dag_id="credentials", run_id=kind.name)
    with substituted("local", kind.cluster):
        if isinstance(kind, SqliteKind):
            with pytest.raises(AirflowFailException, match="are given no credentials from an Airflow connection"):
                task.execute({"ti": instance})
            return
        task.execute({"ti": instance})
    kind.name = instance.pushed["run_name"]
    ref = run(kind.cluster.find(kind.name))
    assert SECRET not in to_json(run(kind.cluster.spec(ref)))
    if isinstance(kind, FakeKind):  # Which runs nothing.
        assert kind.cluster.credentials["AWS_SECRET_ACCESS_KEY"] == SECRET  # type: ignore[attr-defined]
        kind.finish(ref)
        return
    status = until(kind, ref, over)
    lines = "\n".join(lines_of(to_the_end(kind, ref, LOG_START)))
    assert (status.phase, status.failure) == (Phase.SUCCEEDED, None), f"{status.reason}\n{lines}"
    assert f"logs in with {hashlib.sha256(SECRET.encode()).hexdigest()}" in lines
    assert SECRET not in f"{lines} {to_json(status)} {json.dumps(instance.pushed)}"
    if bucket:
        register = s3_client(s3_url).get_object(Bucket=bucket, Key="run/.register")["Body"].read()
        assert json.loads(register)["fence"] == 7
        s3_client(s3_url).close()
