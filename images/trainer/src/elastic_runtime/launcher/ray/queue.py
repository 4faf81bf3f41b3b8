"""Ray as a :class:`~elastic_runtime.launcher.jobs.workers.JobQueue`: each worker is an actor that runs an agent.

The launcher owns the actors, so none outlives it. It needs the Ray of the cluster in its own Python.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from typing_extensions import override

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.launcher.jobs.workers import JobQueue
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.ray.credentials import credentials_file, remove_credentials
from elastic_runtime.ray.jobs import IN_USE, NO_NODE, RaySpec, lacking, shown_as, why_pending
from elastic_runtime.run.jobs import Job, JobState
from elastic_runtime.run.spec import RunSpec

log = logging.getLogger(__name__)
_AS_NICE_AS_A_JOB = {"env_vars": {"RAY_worker_niceness": "0"}}
"""Ray gives way to others with 15 otherwise, as is right for tasks that crowd a node. Variables of the run stay."""


@dataclass(slots=True)
class _Actor:
    worker: str
    handle: Any
    node: Any
    """Reference to the id of the node that it is on."""
    code: Any
    """Reference to the agent's exit status."""
    on: str = ""
    """Id of that node, once it is known."""


class RayQueue(JobQueue):
    """Actors of one run.

    Args:
        spec: of the run.
        wanted: what its workers want.
        ray: Ray's package, connected to the cluster.
        folder: of the run.
    """

    system = "Ray"
    later = 2.0
    ahead = math.inf

    def __init__(self, spec: RunSpec, wanted: RaySpec, ray: Any, folder: Path) -> None:
        self._spec, self._wanted, self._ray, self._folder = spec, wanted, ray, folder
        self.python, self.grace = wanted.python, wanted.grace
        self._class = ray.remote(agent_class())
        self._actors: dict[str, _Actor] = {}
        self._count = 0
        self._drained: dict[str, datetime] = {}
        self._limited_log = RateLimitedLog(log)

    @override
    def jobs(self) -> list[Job]:
        self._see_drains()
        found = [self._job(number, actor) for number, actor in list(self._actors.items())]
        if any(job.state is JobState.PENDING for job in found):
            reason = self._why()
            found = [self._pending(job, reason) if job.state is JobState.PENDING else job for job in found]
        for job in found:
            if job.state is JobState.OVER:  # An actor keeps its resources until it ends.
                self._ray.kill(self._actors.pop(job.id).handle)
        return found

    @override
    def submit(self, worker: str, command: Sequence[str], output: Path) -> str:
        self._count += 1
        name = f"{self._spec.name}/{worker}"
        try:
            options = self._class.options(
                name=f"{name}/{self._spec.uid[:12]}", runtime_env=_AS_NICE_AS_A_JOB, **self._wanted.demands
            )
            handle = options.remote(shown_as(worker, self._wanted.shown))
            code = handle.run.remote(list(command), str(output), credentials_file(self._folder))
            made = _Actor(worker, handle, handle.node.remote(), code)
        except (TypeError, ValueError) as error:
            problem, remedy = f"Ray says: {printable(error, 300)}", "Correct it"
            raise InvalidSettings("ray", problem, remedy) from error
        except Exception as error:
            raise _unavailable(error) from error
        self._actors[str(self._count)] = made
        return str(self._count)

    @override
    def cancel(self, ids: Iterable[str], *, in_order: bool = False) -> None:
        for number in list(ids):
            if actor := self._actors.get(number):
                try:
                    if in_order:
                        actor.handle.stop.remote()
                    else:
                        self._ray.kill(actor.handle)
                except Exception as error:
                    raise _unavailable(error) from error

    @override
    def close(self) -> None:
        remove_credentials(self._folder)

    @override
    def why_pending(self, reason: str) -> tuple[str, bool]:
        return why_pending(reason)

    def _job(self, number: str, actor: _Actor) -> Job:
        state, word, reason = JobState.PENDING, "PENDING", ""
        if self._answered(actor.code):
            state, word, reason = JobState.OVER, *self._end_of(actor)
        elif actor.on or self._answered(actor.node):
            try:
                actor.on = actor.on or self._ray.get(actor.node)
                state, word = JobState.RUNNING, "RUNNING"
            except Exception as error:  # noqa: BLE001  # it has ended meanwhile, in any of Ray's ways
                state, word, reason = JobState.OVER, type(error).__name__, _first_line(error)
        end = self._drained.get(actor.on)
        return Job(number, self._spec.uid, actor.worker, state, word, reason, actor.on, end)

    def _answered(self, reference: Any) -> bool:
        done, _ = self._ray.wait([reference], timeout=0)
        return bool(done)

    def _end_of(self, actor: _Actor) -> tuple[str, str]:
        try:
            code = self._ray.get(actor.code)
        except Exception as error:  # noqa: BLE001  # of an actor that has died, or could not be made
            return type(error).__name__, _first_line(error)
        return "SUCCEEDED" if code == 0 else "FAILED", f"exit status {code}"

    def _why(self) -> str:
        try:
            missing = lacking(self._ray.nodes(), self._wanted.demands)
        except Exception as error:  # noqa: BLE001  # why is not known; that it waits, is
            return printable(error, 100)
        return f"{NO_NODE}{missing}" if missing else IN_USE

    def _pending(self, job: Job, reason: str) -> Job:
        return Job(job.id, job.run, job.part, job.state, job.word, reason)

    def _see_drains(self) -> None:
        """Drains by people, by an autoscaler, or by a cloud that takes a node: Ray Train reads them here, too."""
        try:
            told = self._ray._private.state.state.get_draining_nodes()  # there is no public way
        except Exception as error:  # noqa: BLE001  # of a Ray without it, or without an answer
            self._limited_log.warning("drained nodes are not seen: %s", printable(error, 200))
            return
        for node, deadline in told.items():
            if node not in self._drained:
                grace = utc_now() + timedelta(seconds=self.grace)
                self._drained[node] = datetime.fromtimestamp(deadline / 1000, UTC) if deadline else grace
        for node in self._drained.keys() - told.keys():
            del self._drained[node]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return printable(" ".join(lines[:1] + lines[-1:] if len(lines) > 1 else lines), 300)


