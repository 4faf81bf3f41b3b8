"""Seven secrets are planted in a training; whoever looks at what Airflow and people are shown finds none of them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, mask_secret
from airflow.sdk._shared.secrets_masker import _secrets_masker
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields
from airflow.serialization.serialized_objects import DagSerialization

from elastic_runtime.documents import to_json, to_plain
from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.kubernetes.manifests.objects import render, run_objects
from elastic_training.clusters.registry import substituted
from elastic_training.concurrency.bridge import run
from elastic_training.exceptions import TrainingFailed
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.redaction.values import redacted, remember_secrets
from elastic_training.settings import Pods, PodShape, Recovery, Workers
from tests.unit.provider.operator_bench import NAME, deferred, operator, ref_in, run_in, trying

SECRETS = {
    "environment": "planted-in-environment",
    "pods": "planted-in-pods",
    "template": "planted-in-template",
    "connection": "planted-in-connection",
    "variable": "planted-in-variable",
    "checkpoints": "planted-in-checkpoints",
    "store": "planted-in-store",
}
ANY = re.compile("planted-in-")
TEMPLATE = {
    "spec": {
        "containers": [
            {"name": "worker", "env": [{"name": "DB_PASSWORD", "value": SECRETS["template"]}]},
            {"name": "sidecar", "image": "proxy:1", "env": [{"name": "API_TOKEN", "value": SECRETS["template"]}]},
        ]
    }
}


@pytest.fixture(autouse=True)
def moon(fake: FakeCluster) -> Iterator[None]:
    """A cluster of pods."""
    with substituted("moon", fake):
        yield


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection with the checkpoint store's credentials, which Airflow has not been asked for yet."""
    said = {"conn_type": "aws", "login": SECRETS["store"], "password": SECRETS["store"] + "'\"\\"}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(said))


@pytest.fixture(autouse=True)
def masker() -> Iterator[None]:
    """Airflow's, which knows what it has read from connections and variables, and afterwards what it knew before."""
    masker = _secrets_masker()
    patterns, replacer = set(masker.patterns), masker.replacer
    masker.patterns, masker.replacer = set(), None  # Or a word that another test has made a secret hides half of ours.
    for known in ("connection", "variable"):
        mask_secret(SECRETS[known])
    yield
    masker.patterns, masker.replacer = patterns, replacer


def planted(**more: Any) -> ElasticHorovodOperator:
    settings: dict[str, Any] = {
        "command": ["python", "train.py", "--database", f"postgresql://user:{SECRETS['connection']}@host/data"],
        "environment": {
            "DB_PASSWORD": SECRETS["environment"],
            "AWS_SECRET_ACCESS_KEY": SECRETS["checkpoints"],
            "GREETING": f"hello {SECRETS['variable']}",
            "SEED": "7",
        },
        "pods": Pods(
            image="trainer:1",
            env={"HF_TOKEN": SECRETS["pods"], "LEVEL": "info"},
            annotations={"example.com/password": SECRETS["pods"]},
            worker=PodShape(template=TEMPLATE),
        ),
        "workers": Workers(max="4", gpus=1),
        "cluster": "moon",
        "checkpoint_uri": "s3://bucket/runs",
        "checkpoint_conn_id": "store",
    }
    return operator(**settings | more)


def test_rendered_fields_show_what_was_set_without_the_secrets() -> None:
    shown = _serialize_rendered_fields(planted(recovery=Recovery(max_wait=timedelta(minutes=2))))
    assert not ANY.search(json.dumps(shown))
    assert shown["workers"] == {"gpus": 1, "max": "4"}
    assert shown["recovery"] == {"max_wait": "0:02:00"}
    assert shown["environment"] == {
        "AWS_SECRET_ACCESS_KEY": "***", "DB_PASSWORD": "***", "GREETING": "hello ***", "SEED": "7",
    }  # fmt: skip
    assert isinstance(shown["pods"], dict)
    assert shown["pods"]["env"] == {"HF_TOKEN": "***", "LEVEL": "info"}


def test_airflow_2_which_asks_for_strings_is_given_none() -> None:
    train = planted()
    for field in train.template_fields:
        if field != "command":  # Plain words, in which Airflow's own masker finds what it knows.
            assert not ANY.search(f"{getattr(train, field)!s}{getattr(train, field)!r}")


