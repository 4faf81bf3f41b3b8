"""Runs in pods whose processes are hit from outside, as by their node: of a Kubernetes on this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.spec import RecoverySpec, Timing
from elastic_runtime.run.status import Status, WorkerStatus
from elastic_training.concurrency.bridge import run as await_
from tests.kubernetes_namespace import IMAGE
from tests.kubernetes_reclaims.conftest import shared_place
from tests.kubernetes_reclaims.pod_run import Place as PodPlace
from tests.kubernetes_reclaims.pod_run import PodRun
from tests.local.harness import next_try
from tests.paced import SCRIPTS, Lost, Script

NAMESPACE = "elastic-training-chaos"
MAX_WAIT = 300.0
"""Seconds: a pod may wait for a node while an old one of its node ends."""


class DisturbedPods(PodRun):
    """One run. Process ids in its status are this machine's.

    Args:
        place: where.
        base: a folder that the pods see.
        script: what the ranks run.
        workers: minimum, start and maximum.
        path: of processes of a run; pods have none of this machine's.
        timing: of the run; its ``gather`` is longer, for pods take seconds to come.
        recovery: its ``max_wait`` is longer.
        spec: further fields of the RunSpec.
    """

    def __init__(
        self,
        place: PodPlace,
        base: Path,
        script: Script,
        workers: tuple[int, int, int],
        path: Sequence[Path] = (),
        *,
        timing: Timing,
        recovery: RecoverySpec,
        **spec: Any,
    ) -> None:
        assert not path, path
        super().__init__(
            place, script, workers, base=base, timing=replace(timing, gather=120.0, tick=0.1),
            recovery=replace(recovery, max_wait=MAX_WAIT), **spec,
        )  # fmt: skip
        self._pods: dict[str, str] = {}
        self._here: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    # Looking

    def look(self) -> Status | None:
        status = super().look()
        return status and replace(status, workers=tuple(map(self._on_this_machine, status.workers)))

    def written(self) -> object:
        """Asking costs the API server something: each time is a new one."""
        return uuid4()

    def processes(self) -> list[str]:
        """Pods of workers."""
        return self.pods(Part.WORKER)

    def owns(self, process: psutil.Process) -> bool:
        """Whether it lives, in one of the run's pods."""
        try:
            return process.status() != psutil.STATUS_ZOMBIE and _pod_of(process.pid) in self._pods.values()
        except psutil.NoSuchProcess:
            return False

    def _on_this_machine(self, worker: WorkerStatus) -> WorkerStatus:
        if worker.state.gone or not worker.pids:
            return replace(worker, pids=())
        key = worker.name, worker.pids
        if key not in self._here:
            uid = self._uid(worker.name)
            inside = {_inside(pid): pid for pid in psutil.pids() if uid and _pod_of(pid) == uid}
            found = tuple(inside[pid] for pid in worker.pids if pid in inside)
            if len(found) < len(worker.pids):
                return replace(worker, pids=found if worker.pids[0] in inside else ())
            self._here[key] = found
        return replace(worker, pids=self._here[key])

    def _uid(self, worker: str) -> str:
        if worker not in self._pods:
            pod, uid = WorkerName.parse(worker).pod, "--output=jsonpath={.metadata.uid}"
            self._pods[worker] = self._kubectl("get", "pod", pod, uid, "--ignore-not-found")
        return self._pods[worker]

    # Making things happen

    def resize(self, workers: int) -> None:
        await_(self._cluster.ask(self.ref, workers, uuid4().hex))

    def reclaim(self, worker: str, seconds: float) -> None:
        """As an eviction, with so many seconds until its end."""
        pod, grace = WorkerName.parse(worker).pod, f"--grace-period={max(1, round(seconds))}"
        self._kubectl("delete", "pod", pod, grace, "--wait=false", "--ignore-not-found")

    def pause(self) -> None:
        """Ask for a pause."""
        await_(self._cluster.pause(self.ref, by="ada"))

    def resume(self) -> None:
        """Ask for the end of the pause, at the size before it."""
        await_(self._cluster.resume(self.ref, None, by="ada"))

    def lose_launcher(self) -> None:
        """Kill it for good, and claim the run as the next try of the task does."""
        before, stored = self.look(), self.stored()
        self.kill_launcher()
        self.until(self.is_over, "its loss is known", alive=False)
        self.spec = next_try(self.spec, uuid4().hex)
        self.start()
        self.lost.append(Lost(before, stored, time.monotonic()))
        self._pods.clear()
        self._here.clear()

    def delete_launcher(self) -> None:
        """Another one looks after the run."""
        self.delete_pods(Part.LAUNCHER)


def _pod_of(pid: int) -> str:
    """Uid of the pod in which a process of this machine is; empty: in none, or it is over."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    found = re.search(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})", groups)
    return found[1].replace("_", "-") if found else ""


def _inside(pid: int) -> int:
    """Its number in its pod; 0: it is over."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(r"^NSpid:\s.*?(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


@contextmanager
def pods(folder: Path) -> Iterator[Callable[..., DisturbedPods]]:
    """Pods that see the folder, in a namespace of their own."""
    with shared_place(NAMESPACE, folder, IMAGE, SCRIPTS) as place:
        yield partial(DisturbedPods, place)
