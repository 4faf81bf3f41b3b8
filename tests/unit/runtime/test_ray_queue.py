"""Workers as actors, with a Ray that is played."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.launcher.ray.queue import RayQueue, agent_class
from elastic_runtime.ray.credentials import write_credentials
from elastic_runtime.ray.jobs import RaySpec
from elastic_runtime.run.jobs import JobState
from elastic_runtime.run.spec import RunSpec, WorkersSpec

RUN = RunSpec("run", "0123456789abcdef", ("true",), WorkersSpec(1, 2, 3))


class Actor:
    """A handle: its references are answered as the test says."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.answers, self.stopped, self.killed = options, {}, False, False
        self.node = SimpleNamespace(remote=lambda: (self, "node"))
        self.run = SimpleNamespace(remote=self._run)
        self.stop = SimpleNamespace(remote=lambda: setattr(self, "stopped", True))

    answers: dict[str, Any]
    shown = credentials = ""

    def _run(self, _command: list[str], _output: str, credentials: str) -> tuple[Actor, str]:
        self.credentials = credentials
        return self, "code"


class PlayedRay:
    """Ray's package, as far as it is called here."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.draining: dict[str, int] = {}
        self._private = SimpleNamespace(
            state=SimpleNamespace(state=SimpleNamespace(get_draining_nodes=lambda: dict(self.draining)))
        )

    def remote(self, _class: type) -> PlayedRay:
        return self

    def options(self, **options: Any) -> Any:
        if options["num_cpus"] < 0:
            raise ValueError("The quantity of resource CPU cannot be negative")

        def create(shown: str) -> Actor:
            self.actors.append(Actor(options))
            self.actors[-1].shown = shown
            return self.actors[-1]

        return SimpleNamespace(remote=create)

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout == 0
        [(actor, name)] = references
        return (references, []) if name in actor.answers else ([], references)

    def get(self, reference: Any) -> Any:
        actor, name = reference
        if isinstance(answer := actor.answers[name], Exception):
            raise answer
        return answer

    def kill(self, actor: Actor) -> None:
        actor.killed = True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}, "Labels": {}}]


def queue_of(ray: PlayedRay, folder: Path = Path("/nowhere"), **demands: Any) -> RayQueue:
    spec = RaySpec("python", {"num_cpus": 1, **demands}, grace=20.0, shown={"dag_id": "dag", "task_id": "train"})
    return RayQueue(RUN, spec, ray, folder)


def submitted(ray: PlayedRay, queue: RayQueue) -> Actor:
    queue.submit("worker-0", ["true"], Path("/out"))
    return ray.actors[-1]


def test_an_actor_waits_runs_and_gives_its_resources_back_when_its_agent_has_ended() -> None:
    ray = PlayedRay()
    queue = queue_of(ray)
    actor = submitted(ray, queue)
    assert actor.options["name"] == "run/worker-0/0123456789ab"
    [job] = queue.jobs()
    assert (job.state, job.part) == (JobState.PENDING, "worker-0")
    assert "in use" in queue.why_pending(job.reason)[0]
    actor.answers["node"] = "n1"
    assert [(job.state, job.node) for job in queue.jobs()] == [(JobState.RUNNING, "n1")]
    actor.answers["code"] = 0
    assert [(job.state, job.word) for job in queue.jobs()] == [(JobState.OVER, "SUCCEEDED")]
    assert actor.killed
    assert queue.jobs() == []


def test_one_that_has_died_is_over_with_rays_words() -> None:
    ray = PlayedRay()
    queue = queue_of(ray)
    submitted(ray, queue).answers["code"] = RuntimeError("The actor died.\nIts node is gone.")
    [job] = queue.jobs()
    assert (job.state, job.word, job.reason) == (JobState.OVER, "RuntimeError", "The actor died. Its node is gone.")


def test_what_no_node_has_is_named() -> None:
    ray = PlayedRay()
    queue = queue_of(ray, num_gpus=1)
    submitted(ray, queue)
    assert "no node has 1 CPU, 1 GPU" in queue.why_pending(queue.jobs()[0].reason)[0]


def test_a_drained_node_is_the_end_of_its_actors_and_of_no_others() -> None:
    ray = PlayedRay()
    queue = queue_of(ray)
    for node in ("n1", "n2", "n3"):
        submitted(ray, queue).answers["node"] = node
    ray.draining = {"n1": 1_800_000_000_000, "n2": 0}
    first, second, third = queue.jobs()
    assert first.end == datetime.fromtimestamp(1_800_000_000, UTC)
    assert second.end is not None
    assert 10 < (second.end - utc_now()).total_seconds() <= 20, "grace, as there is no deadline"
    assert queue.jobs()[1].end == second.end, "counted from the first look on"
    assert third.end is None
    ray.draining = {}
    assert queue.jobs()[0].end is None


def test_a_ray_that_tells_of_no_drains_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    ray = PlayedRay()
    del ray._private
    queue = queue_of(ray)
    submitted(ray, queue)
    assert len(queue.jobs()) == 1
    assert "drained nodes are not seen" in caplog.text


def test_ends_in_order_or_at_once() -> None:
    ray = PlayedRay()
    queue = queue_of(ray)
    actor = submitted(ray, queue)
    queue.cancel(["1", "another"], in_order=True)
    assert (actor.stopped, actor.killed) == (True, False)
    queue.cancel(["1"])
    assert actor.killed


def test_an_actor_names_its_task_and_reads_credentials_from_a_file_that_goes_with_the_run(tmp_path: Path) -> None:
    ray = PlayedRay()
    queue = queue_of(ray, tmp_path)
    actor = submitted(ray, queue)
    assert (actor.shown, actor.credentials) == ("worker-0 of dag.train, run ", "")
    write_credentials(tmp_path, {"SECRET": "x"})
    assert submitted(ray, queue).credentials == str(tmp_path / "credentials.json")
    queue.close()
    assert list(tmp_path.iterdir()) == []


def test_an_agent_has_the_credentials_and_rays_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_RAY", "1")
    write_credentials(tmp_path, {"SECRET": "x"})
    worker = agent_class()("worker-0 of dag.train")
    assert repr(worker) == "worker-0 of dag.train"
    command = [sys.executable, "-c", "import os; print(os.environ['OF_RAY'], os.environ.get('SECRET'))"]
    for credentials, said in ((str(tmp_path / "credentials.json"), "1 x\n"), ("", "1 None\n")):
        output = tmp_path / said[2]
        assert asyncio.run(worker.run(command, str(output), credentials)) == 0
        assert output.read_text() == said


def test_what_ray_refuses_is_a_setting_that_is_wrong() -> None:
    with pytest.raises(InvalidSettings, match="cannot be negative"):
        submitted(ray := PlayedRay(), queue_of(ray, num_cpus=-1))
