"""``@task.elastic_horovod``: what is refused at parse, what is shipped, and that it is a task like others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, XComArg, task
from airflow.serialization.serialized_objects import DagSerialization

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.shipment import unpack
from elastic_runtime.script.function import ARGUMENTS, FUNCTION
from elastic_training.clusters.fake import FakeCluster
from elastic_training.decorators.training import ElasticHorovodDecoratedOperator, elastic_horovod_task
from elastic_training.settings import Workers
from tests.unit.provider.operator_bench import deferred, run_in, trying

WORKERS = Workers(min=1, start=2, max=4)


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("nightly", schedule=None) as made:
        yield made


@task.elastic_horovod(workers=WORKERS, deferrable=False)
def train(rate: float, layers: list[int] | None = None) -> float:
    """A model."""
    # what a comment says stays
    return rate * len(layers or [])


def operator_of(output: XComArg) -> ElasticHorovodDecoratedOperator:
    assert isinstance(output.operator, ElasticHorovodDecoratedOperator)
    return output.operator


def shipped(fake: FakeCluster) -> dict[str, bytes]:
    spec = run_in(fake).document.spec
    assert spec.scripts is not None
    return unpack(spec.scripts)


def execute(operator: Any, **context: Any) -> Any:
    operator.render_template_fields(context, operator.dag.get_template_env())
    return operator.execute({"ti": trying(), **context})


def test_the_function_and_its_arguments_are_shipped(fake: FakeCluster) -> None:
    operator = operator_of(train(0.5, layers=[1, 2]))
    operator.wait_for_completion = False
    execute(operator)
    files = shipped(fake)
    assert run_in(fake).document.spec.command == ("python", FUNCTION)
    assert json.loads(files[ARGUMENTS]) == {"args": [0.5], "kwargs": {"layers": [1, 2]}}
    source = files[FUNCTION].decode()
    assert source.startswith("from __future__ import annotations\n\ndef train(rate: float")
    assert "# what a comment says stays" in source
    assert "elastic_horovod" not in source
    compile(source, FUNCTION, "exec")


def test_it_waits_and_returns_the_result_document_as_the_operator_does(fake: FakeCluster) -> None:
    fake.automatic = True
    operator = operator_of(train.override(deferrable=True)(0.5))
    assert deferred(operator, trying()).method_name == "execute_complete"


def test_templates_and_outputs_become_arguments(fake: FakeCluster) -> None:
    @task
    def planned() -> float:
        return 0.25

    operator = operator_of(train(planned(), layers="{{ params.layers }}"))
    assert operator.upstream_task_ids == {"planned"}
    operator.wait_for_completion = False
    operator.op_args = [0.25]
    execute(operator, params={"layers": [3]})
    assert json.loads(shipped(fake)[ARGUMENTS]) == {"args": [0.25], "kwargs": {"layers": "[3]"}}


def test_an_output_that_is_not_json_fails_without_another_try(fake: FakeCluster) -> None:
    operator = operator_of(train(0.5))
    operator.op_args = [{0.5}]
    with pytest.raises(AirflowFailException, match=r"op_args\[0\].*not JSON"):
        execute(operator)
    assert fake.runs == {}


def test_secrets_in_arguments_are_masked_in_the_log_and_shipped_as_they_are(
    fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    @elastic_horovod_task(workers=WORKERS, wait_for_completion=False, deferrable=False)
    def told(api_token: str) -> str:
        return api_token

    operator = operator_of(told(api_token="planted-in-an-argument"))
    operator.dry_run()
    execute(operator)
    [run] = fake.runs.values()
    assert "planted" not in capsys.readouterr().out + repr(operator.op_kwargs) + str(run.document.spec.scripts.slip())
    assert b"planted-in-an-argument" in unpack(run.document.spec.scripts)[ARGUMENTS]


def test_scripts_are_shipped_beside_it(fake: FakeCluster) -> None:
    operator = operator_of(train.override(scripts=["fakes.py"], wait_for_completion=False)(0.5))
    execute(operator)
    assert set(shipped(fake)) == {"fakes.py", FUNCTION, ARGUMENTS}


@pytest.mark.parametrize(
    ("settings", "arguments", "field"),
    [
        ({"command": ["python", "train.py"]}, (0.5,), "command"),
        ({"serializer": "dill"}, (0.5,), "serializer"),
        ({"scripts": ["no.py"]}, (0.5,), "scripts"),
        ({"workers": 3}, (0.5,), "workers"),
        ({}, (object(),), "op_args[0]"),
        ({}, ([float("inf")],), "op_args[0][0]"),
    ],
)
def test_what_cannot_work_is_refused_at_parse(settings: dict[str, Any], arguments: tuple[Any, ...], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        train.override(**settings)(*arguments)
    assert caught.value.field == field


def test_a_function_that_needs_the_module_is_refused_at_parse() -> None:
    @elastic_horovod_task(workers=WORKERS)
    def uses_the_module() -> object:
        return WORKERS

    with pytest.raises(InvalidSettings, match=r"uses WORKERS of the module.*cloudpickle"):
        uses_the_module()


def test_a_context_key_is_refused_at_parse() -> None:
    @elastic_horovod_task(workers=WORKERS)
    def asks(ti: object) -> object:
        return ti

    with pytest.raises(InvalidSettings, match="no context of Airflow"):
        asks()


def test_an_annotation_of_the_result_does_not_spread_the_document_over_xcoms() -> None:
    @elastic_horovod_task(workers=WORKERS)
    def result() -> dict[str, float]:
        return {}

    assert operator_of(result()).multiple_outputs is False


def test_each_mapped_one_has_its_own_arguments(fake: FakeCluster) -> None:
    mapped = train.partial(layers=[1]).expand(rate=[0.1, 0.2]).operator
    for index, rate in enumerate((0.1, 0.2)):
        operator = mapped.unmap({"op_kwargs": {"rate": rate}})
        operator.wait_for_completion = False
        operator.execute({"ti": trying(map_index=index)})
    found = [json.loads(unpack(run.document.spec.scripts)[ARGUMENTS]) for run in fake.runs.values()]
    assert found == [{"args": [], "kwargs": {"layers": [1], "rate": rate}} for rate in (0.1, 0.2)]


def test_the_serialised_dag_holds_neither_source_nor_secrets(dag: DAG) -> None:
    train(0.5, layers=[1])
    train.override(task_id="more", environment={"API_TOKEN": "sesame-of-the-caller"})(0.5)

    @elastic_horovod_task(workers=WORKERS)
    def told(api_token: str) -> str:
        return api_token

    told(api_token="sesame-of-the-caller")
    text = json.dumps(DagSerialization.to_dict(dag))
    assert "what a comment says" not in text
    assert "sesame-of-the-caller" not in text
    assert "elastic_horovod" in text


def test_airflow_finds_the_decorator_by_its_name() -> None:
    operator = operator_of(train(0.5))
    assert operator.custom_operator_name == "@task.elastic_horovod"
    assert operator.doc_md == "A model."
