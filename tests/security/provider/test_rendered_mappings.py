"""A mapping with secrets that is known only after rendering: a whole template, or the output of another task."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, XComArg
from airflow.sdk import task
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Pods, PodShape, Workers
from tests.unit.provider.operator_bench import operator, run_in, trying

PLANTED = "sown-in-a-mapping"
ENVIRONMENT = {"S3_CREDENTIALS": PLANTED, "MY_ACCOUNT_KEY": PLANTED, "SSH_PASSPHRASE": PLANTED, "SEED": "7"}
TEMPLATE = {"spec": {"containers": [{"name": "worker", "env": [{"name": "SSH_PASSPHRASE", "value": PLANTED}]}]}}
PODS = {"env": ENVIRONMENT, "worker": {"template": TEMPLATE}}
VALUES: dict[str, Any] = {"environment": ENVIRONMENT, "pods": PODS, "workers": {"max": 4}}
ASKED = "{{ params.value }}"


def upstream(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], XComArg]:
    """Make outputs of other tasks: each returns the value of its name."""

    @task
    def made() -> None:
        """Never run."""

    monkeypatch.setattr(PlainXComArg, "resolve", lambda self, *_, **__: VALUES[self.operator.task_id])
    return lambda name: made.override(task_id=name)()


def shown(train: ElasticHorovodOperator, value: Any = None) -> dict[str, Any]:
    train.render_template_fields({"params": {"value": value}})
    return _serialize_rendered_fields(train)


def test_outputs_of_other_tasks_are_shown_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    output = upstream(monkeypatch)
    with DAG("nightly", schedule=None):
        settings: dict[str, Any] = {name: output(name) for name in VALUES}
        train = ElasticHorovodOperator(task_id="train", command=["a"], cluster="moon", image="trainer:1", **settings)
        fields = shown(train)
    assert PLANTED not in json.dumps(fields)
    assert fields["environment"]["SEED"] == fields["pods"]["env"]["SEED"] == "7"
    assert fields["workers"] == {"max": 4}
    assert PLANTED not in repr(train.environment) + repr(train.pods)


def test_and_trained_with(monkeypatch: pytest.MonkeyPatch, fake: FakeCluster) -> None:
    output = upstream(monkeypatch)
    with substituted("moon", fake), DAG("nightly", schedule=None):
        settings: dict[str, Any] = {name: output(name) for name in VALUES}
        train = ElasticHorovodOperator(
            task_id="train", command=["a"], cluster="moon", image="trainer:1", wait_for_completion=False, **settings
        )
        train.render_template_fields({})
        train.execute({"ti": trying()})
    spec = run_in(fake).spec
    assert spec.environment == ENVIRONMENT
    assert spec.workers.maximum == 4


@pytest.mark.parametrize("field", ["environment", "pods"])
@pytest.mark.parametrize("native", [False, True])
def test_a_template_as_a_whole(field: str, native: bool) -> None:
    with DAG("nightly", schedule=None, render_template_as_native_obj=native):
        train = ElasticHorovodOperator(
            **{field: ASKED},
            task_id="train",
            command=["a"],
            workers=Workers(),
            cluster="moon",
            image="trainer:1",
        )
    fields = shown(train, VALUES[field])
    assert PLANTED not in json.dumps(fields)
    assert (fields[field] == "***") == (not native)
    assert PLANTED not in repr(getattr(train, field)) + str(getattr(train, field))


def test_that_yields_text_ends_the_task_and_is_not_quoted(fake: FakeCluster) -> None:
    train = operator(environment=ASKED)
    shown(train, ENVIRONMENT)
    with pytest.raises(AirflowFailException, match="environment: a RenderedText is not a mapping") as caught:
        train.execute({"ti": trying()})
    assert PLANTED not in str(caught.value)
    assert fake.runs == {}


@pytest.mark.parametrize(
    "pods",
    [
        Pods(env=ASKED),
        Pods(annotations=ASKED),
        Pods(worker=PodShape(template=ASKED)),
        Pods(worker=PodShape(affinity=ASKED)),
    ],
    ids=["env", "annotations", "template", "affinity"],
)
def test_a_field_of_settings(pods: Pods, fake: FakeCluster) -> None:
    with substituted("moon", fake):
        train = operator(cluster="moon", image="trainer:1", pods=pods)
        fields = shown(train, TEMPLATE)
        assert PLANTED not in json.dumps(fields)
        assert "***" in json.dumps(fields["pods"])
        with pytest.raises(AirflowFailException, match="a RenderedText is not a mapping") as caught:
            train.execute({"ti": trying()})
    assert PLANTED not in str(caught.value)


def test_the_path_of_a_pod_template_stays_one(tmp_path: Any) -> None:
    train = operator(cluster="moon", image="trainer:1", pods=Pods(worker=PodShape(template=ASKED)))
    assert shown(train, "/srv/pod.yaml")["pods"] == {"worker": {"template": "/srv/pod.yaml"}}
