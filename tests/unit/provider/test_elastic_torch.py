"""The sisters for torch.distributed: what is their own, beside what all operators that train have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, BaseOperator, task
from airflow.serialization.serialized_objects import DagSerialization
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.command import parse
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RestartSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.decorators.training import ElasticTorchDecoratedOperator
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.operators.restartable import RestartableOperator
from elastic_training.settings import Observe, Pods, Restart, Workers
from elastic_training.settings.recovery import check_restartable
from tests.unit.provider.manifests_bench import SPEC, objects_of, pods_of
from tests.unit.provider.operator_bench import deferred, run_in, trying

ARGUMENTS: dict[str, Any] = {
    "task_id": "train",
    "command": ["python", "train.py"],
    "workers": Workers(min=1, start=2, max=4),
    "environment": {"RATE": "0.1"},
}


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("nightly", schedule=None) as made:
        yield made


def test_the_run_is_that_of_the_sister_but_for_its_engine() -> None:
    ours = ElasticTorchOperator(**ARGUMENTS).spec("nightly")
    theirs = ElasticHorovodOperator(**ARGUMENTS | {"task_id": "other"}).spec("nightly")
    assert (ours.engine, theirs.engine) == ("torch", "horovod")
    assert replace(ours, uid=theirs.uid, engine=theirs.engine) == theirs


def test_it_takes_what_the_sister_takes_but_for_horovods_knobs() -> None:
    ours, theirs = set(ElasticTorchOperator.template_fields), set(ElasticHorovodOperator.template_fields)
    assert (theirs - ours, ours - theirs) == ({"horovod"}, set())
    with pytest.raises(InvalidSettings, match="horovod") as told:
        ElasticTorchOperator(**ARGUMENTS, horovod={"cycle_time_ms": 2})
    assert "ElasticHorovodOperator" in str(told.value)


@pytest.mark.parametrize("observe", [Observe(timeline=True), {"timeline": "yes"}])
def test_horovods_timeline_is_refused_at_parse(observe: Any) -> None:
    with pytest.raises(InvalidSettings, match="Horovod's"):
        ElasticTorchOperator(**ARGUMENTS, checkpoint_uri="file:///runs", observe=observe)


def test_horovods_timeline_is_refused_once_a_template_says_so() -> None:
    asked = ElasticTorchOperator(
        **ARGUMENTS, checkpoint_uri="file:///runs", observe=Observe(timeline="{{ params.trace }}")
    )
    asked.render_template_fields({"params": {"trace": "true"}})
    with pytest.raises(InvalidSettings, match="Horovod's"):
        asked.spec("nightly")


@pytest.mark.parametrize(
    ("operator", "engine"), [(ElasticTorchOperator, "torchrun"), (ElasticHorovodOperator, "horovodrun")]
)
@pytest.mark.parametrize(
    "restart",
    [
        Restart(signal="SIGUSR1", grace=60),
        {"signal": "SIGUSR1", "grace": "60"},
        Restart(signal="{{ params.signal }}", grace="{{ params.grace }}"),
    ],
)
def test_a_script_is_restarted_as_its_launcher_would_start_it(
    operator: type[RestartableOperator], engine: str, restart: Any
) -> None:
    asked = operator(**ARGUMENTS, restart=restart)
    asked.render_template_fields({"params": {"signal": "SIGUSR1", "grace": 60}})
    spec = asked.spec("nightly")
    assert (spec.engine, spec.restart) == (engine, RestartSpec("SIGUSR1", 60.0))
    assert spec.can_pause, "the state is in the script's own checkpoints"
    assert spec.timing.leave_grace > spec.restart.grace, "or a worker that is scaled in is killed first"
    pods = Pods(image="t:1")
    launcher, worker = pods_of(objects_of(pods, replace(spec, name=SPEC.name)))
    assert worker["spec"]["terminationGracePeriodSeconds"] > 60, "nor by the kubelet"
    usual = pods_of(objects_of(pods, replace(spec, name=SPEC.name, engine="torchrun")))
    assert (launcher, worker) == usual, "pods do not differ by engine"


@pytest.mark.parametrize(
    ("arguments", "about"),
    [
        ({"restart": {"signal": "SIGKILL"}}, "restart.signal"),
        ({"restart": {"grace": -1}}, "restart.grace"),
        ({"restart": {"grace": 601}}, "restart.grace"),
        ({"restart": {"signals": "SIGTERM"}}, "restart.signals"),
        ({"restart": True}, "restart"),
        ({"restart": Restart(), "warm": False}, "restart"),
        ({"restart": Restart(), "command": ["bash", "run.sh"]}, "command"),
        ({"restart": Restart(), "command": ["python2", "train.py"]}, "command"),
        ({"restart": Restart(), "command": ["python", "-u", "-m"]}, "command"),
        ({"restart": Restart(), "command": ["python", "-W", "ignore", "{{ params.script }}"]}, "command"),
    ],
)
@pytest.mark.parametrize("operator", [ElasticTorchOperator, ElasticHorovodOperator])
def test_a_restart_that_cannot_work_is_refused_at_parse(
    operator: type[RestartableOperator], arguments: dict[str, Any], about: str
) -> None:
    with pytest.raises(InvalidSettings) as told:
        operator(**ARGUMENTS | arguments)
    assert told.value.field == about


def test_horovod_tunes_in_a_run_of_any_size_whose_processes_last_for_one_world() -> None:
    knobs = ARGUMENTS | {"horovod": {"autotune": True}}
    tuned = ElasticHorovodOperator(**knobs, restart=Restart()).spec("nightly")
    assert tuned.environment["HOROVOD_AUTOTUNE"] == "1"
    with pytest.raises(InvalidSettings, match=r"horovod\.autotune"):
        ElasticHorovodOperator(**knobs | {"task_id": "in_place"}).spec("nightly")


@pytest.mark.parametrize("option", [["-W", "ignore"], ["-O"], ["-X", "dev"], ["-um"], ["-u", "-B"]])
def test_an_option_of_python_with_which_ranks_do_not_meet_is_refused_with_its_variable(option: list[str]) -> None:
    with pytest.raises(InvalidSettings) as told:
        ElasticTorchOperator(**ARGUMENTS | {"restart": Restart(), "command": ["python", *option, "train.py"]})
    assert told.value.field == "command"
    assert repr(option[-1] if option[0] == "-u" else option[0]) in told.value.problem
    assert "PYTHONWARNINGS" in told.value.remedy
    in_place = ARGUMENTS | {"task_id": "other", "command": ["python", *option, "train.py"]}
    ElasticTorchOperator(**in_place)


def test_such_an_option_of_a_template_is_refused_once_it_is_known() -> None:
    asked = ElasticTorchOperator(
        **ARGUMENTS | {"restart": Restart(), "command": ["python", "{{ params.option }}", "train.py"]}
    )
    asked.render_template_fields({"params": {"option": "-O"}})
    with pytest.raises(InvalidSettings, match="'-O'"):
        asked.spec("nightly")


WORDS = st.lists(st.sampled_from(["-u", "-m", "-c", "-", "-O", "-W", "-uB", "ignore", "train.py"]), max_size=4)


@given(st.sampled_from(["python", "python3", "python3.12", "python2", "pythonic", sys.executable, "train.py"]), WORDS)
def test_whatever_is_not_refused_starts_warm(program: str, words: list[str]) -> None:
    def is_refused() -> bool:
        try:
            check_restartable([program, *words], warm=True)
        except InvalidSettings:
            return True
        return False

    assert is_refused() is (parse([program, *words]) is None)


@pytest.mark.parametrize(
    "command", [["/opt/conda/bin/python3", "-u", "train.py"], ["python", "-m", "{{ params.module }}"]]
)
def test_what_only_the_image_or_a_template_tells_is_not_refused_at_parse(command: list[str]) -> None:
    ElasticTorchOperator(**ARGUMENTS | {"restart": Restart(), "command": command})


def test_its_run_is_created_and_awaited(fake: FakeCluster) -> None:
    asked = ElasticTorchOperator(**ARGUMENTS, deferrable=True)
    assert deferred(asked, trying()).method_name == "execute_complete"
    assert run_in(fake).document.spec.engine == "torch"


def test_a_serialised_dag_has_the_same_fields(dag: DAG) -> None:
    ElasticTorchOperator(**ARGUMENTS)
    (again,) = DagSerialization.from_dict(DagSerialization.to_dict(dag)).tasks
    assert set(again.template_fields) == set(ElasticTorchOperator.template_fields)


def test_a_function_trains_with_it() -> None:
    @task.elastic_torch(workers=Workers(min=1, max=2))
    def train(rate: float) -> float:
        return rate

    operator = train(0.5).operator
    assert isinstance(operator, ElasticTorchDecoratedOperator)
    assert isinstance(operator, BaseOperator)
    assert operator.custom_operator_name == "@task.elastic_torch"
    assert operator.spec("nightly").engine == "torch"


def test_a_command_beside_a_function_is_refused_with_the_operator_that_takes_it() -> None:
    def train() -> None:
        return None

    with pytest.raises(InvalidSettings, match="command") as told:
        task.elastic_torch(workers=Workers(), command=["python"])(train)()
    assert "ElasticTorchOperator" in str(told.value)
