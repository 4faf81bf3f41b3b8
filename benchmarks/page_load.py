"""How fast the page's API answers, with 200 runs in a folder. See README.md here."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
BUILD = HERE.parent / "build" / "bench" / "page"
ROOT = BUILD / "runs"
os.environ |= {
    "AIRFLOW_HOME": str(BUILD / "airflow"),
    "AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT": "benchmark",
    "AIRFLOW__ELASTIC_TRAINING__LOCAL_ROOT": str(ROOT),
}

import httpx  # noqa: E402  # Airflow has to find the settings above
import uvicorn  # noqa: E402
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager  # noqa: E402
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser  # noqa: E402
from airflow.api_fastapi.core_api.security import get_user  # noqa: E402
from fastapi import FastAPI  # noqa: E402

from benchmarks.durable.measures import Row, as_measures, table  # noqa: E402
from benchmarks.harness.machine import description  # noqa: E402
from benchmarks.harness.measures import Bound, Target  # noqa: E402
from benchmarks.harness.sections import Section, write_section  # noqa: E402
from benchmarks.page.runs import lay_down, task_of  # noqa: E402
from elastic_training.archive import reading  # noqa: E402
from elastic_training.concurrency import bridge  # noqa: E402
from elastic_training.console import access, page, runs  # noqa: E402
from elastic_training.console.app import build  # noqa: E402

RUNS, LOOKERS, REQUESTS = 200, 5, 20
PAUSE = 0.1
"""Seconds between two questions of a person who looks: 20 times as many as the page asks."""
_API = "/elastic-training/api/v1"
_SETTINGS = {"command": ["python"], "workers": {"max": 4}, "cluster": "local", "price_book": "example"}


@contextmanager
def _served() -> Iterator[str]:
    """The page as Airflow mounts it, at a port of loopback, for an admin; Airflow knows all settings."""
    manager: Any = SimpleAuthManager  # which has no types
    manager, airflow, mounted = manager(), FastAPI(), build()
    mounted.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ann", role="admin")
    airflow.mount("/elastic-training", mounted)
    server = uvicorn.Server(uvicorn.Config(airflow, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)

    def of_task(*_: object) -> list[Mapping[str, Any]]:
        return [_SETTINGS]

    def of_tasks(ids: Collection[object]) -> dict[object, Mapping[str, Any]]:
        return dict.fromkeys(ids, _SETTINGS)

    with (
        patch.object(access, "get_auth_manager", lambda: manager),
        patch.object(page, "rendered_fields", of_task),
        patch.object(reading, "rendered_fields", of_task),
        patch.object(runs, "rendered_of_tasks", of_tasks),
    ):
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            bridge.close()


async def _ask(client: httpx.AsyncClient, path: str, query: Mapping[str, Any], count: int) -> list[float]:
    """Milliseconds of each answer."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        answer = await client.get(path, params=dict(query))
        took.append((time.perf_counter() - begun) * 1000)
        assert answer.status_code == 200, answer.text
        await asyncio.sleep(PAUSE)
    return took


async def _asked(address: str, path: str, query: Mapping[str, Any], lookers: int) -> list[float]:
    async with httpx.AsyncClient(base_url=address) as client:
        found = await asyncio.gather(*(_ask(client, path, query, REQUESTS) for _ in range(lookers)))
    return [each for took in found for each in took]


def _questions(runs: int) -> list[tuple[Row, str, dict[str, Any], int]]:
    ids = {"dag_id": "nightly", "run_id": task_of(0).run_id, "task_id": "train"}
    target = Target(Bound.OURS_AT_MOST, 100)
    by_cost = {"sort": "cost", "limit": 200}
    return [
        (Row("page_list", f"The list of {runs} runs, the newest 50", "ms", target), "runs", {}, 1),
        (Row("page_list_whole", f"All {runs} of them, by cost", "ms", target), "runs", by_cost, 1),
        (Row("page_list_many", f"The newest 50, {LOOKERS} people at once", "ms", target), "runs", {}, LOOKERS),
        (Row("page_task", "The page of a run that trains", "ms", target), "task", ids, 1),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    shutil.rmtree(BUILD, ignore_errors=True)
    ROOT.mkdir(parents=True, mode=0o700)
    machine = description(("apache-airflow", "fastapi"))
    machine["a status"] = f"{lay_down(ROOT, options.runs):,} bytes"
    questions = _questions(options.runs)
    with _served() as address:
        for _ in range(options.rounds):
            for row, path, query, lookers in questions:
                took = asyncio.run(_asked(address, f"{_API}/{path}", query, lookers))
                row.ours.append(statistics.median(took))
                print(f"{row.title}: median {row.ours[-1]:.1f} ms, worst {max(took):.1f} ms", flush=True)
    rows = [row for row, *_ in questions]
    write_section(options.output, Section.PAGE, _section(rows, machine), as_measures(rows))
    print("\n".join(table(rows)))
    return 0 if all(row.met for row in rows) else 1


def _section(rows: Sequence[Row], machine: Mapping[str, str]) -> list[str]:
    return [
        "## The page's API",
        "",
        "Written by `make bench-page`. Each round's figure is the median of its requests. Medians of the rounds,",
        "quartiles in brackets, and the worst round; how each is taken: [README.md](README.md).",
        "",
        *table(rows),
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
    ]


if __name__ == "__main__":
    sys.exit(main())
