"""A real API server keeps what the launcher relies on. Needs KUBECONFIG; no node and no image."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.connect import connect
from elastic_runtime.kubernetes.objects import Object
from elastic_runtime.kubernetes.resources import Kind
from tests.unit.runtime import kubernetes_contract
from tests.unit.runtime.kubernetes_bench import Place, Plain
from tests.unit.runtime.kubernetes_contract import Opens


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


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"elastic-training-{uuid4().hex[:8]}"
    subprocess.run(["kubectl", "create", "namespace", name], check=True, capture_output=True)
    yield name
    subprocess.run(["kubectl", "delete", "namespace", name, "--wait=false"], check=True, capture_output=True)


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
