"""The fake API server keeps what the real one does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.runtime import kubernetes_contract
from tests.unit.runtime.fake_kubernetes import FakePlace
from tests.unit.runtime.kubernetes_bench import Place
from tests.unit.runtime.kubernetes_contract import Opens


@pytest.fixture
def opens() -> Opens:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Place]:
        place = FakePlace()
        await place.forget()
        yield place

    return opening


class TestObjects(kubernetes_contract.TestObjects):
    pass


class TestWatching(kubernetes_contract.TestWatching):
    pass


class TestOffice(kubernetes_contract.TestOffice):
    pass


class TestTokens(kubernetes_contract.TestTokens):
    pass
