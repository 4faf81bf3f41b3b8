from __future__ import annotations

import asyncio

import pytest

from elastic_training.triggers.settling import Settling
from tests.unit.provider.virtual_time import run_virtually


@pytest.mark.parametrize(("waited", "fired"), [(0.5, 10.0), (10.0, 10.0), (60.0, 60.0)])
def test_no_event_comes_before_airflow_has_seen_the_deferral(waited: float, fired: float) -> None:
    async def fire() -> float:
        settling = Settling()
        await asyncio.sleep(waited)
        await settling.over()
        return asyncio.get_running_loop().time()

    assert run_virtually(fire()) == pytest.approx(fired)


def test_it_knows_for_how_long_airflow_lets_a_process_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "1")

    async def fire() -> float:
        await Settling().over()
        return asyncio.get_running_loop().time()

    assert run_virtually(fire()) == pytest.approx(6.0)