@pytest.mark.parametrize("mapped", [False, True])
def test_the_serialised_dag_has_none_and_is_the_same_with_each_parse(mapped: bool) -> None:
    def parsed() -> str:
        with DAG("nightly", schedule=None) as dag:
            train = planted(command=["python", "train.py"])
            if mapped:
                settings = {name: getattr(train, name) for name in ("cluster", "pods", "workers")}
                environment = dict(train.environment)
                ElasticHorovodOperator.partial(task_id="mapped", environment=environment, **settings).expand(
                    command=[["a"], ["b"]]
                )
        return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)

    assert not ANY.search(parsed())
    assert parsed() == parsed()
    assert " at 0x" not in parsed()


def test_log_xcom_and_trigger_have_none(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Mock()
    monkeypatch.setattr(ElasticHorovodOperator, "log", log)
    task_instance = trying()
    parting = deferred(planted(deferrable=True, retries=3), task_instance)
    assert not ANY.search(json.dumps(parting.trigger.serialize()))
    assert not ANY.search(json.dumps(task_instance.pushed))
    assert log.debug.called
    assert log.info.called
    assert not ANY.search(str(log.mock_calls))
    assert SECRETS["store"] in fake.credentials["AWS_SECRET_ACCESS_KEY"], "the ranks have them"
    assert SECRETS["store"] not in run_in(fake).spec.environment.values()
    assert SECRETS["store"] not in to_json(run_in(fake).spec)


def test_manifests_and_dry_run_show_none(fake: FakeCluster) -> None:
    train = planted()
    pods = train.pods.of_run(train.workers, "trainer:1")
    credentials = train.store_credentials()
    assert credentials is not None
    objects = run_objects(train.spec(NAME), "owner", pods, namespace="here", credentials=credentials.variables)
    shown = render(objects.all())
    assert not ANY.search(shown)
    assert "AWS_SECRET_ACCESS_KEY: (not shown)" in shown
    assert SECRETS["store"] not in repr((objects, credentials))
    assert "DB_PASSWORD" in shown
    assert not ANY.search(json.dumps(objects.root()["metadata"]))
    out = io.StringIO()
    with redirect_stdout(out):
        train.dry_run()
    assert not ANY.search(out.getvalue())


def test_the_server_s_words_about_a_refused_value_do_not_quote_it(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*_: Any, **__: Any) -> None:
        raise InvalidSettings(
            "pods", f"Pod is invalid: env[0].value: Invalid value: {SECRETS['pods']!r}", "Write another"
        )

    monkeypatch.setattr(fake, "claim", claim)
    with pytest.raises(AirflowFailException, match=r"Invalid value: '\*\*\*'") as caught:
        planted().execute({"ti": trying()})
    assert not ANY.search(str(caught.value))
    assert caught.value.__cause__ is None


def test_the_last_words_of_a_rank_come_without_them(fake: FakeCluster) -> None:
    train, task_instance = planted(deferrable=True), trying()
    deferred(train, task_instance)
    text = f"rank 0 ended with 1: cannot log in with {SECRETS['environment']}"
    fake.fail(NAME, FailureKind.RANK_FAILED, text)
    ref = ref_in(fake)
    status, owner = to_plain(run(fake.status(ref))), run(fake.owner(ref))
    event = {"ending": "finished", "status": status, "detail": "", "name": NAME, "uid": ref.uid, "owner": owner}
    with pytest.raises(TrainingFailed, match=r"cannot log in with \*\*\*") as caught:
        planted().execute_complete({"ti": task_instance}, event)
    assert not ANY.search(str(caught.value))
    assert not ANY.search(json.dumps(task_instance.pushed))


def test_names_that_are_values_are_seen_and_names_of_things_are_not_hidden() -> None:
    reference = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    env = [{"name": "DB_PASSWORD", "value": "x"}, reference]
    volume = {"secret": {"secretName": "tls"}}
    assert redacted({"env": env, "volumes": [volume]}) == {
        "env": [{"name": "DB_PASSWORD", "value": "***"}, reference],
        "volumes": [volume],
    }


def test_what_looks_secret_and_is_a_flag_does_not_blacken_the_log() -> None:
    remember_secrets({"TOKENIZERS_PARALLELISM": "false", "USE_TOKEN": "true", "TOKENIZER": "a-tokenizer"})
    assert redacted("a-tokenizer is true or false") == "a-tokenizer is true or false"
