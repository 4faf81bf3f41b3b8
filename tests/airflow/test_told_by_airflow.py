"""What Airflow tells of a deferred training, through its real components: callbacks, metrics, links."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest

from demo_kit.airflow_api import AirflowApi
from tests.airflow.real_airflow import stack_without, trainings_of

pytestmark = pytest.mark.timeout(600)

DAG_FILE = """
from airflow.providers.common.compat.sdk import DAG
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Workers
from told_callbacks import Tell

with DAG("told", schedule=None):
    train = ElasticHorovodOperator(
        task_id="train",
        command=["python", {script!r}],
        workers=Workers(min=1, start=1, max=2),
        environment={{"STOP": {stop!r}}},
        cluster="site",
        callbacks=Tell,
        deferrable=True,
    )
    ScaleWorkersSensor(task_id="more", training_task_id="train", workers=2, cluster="site", deferrable=True)
"""
CALLBACKS = """
import json
from pathlib import Path
from elastic_training.listeners.callbacks import TrainingCallback


def note(change, task, **_):
    with Path({notes!r}).open("a") as notes:
        notes.write(json.dumps([change.kind.value, task.task_id, change.before, change.world_size]) + "\\n")


class Tell(TrainingCallback):
    created = first_step = resized = finished = checkpointed = staticmethod(note)

    @staticmethod
    def reformed(**_):
        raise ValueError("a user's bug")
"""
SCRIPT = """
import os, time
import horovod.torch as hvd
import torch
from elastic_runtime.torch import DurableState, GlobalBatches, report

hvd.init()
state = DurableState(model=torch.nn.Linear(1, 1))
data = torch.utils.data.TensorDataset(torch.zeros(100000, 1))


@hvd.elastic.run
def train(state):
    for batch in GlobalBatches(data, size=2, seed=0, state=state, epochs=1):
        time.sleep(0.05)
        report(loss=1.0)
        state.commit()
        if hvd.size() == 2 and hvd.broadcast_object(os.path.exists(os.environ["STOP"])):
            return


train(state)
"""


class Collector(BaseHTTPRequestHandler):
    """Takes what OpenTelemetry's exporters send."""

    seen: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Not on the test's output."""


@pytest.fixture
def collector() -> Iterator[int]:
    """Its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_deferred_training_is_told_of(tmp_path: Path, collector: int) -> None:
    folder, notes, stop = tmp_path / "dags", tmp_path / "notes", tmp_path / "stop"
    folder.mkdir()
    (library := tmp_path / "library").mkdir()  # The folder of the DAGs is on no triggerer's path.
    (tmp_path / "train.py").write_text(SCRIPT)
    (library / "told_callbacks.py").write_text(CALLBACKS.format(notes=str(notes)))
    (folder / "told.py").write_text(DAG_FILE.format(script=str(tmp_path / "train.py"), stop=str(stop)))
    home = tmp_path / "home"
    trainings = trainings_of(home)
    more = {
        "PYTHONPATH": os.pathsep.join([str(library), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "AIRFLOW_CONN_SITE": json.dumps({"conn_type": "elastic_training", "extra": {"place": "local"}}),
        "AIRFLOW__ELASTIC_TRAINING__RUN_URL": "https://board.example.com/{run}",
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__OTEL_PORT": str(collector),
        "AIRFLOW__METRICS__OTEL_INTERVAL_MILLISECONDS": "1000",
    }
    with stack_without((), home, trainings, folder, ("told",), **more) as stack, AirflowApi(stack.url) as api:
        run_id = api.trigger("told", {})
        until(lambda: api.task_states("told", run_id).get("more") == "success", 180)
        until(lambda: '["resized", "train", 1, 2]' in notes.read_text(), 30)
        until(lambda: metric("world_size"), 30)
        stop.touch()
        until(lambda: api.run_state("told", run_id) in ("success", "failed"), 120)
        assert api.run_state("told", run_id) == "success"
        name = api.xcom("told", run_id, "train", "run_name")
        links = api._call("GET", f"/dags/told/dagRuns/{run_id}/taskInstances/train/links")["extra_links"]
        until(lambda: metric("runs.ended.succeeded"), 30)
    ids = {"dag_id": "told", "run_id": run_id, "task_id": "train", "map_index": -1, "try_number": 1}
    assert links == {
        "Checkpoints": None,
        "Report": f"/elastic-training/report?{urlencode(ids)}",
        "Training log": None,
        "Training run": f"https://board.example.com/{name}",
    }
    told = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [each[0] for each in told] == ["created", "first_step", "resized", "finished"]
    for each in ("resizes", "step", "workers_wanted"):
        assert metric(each)


def until(holds: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, holds
        time.sleep(0.2)


def metric(name: str) -> bool:
    return any(f"elastic_training.{name}".encode() in body for body in Collector.seen)
