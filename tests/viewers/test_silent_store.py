"""200 people look at a task whose store is silent, in Airflow's own API server: its other routes go on.

``tests/security/provider/test_silent_places.py`` has the same without Airflow's middleware, database and login.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import httpx
import pytest

from demo_kit.airflow_api import AirflowApi
from demo_kit.airflow_stack import AirflowStack
from tests.airflow.real_airflow import stack_without, trainings_of
from tests.paced import until

pytestmark = pytest.mark.timeout(300)

DAG_ID = "silent"
VIEWERS = 200
LONGEST = 2.0
"""Seconds that a request of another route waits at most, on a machine that is quick enough for it."""
PAUSE = 0.05
OTHERS = f"/api/v2/dags/{DAG_ID}"
"""Asks Airflow's database, in one of the threads that all of Airflow's routes share."""
LIGHT = "/api/v2/version"
"""Asks nothing: so long other routes wait for as many requests in any case, as all are read by one event loop."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[AirflowStack]:
    """With the S3 server of a connection: the kernel takes its connections, and nobody reads them."""
    home = tmp_path / "home"
    with closing(socket.create_server(("127.0.0.1", 0), backlog=512)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        said = {"conn_type": "aws", "login": "key", "password": "planted", "extra": {"endpoint_url": endpoint}}
        more = {"AIRFLOW_CONN_SILENT": json.dumps(said)}
        dags = Path(__file__).parent / "dags"
        with stack_without(("triggerer",), home, trainings_of(home), dags, (DAG_ID,), **more) as running:
            yield running


async def timed(client: httpx.AsyncClient) -> float:
    began = monotonic()
    (await client.get(OTHERS)).raise_for_status()
    return monotonic() - began


async def looks(url: str, token: str, path: str, ids: dict[str, Any]) -> tuple[list[float], list[httpx.Response]]:
    """How long requests of another route wait while all viewers look; and what these are answered."""
    more: dict[str, Any] = {"base_url": url, "timeout": 60, "headers": {"Authorization": f"Bearer {token}"}}
    async with (
        httpx.AsyncClient(limits=httpx.Limits(max_connections=None), **more) as client,
        httpx.AsyncClient(**more) as apart,
    ):
        await timed(apart)  # Connects.
        viewers = asyncio.gather(*(client.get(path, params=ids) for _ in range(VIEWERS)))
        waits = []
        while not viewers.done():
            waits.append(await timed(apart))
            await asyncio.wait([viewers], timeout=PAUSE)
        return waits, await viewers


def test_a_silent_store_holds_up_no_other_route_of_airflow(
    stack: AirflowStack, capsys: pytest.CaptureFixture[str]
) -> None:
    with AirflowApi(stack.url) as api:
        run_id = api.trigger(DAG_ID, {})
        until(lambda: api.run_state(DAG_ID, run_id) == "failed", "the task fails", max_wait=120, pause=0.3)
        token = api.token()
    ids = {"dag_id": DAG_ID, "run_id": run_id, "task_id": "train"}
    beside_airflow, _ = asyncio.run(looks(stack.url, token, LIGHT, {}))
    waits, answers = asyncio.run(looks(stack.url, token, "/elastic-training/api/v1/task", ids))
    codes = Counter(each.status_code for each in answers)
    with capsys.disabled():
        print(
            f"\n{VIEWERS} viewers, answered {dict(codes)}; {len(waits)} requests of another route wait for "
            f"{median(waits):.3f} s, {max(waits):.2f} s at most; beside {VIEWERS} requests of Airflow's version, "
            f"{max(beside_airflow):.2f} s at most"
        )
    assert set(codes) <= {200, 503}
    assert all("has not answered" in each.text or "were busy" in each.text for each in answers)
    assert max(waits) < max(LONGEST, 1.5 * max(beside_airflow))