def _unavailable(error: Exception) -> ClusterUnavailable:
    return ClusterUnavailable(f"Ray does not answer: {type(error).__name__}: {_first_line(error)}")


def connect(ray: Any, uid: str) -> str:
    """Connect this process to its cluster. Return the number of the address by which Ray reaches this node."""
    try:
        ray.init(address="auto", namespace=f"elastic-training-{uid}", log_to_driver=False, configure_logging=False)
        return str(ray.util.get_node_ip_address())
    except Exception as error:
        raise _unavailable(error) from error


def agent_class() -> type:
    """Return the class of actors. Ray carries it to the nodes whole, so that their Python needs nothing of ours."""

    class ElasticTrainingWorker:
        """Runs an agent as a process of its own, which ends with this one."""

        def __init__(self, shown: str) -> None:
            self._shown = shown
            self._process: Any = None
            self._stopped = False

        def __repr__(self) -> str:  # Ray's dashboard and `ray list actors --detail` show it.
            return self._shown

        def node(self) -> str:
            from importlib import import_module

            return str(import_module("ray").get_runtime_context().get_node_id())

        async def run(self, command: list[str], output: str, credentials: str) -> int:
            import asyncio
            import json
            import os
            import sys
            from pathlib import Path

            die = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
            secret = json.loads(Path(credentials).read_bytes()) if credentials else {}  # noqa: ASYNC240  # as the next
            with open(output, "ab") as log:  # noqa: ASYNC230  # before anything else is to be done here
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", die, *command),
                    env={**os.environ, **secret},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if self._stopped:
                self._process.terminate()
            return int(await self._process.wait())

        async def stop(self) -> None:
            self._stopped = True
            if self._process is not None and self._process.returncode is None:
                self._process.terminate()

    return ElasticTrainingWorker
