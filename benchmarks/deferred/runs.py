"""Ours: runs as the operator lays them down, each with a stand-in for its launcher."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

from benchmarks.deferred import story
from benchmarks.deferred.api import NAMESPACE, Api, JsonObject
from benchmarks.deferred.kubelet import NODE, Kubelet
from benchmarks.deferred.pods import ended, running
from benchmarks.deferred.sides import Load, Name, Side, for_all, in_turn
from benchmarks.deferred.triggerer import CONNECTION, DAG_ID, RUN_ID, TASK_ID, TriggerSpec
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text, to_json
from elastic_runtime.run import runobjects
from elastic_runtime.run.headline import headline
from elastic_runtime.run.runobjects import ObjectNames, Term
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, WorkersSpec
from elastic_runtime.run.status import Status
from elastic_training.clusters.kubernetes.manifests.objects import run_objects
from elastic_training.identity.naming import run_name
from elastic_training.identity.ownership import Owner
from elastic_training.settings import Pods

_TRIGGER = "elastic_training.triggers.training_run.TrainingRunTrigger"
_CONTAINERS = [runobjects.LAUNCHER_CONTAINER]


@dataclass(slots=True)
class _Run:
    """One of them."""

    name: str
    uid: str = field(default_factory=lambda: uuid4().hex)
    created: datetime = field(default_factory=utc_now)
    pod: str = ""
    """Of its launcher."""
    version: str = ""
    """resourceVersion of its status."""
    step: int = 0
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One status at a time, as its launcher would; none after the final one."""
    over: bool = False


class Runs(Side):
    """``TrainingRunTrigger``, as :class:`~elastic_training.operators.elastic_horovod.ElasticHorovodOperator` makes it.

    Of a run's objects, those that nobody watches or reads while it is deferred are left out: the Secret, the Service,
    the NetworkPolicy, the worker set and its pods.

    Args:
        api: where they are made.
        kubelet: where the launchers' logs are.
        load: what the launchers do.
    """

    name = Name.OURS

    def __init__(self, api: Api, kubelet: Kubelet, load: Load) -> None:
        self._api, self._kubelet, self._load = api, kubelet, load
        self._runs: list[_Run] = []

    async def create(self, count: int) -> Sequence[TriggerSpec]:
        """Runs that train; their logs have a few lines."""
        self._runs = [_Run(run_name(DAG_ID, RUN_ID, TASK_ID, index)) for index in range(count)]
        return await for_all(count, self._create)

    async def live(self) -> None:
        """A new status and a line of output from each, every so often."""
        async with asyncio.TaskGroup() as group:
            group.create_task(in_turn(len(self._runs), self._load.status, self._progress))
            group.create_task(in_turn(len(self._runs), self._load.line, self._speak))

    async def watched(self) -> bool:
        """Whether every log is being followed."""
        return self._kubelet.followed >= len(self._runs)

    async def end(self, index: int) -> float:
        """As a launcher ends: the final status is written, then its process is gone, and its pod and Job complete."""
        run = self._runs[index]
        self._kubelet.write(run.pod, "finished: succeeded: all ranks have ended with 0")
        async with run.writing:
            run.over = True
            now = time.time()
            await self._write(run, story.succeeded(run.name, run.uid, run.created, run.step))
        self._kubelet.end(run.pod)
        await self._api.patch("v1", "pods/status", run.pod, {"status": ended(_CONTAINERS)})
        complete = {"type": "Complete", "status": "True", "lastTransitionTime": time_to_text(utc_now())}
        job = {"status": {"active": 0, "succeeded": 1, "conditions": [complete]}}
        await self._api.patch("batch/v1", "jobs/status", ObjectNames(run.name).launcher, job)
        return now

    async def remove(self) -> None:
        """All that was made."""
        for version, resource in (("batch/v1", "jobs"), ("v1", "pods"), ("v1", "configmaps")):
            await self._api.delete_all(version, resource)
        self._kubelet.forget()
        self._runs = []

    async def _create(self, index: int) -> TriggerSpec:
        run = self._runs[index]
        owner = Owner(DAG_ID, RUN_ID, TASK_ID, index, 1, uuid4().hex).text()
        spec = RunSpec(
            run.name,
            run.uid,
            ("python", "train.py", "--data", "s3://bucket/train"),
            workers=WorkersSpec(minimum=2, start=story.WORKERS, maximum=8),
            checkpoint=CheckpointSpec("s3://bucket/runs"),
        )
        objects = run_objects(spec, owner, Pods(image="registry.example/trainer:1"), namespace=NAMESPACE)
        root = objects.root()
        root["metadata"]["annotations"] |= {
            runobjects.COMPLETE: time_to_text(run.created),
            runobjects.LEASE: time_to_text(run.created),
        }
        uid = (await self._api.create("configmaps", root))["metadata"]["uid"]
        job = next(each for each in objects.rest(uid, "10.96.0.10") if each["kind"] == "Job")
        status = next(each for each in objects.first(uid, {}) if each["kind"] == "ConfigMap")
        await self._launch(run, await self._api.create("jobs", job), await self._api.create("configmaps", status))
        return TriggerSpec(_TRIGGER, {"cluster": CONNECTION, "name": run.name, "uid": run.uid, "owner": owner})

    async def _launch(self, run: _Run, job: JsonObject, status: JsonObject) -> None:
        """What the Job's controller, a kubelet and the launcher would do first."""
        template = job["spec"]["template"]
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job['metadata']['name']}-x7k2p",
                "labels": template["metadata"]["labels"],
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": {**template["spec"], "nodeName": NODE},
        }
        made = await self._api.create("pods", pod)
        run.pod = made["metadata"]["name"]
        await self._api.patch("v1", "pods/status", run.pod, {"status": running(_CONTAINERS)})
        active = {"status": {"active": 1, "startTime": time_to_text(run.created)}}
        await self._api.patch("batch/v1", "jobs/status", job["metadata"]["name"], active)
        self._kubelet.write(run.pod, f"term 1 of run {run.name} begins; fence {int(run.created.timestamp())}")
        term = Term(1, made["metadata"]["uid"], int(run.created.timestamp()), run.created)
        run.version = status["metadata"]["resourceVersion"]
        await self._write(run, story.training(run.name, run.uid, run.created, 0), {runobjects.TERM: to_json(term)})

    async def _progress(self, index: int) -> None:
        run = self._runs[index]
        async with run.writing:
            if not run.over:
                run.step += 25
                await self._write(run, story.training(run.name, run.uid, run.created, run.step))

    async def _speak(self, index: int) -> None:
        run = self._runs[index]
        if not run.over:
            self._kubelet.write(run.pod, story.line(run.step))

    async def _write(self, run: _Run, status: Status, annotations: Mapping[str, str] | None = None) -> None:
        """As the launcher does: only onto what it has written itself."""
        marks = {**(annotations or {}), runobjects.HEADLINE: to_json(headline(status))}
        metadata = {"resourceVersion": run.version, "annotations": marks}
        change = {"metadata": metadata, "data": {runobjects.STATUS_KEY: to_json(status)}}
        written = await self._api.patch("v1", "configmaps", ObjectNames(run.name).status, change)
        run.version = written["metadata"]["resourceVersion"]
        self.written += 1
