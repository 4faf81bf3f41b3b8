"""A real API server keeps what the launcher relies on. Needs KUBECONFIG; no node and no image."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.connect import connect
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import PODS, Kind
from tests.unit.runtime import kubernetes_contract
from tests.unit.runtime.kubernetes_bench import Place, Plain
from tests.unit.runtime.kubernetes_contract import Opens

ACCOUNT = "default"
"""The service account of pods that name none."""


def kubectl(*words: str, text: str | None = None) -> str:
    """What it prints."""
    return subprocess.run(["kubectl", *words], check=True, capture_output=True, text=True, input=text).stdout


class RealPlace:
    """A namespace of that server."""

    def __init__(self, api: Client) -> None:
        self.api = api

    async def create(self, kind: Kind[Any], manifest: Plain) -> Object:
        return await self.api.create(kind, manifest)

    async def change(self, kind: Kind[Any], name: str, changes: Plain) -> None:
        await self.api.patch(kind, name, changes)

    async def remove(self, kind: Kind[Any], name: str) -> None:
        found = await self.api.get(kind, name)
        await self.api.delete(kind, name, uid=found.uid, version=found.version)

    async def token(self, pod: str, audience: str) -> str:
        found = await self.api.get(PODS, pod)
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": found.uid}
        spec = {"audiences": [audience], "boundObjectRef": bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{self.api.namespace}/serviceaccounts/{ACCOUNT}/token"
        made = await asyncio.to_thread(kubectl, "create", "--raw", path, "--filename=-", text=json.dumps(request))
        return str(json.loads(made)["status"]["token"])


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"elastic-training-{uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    # No pod can be made before the controller has made the account; made twice, one of both has it.
    with suppress(subprocess.CalledProcessError):
        kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={name}")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def opens(namespace: str) -> Opens:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Place]:
        async with connect(namespace, Path(os.environ["KUBECONFIG"]), "tests") as api:
            yield RealPlace(api)

    return opening


class TestObjects(kubernetes_contract.TestObjects):
    pass


class TestWatching(kubernetes_contract.TestWatching):
    pass


class TestOffice(kubernetes_contract.TestOffice):
    pass


class TestTokens(kubernetes_contract.TestTokens):
    pass
