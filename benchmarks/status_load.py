"""What a run's status costs: its size, the launcher's memory and time, and the training. See README.md here."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.durable.measures import Row, as_measures, table  # noqa: E402  # the path above has to be there first
from benchmarks.harness.machine import description  # noqa: E402
from benchmarks.harness.measures import Bound, Target  # noqa: E402
from benchmarks.harness.sections import Section, write_section  # noqa: E402
from benchmarks.harness.sides import environment  # noqa: E402
from benchmarks.status.launcher import BEAT  # noqa: E402
from elastic_runtime.documents import parse_json  # noqa: E402
from elastic_runtime.launcher.kubernetes.leadership import STATUS_ROOM  # noqa: E402
from elastic_runtime.net.certificates import agent_context  # noqa: E402
from elastic_runtime.protocol.rank_link import BatchSize, Metrics, Progress, RankMessage, encode_rank_message  # noqa: E402
from elastic_runtime.protocol.wire import Hello, RankSaid, encode  # noqa: E402
from elastic_runtime.run.rundir import RunDir  # noqa: E402
from elastic_runtime.run.spec import CheckpointSpec, RunSpec, WorkersSpec  # noqa: E402

BUILD = HERE.parent / "build" / "bench" / "status"
WORKERS, STEPS, METRICS = 16, 10_000, 20
FAST, RATE, SLICE = 500.0, 10.0, 300
"""Steps a second up to the last ones; of those; and how many they are."""


def _run(folder: Path, command: Sequence[str], workers: int, store: bool = False) -> RunDir:
    run = RunDir(folder / "run")
    checkpoint = CheckpointSpec((folder / "checkpoints").as_uri(), every=5.0) if store else None
    sizes = WorkersSpec(workers, workers, workers)
    run.create(RunSpec("benchmark", uuid.uuid4().hex, tuple(command), sizes, checkpoint=checkpoint), owner="benchmark")
    return run


async def _worker(run: RunDir, port: int, number: int) -> asyncio.StreamWriter:
    context = agent_context(run.tls)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="launcher")
    writer.write(encode(Hello(f"worker-{number}", f"node-{number}", 7, 1, "lo")))
    await reader.readline()
    return writer


async def _beat(writers: Sequence[asyncio.StreamWriter]) -> None:
    while True:
        for writer in writers:
            writer.write(encode(BEAT))
        await asyncio.sleep(1.0)


def _said(message: RankMessage) -> bytes:
    return encode(RankSaid("worker-0.0.0~0", parse_json(encode_rank_message(message))))


async def _train(first: asyncio.StreamWriter, steps: range, rate: float, every: int) -> None:
    """Rank 0 tells METRICS at each step, and progress as seldom as it does."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for count, step in enumerate(steps, 1):
        first.write(_said(Metrics({f"metric_{number}": step / (number + 7) for number in range(METRICS)}, step)))
        if step % every == 0:
            first.write(_said(Progress(step)))
        await first.drain()
        await asyncio.sleep(max(0.0, begun + count / rate - loop.time()))


async def _load(run: RunDir, process: psutil.Process, port: int) -> tuple[float, float, float]:
    """Bytes of the largest status; most MB of the launcher; percent of a core while steps come at their rate."""
    writers = [await _worker(run, port, number) for number in range(WORKERS)]
    beating = asyncio.create_task(_beat(writers))
    writers[0].write(_said(BatchSize(256.0)))
    memory, size, written = 0.0, 0, run.path / "status.json"

    async def watch() -> None:
        nonlocal memory, size
        while True:
            memory = max(memory, process.memory_info().rss / 1e6)
            size = max(size, written.stat().st_size if written.exists() else 0)
            await asyncio.sleep(0.25)

    watching = asyncio.create_task(watch())
    await _train(writers[0], range(1, STEPS - SLICE + 1), FAST, 100)
    before, begun = process.cpu_times(), asyncio.get_running_loop().time()
    await _train(writers[0], range(STEPS - SLICE + 1, STEPS + 1), RATE, 3)
    after, took = process.cpu_times(), asyncio.get_running_loop().time() - begun
    for task in (beating, watching):
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(beating, watching, return_exceptions=True)
    for writer in writers:
        writer.transport.abort()
    return size, memory, (after.user + after.system - before.user - before.system) / took * 100


def _launcher(folder: Path) -> tuple[float, float, float]:
    run = _run(folder, ["true"], WORKERS)
    command = [sys.executable, "-m", "benchmarks.status.launcher", str(run.path)]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            return asyncio.run(_load(run, psutil.Process(process.pid), port))
        finally:
            process.send_signal(signal.SIGTERM)


def _training(folder: Path, steps: int, metrics: str) -> float:
    result = folder / "rate"
    script = HERE / "status" / "training.py"
    run = _run(folder, [sys.executable, str(script), str(steps), metrics, str(result)], 2, store=True)
    with run.log.open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", "elastic_runtime.launcher", str(run.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), check=True, timeout=300,
        )  # fmt: skip
    return float(result.read_text())


def _rows() -> tuple[Row, Row, Row, Row]:
    load = f"{STEPS:,} steps of 16 workers with 8 GPUs each, {METRICS} metrics a step"
    return (
        Row("status_bytes", f"Status at its largest: {load}", "bytes",
            Target(Bound.OURS_AT_MOST, STATUS_ROOM), worst=True),
        Row("status_launcher_memory", "The same: the launcher's memory at its most", "MB",
            Target(Bound.OURS_AT_MOST, 150), worst=True),
        Row("status_launcher_core", f"The same: of one core, at {RATE:.0f} steps/s", "%",
            Target(Bound.OURS_AT_MOST, 5), worst=True),
        Row("status_throughput", "Training of 2 ranks with all metrics on; peer: without", "steps/s",
            Target(Bound.RATIO_AT_LEAST, 0.99)),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="of each training; the launcher has a third as many")
    parser.add_argument("--steps", type=int, default=1984, help="of a training")
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    machine, rows = description(), _rows()
    shutil.rmtree(BUILD, ignore_errors=True)
    for number in range(max(1, options.rounds // 3)):
        figures = _launcher(_folder(f"launcher-{number}"))
        print(f"launcher: {figures[0]:.0f} bytes, {figures[1]:.0f} MB, {figures[2]:.1f} % of a core", flush=True)
        for row, figure in zip(rows, figures, strict=False):
            row.ours.append(figure)
    for number in range(options.rounds):
        for metrics in itertools.islice(itertools.cycle(("on", "off")), number % 2, number % 2 + 2):
            rate = _training(_folder(f"{metrics}-{number}"), options.steps, metrics)
            print(f"metrics {metrics}: {rate:.1f} steps/s", flush=True)
            (rows[3].ours if metrics == "on" else rows[3].peer).append(rate)
    write_section(options.output, Section.STATUS, _section(rows, machine), as_measures(rows))
    print("\n".join(table(rows)))
    return 0 if all(row.met for row in rows) else 1


def _folder(name: str) -> Path:
    folder = BUILD / name
    folder.mkdir(parents=True)
    return folder


def _section(rows: Sequence[Row], machine: dict[str, str]) -> list[str]:
    return [
        "## Status and metrics",
        "",
        "Written by `make bench-status`. Medians, quartiles in brackets, and the worst round; how each figure is",
        "taken: [README.md](README.md).",
        "",
        *table(rows),
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
    ]


if __name__ == "__main__":
    sys.exit(main())
