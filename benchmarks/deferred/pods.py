"""The peer: pods that KubernetesPodOperator's trigger waits for, as the operator would have made them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.deferred.api import NAMESPACE, Api, JsonObject
from benchmarks.deferred.kubelet import NODE
from benchmarks.deferred.requests import Kind
from benchmarks.deferred.sides import Name, Side, for_all
from benchmarks.deferred.triggerer import CONNECTION, DAG_ID, RUN_ID, TASK_ID, TriggerSpec

_TRIGGER = "airflow.providers.cncf.kubernetes.triggers.pod.KubernetesPodTrigger"
_CONTAINER = "base"
_GET = Kind("GET", "pods")
_FIRST = 3
"""Times that the trigger gets a pod until it knows that it runs."""


class Pods(Side):
    """``KubernetesPodTrigger`` with the arguments that ``KubernetesPodOperator(deferrable=True)`` gives it by default.

    Args:
        api: where the pods are made.
        extras: of the Airflow connection, which the operator reads and hands to the trigger.
    """

    name = Name.PEER

    def __init__(self, api: Api, extras: Mapping[str, Any]) -> None:
        self._api, self._extras = api, extras
        self._count = self._asked_before = 0

    async def create(self, count: int) -> Sequence[TriggerSpec]:
        """Pods that run."""
        self._count, self._asked_before = count, (await self._api.answered())[_GET]
        return await for_all(count, self._create)

    async def live(self) -> None:
        """Nothing changes in the object of a pod that runs."""
        await asyncio.get_running_loop().create_future()

    async def watched(self) -> bool:
        """Whether every pod has been polled, on average, and not only found to run."""
        asked = (await self._api.answered())[_GET] - self._asked_before
        return asked >= (_FIRST + 1) * self._count

    async def end(self, index: int) -> float:
        """The container has ended with 0, as a kubelet says it."""
        now = time.time()
        await self._api.patch("v1", "pods/status", _name(index), {"status": ended([_CONTAINER])})
        return now

    async def remove(self) -> None:
        """All pods."""
        await self._api.delete_all("v1", "pods")

    async def _create(self, index: int) -> TriggerSpec:
        made = await self._api.create("pods", _pod(index))
        name = made["metadata"]["name"]
        await self._api.patch("v1", "pods/status", name, {"status": running([_CONTAINER])})
        return TriggerSpec(_TRIGGER, {**_trigger_arguments(name), "connection_extras": dict(self._extras)})


def _trigger_arguments(pod: str) -> dict[str, Any]:
    """As in ``KubernetesPodOperator.invoke_defer_method`` of cncf.kubernetes 10.25."""
    return {
        "pod_name": pod,
        "pod_namespace": NAMESPACE,
        "trigger_start_time": {"__time__": datetime.now(UTC).isoformat()},
        "base_container_name": _CONTAINER,
        "kubernetes_conn_id": CONNECTION,
        "poll_interval": 2,
        "get_logs": True,
        "startup_timeout": 120,
        "startup_check_interval": 5,
        "schedule_timeout": 120,
        "on_finish_action": "delete_pod",
        "on_kill_action": "delete_pod",
        "trigger_kwargs": {},
    }


def _name(index: int) -> str:
    return f"wait-{index:04d}"


def _pod(index: int) -> JsonObject:
    labels = {
        "airflow_kpo_in_cluster": "False",
        "airflow_version": "3.3.2",
        "dag_id": DAG_ID,
        "kubernetes_pod_operator": "True",
        "map_index": str(index),
        "run_id": RUN_ID,
        "task_id": TASK_ID,
        "try_number": "1",
    }
    container = {
        "name": _CONTAINER,
        "image": "registry.example/trainer:1",
        "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{number}", "value": f"value {number}"} for number in range(5)],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _name(index), "labels": labels},
        "spec": {"nodeName": NODE, "restartPolicy": "Never", "containers": [container]},
    }


def running(containers: Sequence[str]) -> JsonObject:
    """Status of a pod whose containers run, as a kubelet writes it."""
    return _status("Running", containers, {"running": {"startedAt": _now()}}, ready=True)


def ended(containers: Sequence[str]) -> JsonObject:
    """Status of a pod whose containers have ended with 0."""
    terminated = {"exitCode": 0, "reason": "Completed", "startedAt": _now(), "finishedAt": _now()}
    return _status("Succeeded", containers, {"terminated": terminated}, ready=False)


def _status(phase: str, containers: Sequence[str], state: JsonObject, *, ready: bool) -> JsonObject:
    conditions = {"Initialized": True, "Ready": ready, "ContainersReady": ready, "PodScheduled": True}
    return {
        "phase": phase,
        "conditions": [
            {"type": kind, "status": str(true), "lastTransitionTime": _now()} for kind, true in conditions.items()
        ],
        "hostIP": "127.0.0.1",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "startTime": _now(),
        "containerStatuses": [
            {
                "name": name,
                "state": state,
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "image": "registry.example/trainer:1",
                "imageID": f"registry.example/trainer@sha256:{'0' * 64}",
                "containerID": f"containerd://{'0' * 64}",
            }
            for name in containers
        ],
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
