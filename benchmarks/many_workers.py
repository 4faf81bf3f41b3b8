"""What a launcher of many workers needs, and how soon they are told. See README.md here."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.durable.measures import Row, as_measures, table  # noqa: E402  # the path above has to be there first
from benchmarks.harness.machine import description  # noqa: E402
from benchmarks.harness.measures import Bound, Target  # noqa: E402
from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm  # noqa: E402
from benchmarks.harness.sections import Section, write_section  # noqa: E402
from benchmarks.workers.agents import Agent, Agents  # noqa: E402
from elastic_runtime.net import certificates  # noqa: E402
from elastic_runtime.run.rundir import RunDir  # noqa: E402
from elastic_runtime.run.spec import RunSpec, Timing, WorkersSpec  # noqa: E402

BUILD = HERE.parent / "build" / "bench" / "workers"
COUNTS = (100, 1000)
QUIET = 15.0
"""Seconds over which the launcher's part of a core is taken."""
MAX_WAIT = 120.0
"""Seconds for anything to come about."""


def _rows(count: int) -> list[Row]:
    of, most = f"{count:,} workers", Bound.OURS_AT_MOST
    goal = count <= 1000
    return [
        Row(f"workers_{count}_come", f"{of}: launcher's start → all agents connected"),
        Row(f"workers_{count}_form", "From there → all ranks in a world"),
        Row(f"workers_{count}_core", "The launcher's part of a core while all train", "%",
            Target(most, 20) if goal else None),
        Row(f"workers_{count}_memory", "Its memory, at its most", "MB",
            Target(most, 300) if goal else None, worst=True),
        Row(f"workers_{count}_status", "The status", "bytes", Target(most, 1_000_000), worst=True),
        Row(f"workers_{count}_told", "Another size asked → the last but one of 100 agents told", "s",
            Target(most, 1) if goal else None),
        Row(f"workers_{count}_resized", "The same → all ranks in the next world"),
        Row(f"workers_{count}_again", "The launcher killed and started again → all agents connected", "s",
            Target(most, 10) if goal else None),
    ]  # fmt: skip


@contextmanager
def _launcher(run: RunDir, port: int = 0) -> Iterator[tuple[psutil.Process, int]]:
    command = [sys.executable, "-m", "benchmarks.workers.launcher", str(run.path), str(port)]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), int(process.stdout.readline())
        finally:
            process.kill()


def _is_connected(agent: Agent) -> bool:
    return agent.welcomed_at > 0


def _is_disconnected(agent: Agent) -> bool:
    return not _is_connected(agent)


def _in_world(agent: Agent) -> bool:
    return agent.size > 0


async def _measure(run: RunDir, count: int) -> list[float]:
    """The figures of :func:`_rows`."""
    with _launcher(run) as (process, port):
        agents = Agents.of(count, run.tls, port)
        playing = asyncio.create_task(agents.play())
        try:
            come = await agents.until(_is_connected, "connected", MAX_WAIT)
            form = await agents.until(_in_world, "in a world", MAX_WAIT)
            core, memory = await _quiet(process)
            told, resized = await _resize(run, process, agents)
            memory = max(memory, process.memory_info().rss / 1e6)
            status = (run.path / "status.json").stat().st_size
            process.kill()
            await agents.until(_is_disconnected, "disconnected", MAX_WAIT)
            with _launcher(run, port):
                again = await agents.until(_is_connected, "connected again", MAX_WAIT)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
    return [come, form, core, memory, status, told, resized, again]


async def _quiet(process: psutil.Process) -> tuple[float, float]:
    """Percent of a core, and MB, while all train and nothing happens."""
    loop = asyncio.get_running_loop()
    before, begun = process.cpu_times(), loop.time()
    await asyncio.sleep(QUIET)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return used / (loop.time() - begun) * 100, process.memory_info().rss / 1e6


async def _resize(run: RunDir, process: psutil.Process, agents: Agents) -> tuple[float, float]:
    """Ask for one worker less: seconds until 99 of 100 are told, and until all are in the next world."""
    count, asked = len(agents.all), asyncio.get_running_loop().time()
    run.write_size(count - 1)
    process.send_signal(signal.SIGUSR1)
    await agents.until(lambda agent: agent.told_at >= asked, "told of another world", MAX_WAIT)
    await agents.until(lambda agent: agent.size == count - 1, "in the next world", MAX_WAIT, but=1)
    told = sorted(agent.told_at - asked for agent in agents.all)[int(0.99 * count) - 1]
    return told, max(agent.entered_at - asked for agent in agents.all)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, action="append", help=f"may be repeated (default: {COUNTS})")
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    handle_sigterm()
    become_subreaper()
    machine, rows = description(), []
    shutil.rmtree(BUILD, ignore_errors=True)
    try:
        for count in options.workers or COUNTS:
            of_count = _rows(count)
            for number in range(options.rounds):
                figures = asyncio.run(_measure(_run(BUILD / f"{count}-{number}", count), count))
                print(count, " ".join(f"{figure:.3g}" for figure in figures), flush=True)
                for row, figure in zip(of_count, figures, strict=True):
                    row.ours.append(figure)
            rows += of_count
    finally:
        end_descendants()
    write_section(options.output, Section.WORKERS, _section(rows, machine), as_measures(rows))
    print("\n".join(table(rows)))
    return 0 if all(row.met is not False for row in rows) else 1


def _run(folder: Path, count: int) -> RunDir:
    folder.mkdir(parents=True)
    run, sizes = RunDir(folder / "run"), WorkersSpec(1, count, count)
    # Nobody watches it; and a world is begun with all.
    timing = Timing(lease=0.0, gather=MAX_WAIT)
    run.create(RunSpec("many", uuid.uuid4().hex, ("true",), sizes, engine="torch", timing=timing), owner="benchmark")
    certificates.create(run.tls)
    return run


def _section(rows: Sequence[Row], machine: dict[str, str]) -> list[str]:
    return [
        "## A launcher of many workers",
        "",
        "Written by `make bench-workers`. Real launcher, real connections; agents and ranks are played by a process",
        "beside it, on the other core. Medians, quartiles in brackets, and the worst round; how each figure is taken:",
        "[README.md](README.md).",
        "",
        *table(rows),
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
    ]


if __name__ == "__main__":
    sys.exit(main())
