"""What people see of a run who look at Ray, what they do not, and where Ray places workers that are to be spread."""

from __future__ import annotations

import json

import psutil
import pytest

from elastic_runtime.ray.jobs import job_id
from elastic_runtime.run.status import Phase
from tests.paced import Script
from tests.ray.conftest import Start
from tests.ray_run import SharingRun

pytestmark = pytest.mark.timeout(400)
HELD = Script("exact.py", holds=(20,), step_seconds=0.05)


def test_job_and_actor_lead_to_the_page_and_show_no_credentials(start: Start) -> None:
    class Shown(SharingRun):
        shown = {"dag_id": "digits", "task_id": "train", "run_id": "manual", "page": "https://airflow.example/task"}  # noqa: RUF012  # read only
        credentials = {"AWS_SECRET_ACCESS_KEY": "planted-by-a-test"}  # noqa: RUF012  # read only

    run = start(HELD, (1, 1, 1), kind=Shown)
    run.at(20)
    metadata = run.asked(f"/api/jobs/{job_id(run.spec)}")["metadata"]
    actor = run.actor("worker-0")
    shown = json.dumps(
        [
            run.asked("/api/jobs/"),
            *(run.asked(f"/api/v0/{what}?detail=1&limit=1000") for what in ("actors", "jobs", "runtime_envs", "tasks")),
        ]
    )
    environment = psutil.Process(run.agent_pid("worker-0")).environ()
    run.go(20)

    assert run.succeed().phase is Phase.SUCCEEDED
    assert metadata == {**metadata, **Shown.shown}
    assert actor["repr_name"] == "worker-0 of digits.train, run manual: https://airflow.example/task"
    assert environment["AWS_SECRET_ACCESS_KEY"] == "planted-by-a-test"
    assert "manual" in shown
    assert "planted-by-a-test" not in shown
    assert not list(run.folder.path.glob("*credentials*")), "the run is over"


@pytest.mark.usefixtures("all_nodes")
def test_workers_that_are_to_be_spread_are_on_as_many_nodes(start: Start) -> None:
    class Spread(SharingRun):
        demands = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}  # noqa: RUF012  # read only

    run = start(HELD, (3, 3, 3), kind=Spread)
    run.at(20)
    nodes = [run.node_of(f"worker-{number}") for number in range(3)]
    run.go(20)

    assert run.succeed().phase is Phase.SUCCEEDED
    assert len(set(nodes)) == 3
