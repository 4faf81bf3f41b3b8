"""Every line of a run's log once, whatever breaks."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from elastic_runtime.run.status import Phase
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.kubernetes.watching import run_watch
from elastic_training.clusters.types import LOG_START, LogLines, RunRef, StatusChanged
from tests.kubernetes.loops import run
from tests.kubernetes.standin import OWNER, StandIn
from tests.kubernetes.wires import wired
from tests.wire import Wire

pytestmark = pytest.mark.timeout(240)
WATCH_TIMEOUT = 120.0

COUNTS = """
import time
for number in range(3000):
    print("line", number)
    if number % 50 == 0:
        time.sleep(0.05)
print("the end, without a line end", end="")
"""
ENDS_IN_ORDER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
name = os.environ["ELASTIC_TRAINING_POD_NAME"]
print("first of", name)
try:
    time.sleep(3600)
finally:
    print("last of", name)
"""
COUNTED = [*(f"line {number}" for number in range(3000)), "the end, without a line end"]


async def follow(cluster: Cluster, ref: RunRef, cursor: str, lines: list[str], until: int | None = None) -> str:
    """To the final status, or to so many lines; where it stopped."""
    async with asyncio.timeout(WATCH_TIMEOUT), aclosing(cluster.watch(ref, cursor, 1.0)) as watched:
        async for update in watched:
            if isinstance(update, LogLines):
                lines += update.lines
                cursor = update.cursor
                if until is not None and len(lines) >= until:
                    break
            if isinstance(update, StatusChanged) and update.status.phase.final:
                break
    return cursor


def test_the_whole_log_comes_before_the_final_status(standin: StandIn) -> None:
    cluster = standin.cluster(COUNTS)
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    standin.without_workers(ref)
    lines: list[str] = []

    async def ending() -> None:
        reading = asyncio.create_task(follow(cluster, ref, LOG_START, lines))
        await _until(lambda: lines)
        await asyncio.to_thread(standin.publish, ref, Phase.SUCCEEDED)
        await reading

    run(ending())
    assert lines == COUNTED


def test_watchers_that_are_replaced_again_and_again_miss_nothing(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_watch, "BATCHES", 1e9)
    monkeypatch.setattr(run_watch, "LEAST", 0.0)
    cluster = standin.cluster(COUNTS)
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    standin.without_workers(ref)
    lines: list[str] = []
    cursor = LOG_START
    for _ in range(8):
        cursor = run(follow(cluster, ref, cursor, lines, until=len(lines) + 100))
    standin.publish(ref, Phase.SUCCEEDED)
    run(follow(cluster, ref, cursor, lines))
    assert lines == COUNTED


def test_a_wire_that_is_jolted_all_the_time_loses_and_repeats_nothing(standin: StandIn) -> None:
    with wired(standin) as (connection, between):
        cluster = standin.cluster(COUNTS, connection=connection)
        ref = run(cluster.claim(standin.spec(), OWNER)).ref
        standin.without_workers(ref)
        standin.publish(ref, Phase.RUNNING, world_size=1)
        lines: list[str] = []

        async def shaken() -> None:
            shaking = asyncio.create_task(asyncio.to_thread(_shake, between, 12))
            reading = asyncio.create_task(follow(cluster, ref, LOG_START, lines))
            await shaking
            await asyncio.to_thread(standin.publish, ref, Phase.SUCCEEDED)
            await reading

        run(shaken())
    assert lines == COUNTED
    assert between.connections > 12


def _shake(between: Wire, times: int) -> None:
    for _ in range(times):
        time.sleep(0.7)
        between.jolt()


def test_a_launcher_that_is_replaced_is_read_to_its_end_before_the_next(standin: StandIn) -> None:
    cluster = standin.cluster(ENDS_IN_ORDER)
    ref = run(cluster.claim(standin.spec(), OWNER)).ref
    standin.without_workers(ref)
    lines: list[str] = []

    async def replaced() -> None:
        reading = asyncio.create_task(follow(cluster, ref, LOG_START, lines))
        await _until(lambda: len(lines) == 1)
        (first,) = standin.launchers(ref)
        await asyncio.to_thread(standin.namespace.kubectl, "delete", "pod", first.name, "--wait=false")
        await _until(lambda: len(lines) == 3)
        await asyncio.to_thread(standin.publish, ref, Phase.SUCCEEDED)
        await reading

    run(replaced())
    before, after = lines[0].removeprefix("first of "), lines[2].removeprefix("first of ")
    assert before != after
    assert lines == [f"first of {before}", f"last of {before}", f"first of {after}"]


async def _until(true: object) -> None:
    assert callable(true)
    async with asyncio.timeout(WATCH_TIMEOUT):
        while not true():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.1)
