"""A function of the DAG file trains in every kind of cluster, with a file of the DAG's folder beside it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG

from elastic_runtime.errors import FailureKind
from elastic_runtime.run.status import Phase
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import LOG_START
from elastic_training.concurrency.bridge import run
from elastic_training.decorators.training import elastic_horovod_task, elastic_torch_task
from elastic_training.outcome.result import result_document
from elastic_training.settings import Workers
from tests.contract.cluster_kinds import FakeKind, Kind
from tests.contract.watching import lines_of, over, to_the_end, training, until
from tests.unit.provider.fakes import FakeTaskInstance

pytestmark = pytest.mark.timeout(600)


SETTINGS = {
    "workers": Workers(min=1, max=2),
    "scripts": ["cluster_kinds.py"],
    "wait_for_completion": False,
    "deferrable": False,
}


@elastic_horovod_task(**SETTINGS)
def by_horovod(wanted, *, rate):
    import os
    import time

    import horovod.torch as hvd
    import torch

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=rate))

    @hvd.elastic.run
    def steps(state):
        while state.left:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.left -= hvd.size() == wanted
            state.commit()
            time.sleep(0.02)

    steps(hvd.elastic.TorchState(model=model, optimizer=optimizer, left=10))
    size = os.path.getsize("cluster_kinds.py")
    print(f"rank {hvd.rank()} of {hvd.size()} at rate {rate} beside {size} bytes", flush=True)
    return {"ranks": hvd.size()}


@elastic_torch_task(**SETTINGS)
def by_torch(wanted, *, rate):
    import os
    import time

    import torch
    from torch import distributed

    from elastic_runtime.torch import DurableState, elastic

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)

    @elastic.run
    def steps(state):
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        while state.left:
            optimizer.zero_grad()
            parallel(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            state.left -= distributed.get_world_size() == wanted
            state.commit()
            time.sleep(0.02)

    steps(DurableState(model=model, optimizer=optimizer, left=10))
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    size = os.path.getsize("cluster_kinds.py")
    print(f"rank {rank} of {ranks} at rate {rate} beside {size} bytes", flush=True)
    return {"ranks": ranks}


EXAMPLE = Path(__file__).resolve().parents[2] / "dags" / "first_training.py"


@pytest.mark.parametrize("train", [by_horovod, by_torch], ids=["horovod", "torch"])
def test_a_function_of_the_dag_file_trains_through_a_resize(kind: Kind, train: Any) -> None:
    with DAG("functions", schedule=None):
        task = train(2, rate=0.125).operator
    instance = FakeTaskInstance(task.task_id, dag_id="functions", run_id=kind.name)
    with substituted("local", kind.cluster):
        task.execute({"ti": instance})
    kind.name = instance.pushed["run_name"]
    ref = run(kind.cluster.find(kind.name))
    until(kind, ref, training(1))
    assert not run(kind.cluster.ask(ref, 2, "more")).done
    if isinstance(kind, FakeKind):  # Which runs nothing.
        kind.finish(ref)
        return
    status = until(kind, ref, over)
    assert (status.phase, status.failure) == (Phase.SUCCEEDED, None), status.reason
    assert result_document(status)["returned"] == {"ranks": 2}
    lines = "\n".join(lines_of(to_the_end(kind, ref, LOG_START)))
    for rank in (0, 1):
        assert f"rank {rank} of 2 at rate 0.125 beside" in lines
    assert FailureKind.LAUNCHER_LOST not in lines


@pytest.mark.parametrize("kind", ["local"], indirect=True)
def test_the_example_trains_well_and_its_result_is_judged(kind: Kind) -> None:
    dag = runpy.run_path(str(EXAMPLE))["dag"]
    task, judge = dag.get_task("train"), dag.get_task("judge")
    task.render_template_fields({"params": {"cluster": "local", "image": "any:1"}})
    instance = FakeTaskInstance("train", dag_id="first_training", run_id=kind.name)
    with substituted("local", kind.cluster):
        result = task.execute({"ti": instance})
    kind.name = instance.pushed["run_name"]
    assert (result["steps"], result["returned"]["ranks"]) == (200, 2)
    assert judge.python_callable(result) > 0.9
