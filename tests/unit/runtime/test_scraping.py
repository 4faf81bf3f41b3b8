"""What Prometheus is answered: the run's figures, in its own format, by a real server and a real client."""

from __future__ import annotations

import asyncio
import functools
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.observe import PrometheusSpec
from elastic_runtime.run.status import Checkpoint, Phase, Series, Status, WorkerState, WorkerStatus
from elastic_runtime.run.status_progress import Progress

parser = pytest.importorskip("prometheus_client.parser", exc_type=ImportError)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
TOKEN = "a-token-of-some-length"
STATUS = Status(
    "run-1",
    "u",
    Phase.RUNNING,
    "",
    NOW,
    world_size=3,
    target_size=4,
    step=70,
    generation=2,
    throughput=Series(1, (1, 2), (1.0, 2.0), (5.0, 6.5)),
    progress=Progress(280, 25.0, 60.0, 50.0, 90.0, "measured with 3 ranks"),
    metrics={"loss": 0.25, 'a"b\n': 1.0},
    checkpoint=Checkpoint("file:///x/c", 60, NOW - timedelta(seconds=30)),
    workers=(
        WorkerStatus("worker-0", "n", WorkerState.TRAINING, NOW, 1, cpu_percent=99.5, memory_bytes=1000, step_skew=1.9),
        WorkerStatus("worker-9", "n", WorkerState.LOST, NOW, 1, cpu_percent=1.0),
    ),
    worker_seconds={"worker-0": 5.0, "worker-9": 2.5},
)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@asynccontextmanager
async def scraping(tmp_path: Path, status: Status = STATUS) -> AsyncIterator[int]:
    from elastic_runtime.launcher.scraping import Scraping

    (tmp_path / "token").write_text(TOKEN + "\n")
    server = Scraping(PrometheusSpec(0, str(tmp_path / "token")), lambda: status)
    await server.start("127.0.0.1")
    assert server.port is not None
    try:
        yield server.port
    finally:
        await server.close()


def get(port: int, token: str | None = TOKEN, path: str = "/metrics") -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    families = parser.text_string_to_metric_families(text)
    found = [each for family in families for each in family.samples]
    assert {each.labels.pop("run") for each in found} == {"run-1"}
    return {(each.name, *each.labels.values()): each.value for each in found}


@in_loop
async def test_a_scraper_with_the_token_reads_the_runs_figures(tmp_path: Path) -> None:
    async with scraping(tmp_path) as port:
        status, text = await asyncio.to_thread(get, port)
    assert status == 200
    found = samples(text)
    assert found["elastic_training_world_size",] == 3
    assert found["elastic_training_workers_wanted",] == 4
    assert found["elastic_training_steps_per_second",] == 6.5
    assert found["elastic_training_progress_percent",] == 25
    left = [found[f"elastic_training_time_left_{end}seconds",] for end in ("least_", "", "most_")]
    assert left == [50, 60, 90]
    assert found["elastic_training_checkpoint_age_seconds",] == 30
    assert found["elastic_training_worlds_total",] == 2
    assert found["elastic_training_worker_seconds_total",] == 7.5
    assert found["elastic_training_phase", "running"] == 1
    assert found["elastic_training_phase", "failed"] == 0
    assert found["elastic_training_workers", "training"] == 1
    assert found["elastic_training_reported", 'a"b\n'] == 1
    assert found["elastic_training_worker_cpu_percent", "worker-0"] == 99.5
    assert found["elastic_training_worker_step_skew", "worker-0"] == 1.9
    assert ("elastic_training_worker_cpu_percent", "worker-9") not in found


@pytest.mark.parametrize(
    ("token", "path", "expected"), [(None, "/metrics", 401), ("x", "/metrics", 401), (TOKEN, "/", 404)]
)
@in_loop
async def test_others_are_told_nothing(tmp_path: Path, token: str | None, path: str, expected: int) -> None:
    async with scraping(tmp_path) as port:
        assert await asyncio.to_thread(get, port, token, path) == (expected, "")


@pytest.mark.parametrize("content", ["", "short", "ü" * 20, "x" * 5000])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    from elastic_runtime.launcher.scraping import read_token

    (tmp_path / "token").write_text(content)
    with pytest.raises(InvalidSettings, match="ASCII"):
        read_token(PrometheusSpec(0, str(tmp_path / "token")))
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_token(PrometheusSpec(0, str(tmp_path / "missing")))


@in_loop
async def test_a_run_of_a_thousand_workers_is_told_in_bounds(tmp_path: Path) -> None:
    workers = tuple(replace(STATUS.workers[0], name=f"worker-{number}") for number in range(2000))
    async with scraping(tmp_path, replace(STATUS, workers=workers)) as port:
        _, text = await asyncio.to_thread(get, port)
    assert len([name for name in samples(text) if name[0] == "elastic_training_worker_cpu_percent"]) == 1000
