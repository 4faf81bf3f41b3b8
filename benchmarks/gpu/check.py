"""All steps one after another, and the table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.durable import stalls
from benchmarks.gpu import commits, runs
from benchmarks.gpu.machine import ROOT, Device, build_with_nccl, find_device
from benchmarks.harness.machine import description
from benchmarks.harness.sections import Section, write_section
from tests.paced import SCRIPTS, Undisturbed
from tests.plain_launchers import by_torch

FOLDER = ROOT / "build" / "gpu-check"
SIZES, SIZES_CPU = (1024, 10 * 1024), (16, 64)
"""Of checkpoints, in 2**20 bytes."""
ROUNDS = 5
STATES, STATES_CPU = 20, 1
"""Random ones."""
LOSSES = 4
_COPIES = 2.5
"""Of a state on a GPU: itself, that of the last commit, and room to work."""
_FAILED = "**failed**"
Row = tuple[str, str]
DESCRIPTION = """\
On a machine with a GPU: build Horovod with NCCL, train with one rank over NCCL, with several that share the GPU over
Gloo and over NCCL through resizes, notices and SIGKILLs, measure commits, checkpoint states of 1 and 10 GB out of its
memory, read its figures; and write the table into benchmarks/RESULTS.md. Weights have to be those of undisturbed runs.

--cpu goes through the same steps with small sizes on a machine without a GPU, and writes into build/gpu-check.
"""


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 1 when a step failed, 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="to work in (default: build/gpu-check)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each checkpoint (default: {ROUNDS})")
    options = parser.parse_args(words)
    try:
        device = find_device(options.cpu)
    except RuntimeError as error:
        parser.error(str(error))
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for step in (_training, _random_states, _commits, _checkpoints):
        shutil.rmtree(folder / "runs", ignore_errors=True)  # gigabytes
        try:
            for row in step(device, folder, options.rounds, say):
                rows.append(row)
                say(": ".join(row))
        except (AssertionError, OSError, subprocess.CalledProcessError) as error:
            rows.append(_failure(error))
            say(str(error))
    shutil.rmtree(folder / "runs", ignore_errors=True)
    output = folder if options.cpu else ROOT / "benchmarks"
    write_section(output, Section.GPU, _section(device, rows), {})
    say(f"written to {output / 'RESULTS.md'}")
    return int(any(name.startswith(_FAILED) for name, _ in rows))


def _failure(error: Exception, what: str = "") -> Row:
    return f"{_FAILED} {what}".strip(), f"{type(error).__name__}: {error}".partition("\n")[0]


def _training(device: Device, folder: Path, _: int, say: Callable[[str], None]) -> Iterator[Row]:
    path = (build_with_nccl(folder, say),) if device.kind == "cuda" else ()
    base, over = folder / "runs", " over NCCL" if path else ""
    same = runs.undisturbed(base / "undisturbed")
    for name, way in (("Horovod", runs.Way("Horovod", path=path)), ("torch.distributed", runs.Way("", "torch"))):
        seconds = runs.one_rank(base / f"one-{way.engine}", device, same, way)
        yield f"one rank by {name}{over}", f"the weights of two ranks on the processor, {seconds:.1f} s"
    by_nccl = replace(runs.HOROVOD_NCCL, path=path)
    ways = (runs.HOROVOD, by_nccl, *runs.GLOO_WAYS, *runs.NCCL_WAYS) if path else runs.GLOO_WAYS[-1:]

    def through_changes(way: runs.Way) -> list[Row]:
        rows = list[Row]()
        try:
            rows.extend(_through_changes(base / way.name.replace(" ", "-"), device, same, way))
        except AssertionError as error:
            say(str(error))
            rows.append(_failure(error, way.name))
        return rows

    # Side by side: most of their time goes into waiting for one another.
    with ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 1) // 4))) as pool:
        for rows in pool.map(through_changes, ways):
            yield from rows
    runs.restarted(base / "torchrun", device)
    yield f"a script for torchrun{over}", "sizes, a notice and a SIGKILL: the steps that its own checkpoints say"


def _through_changes(base: Path, device: Device, same: Undisturbed, way: runs.Way) -> Iterator[Row]:
    shared = runs.several_ranks(base / "several", device, same, way)
    worlds = ", ".join(map(str, shared.sizes))
    yield f"{way.name}: ranks that share it", f"the weights of two ranks on the processor; worlds {worlds}"
    times = (("resize 2→3", shared.resize), ("notice", shared.notice), ("SIGKILL", shared.loss))
    yield f"{way.name}: until ranks train again", ", ".join(f"{what} {seconds:.2f} s" for what, seconds in times)
    for gpu in shared.gpus[:1] if way is runs.HOROVOD else ():
        used, total = ((each or 0) / 2**30 for each in (gpu.memory_bytes, gpu.memory_total_bytes))
        yield f"figures of GPU {gpu.index}", f"{gpu.name}: {gpu.percent} %, {used:.1f} of {total:.1f} GiB"
    if way is runs.HOROVOD and not shared.gpus:
        yield "figures of GPUs", "none were told"
    compared = runs.exact(base / "exact", device, way)
    yield f"{way.name}: exact", f"{compared} digests of the state, and the weights, as without changes, to the last bit"
    if way.engine == "torch" and "NCCL" in way.name and not way.sharded:
        found = runs.lost_amid_steps(base / "lost", device, way, LOSSES)
        assert found.is_same, f"{way.name}: other weights after SIGKILLs amid steps: {found}"
        ended = f"{found.aborted} survivors ended with them, {found.restarts} starts from the beginning"
        yield f"{way.name}: {LOSSES} SIGKILLs amid steps", f"the same weights to the last bit; {ended}"


def _random_states(device: Device, folder: Path, _: int, _say: Callable[[str], None]) -> Iterator[Row]:
    environment, count = {**device.environment, **runs.GLOO}, STATES_CPU if device.kind == "cpu" else STATES
    (folder / "runs" / "random").mkdir(parents=True)
    kinds = [("random_states.py", 2), ("random_states.py", 3), ("random_sharded.py", 3)]
    for script, ranks in kinds[:1] if device.kind == "cpu" else kinds:
        options = [folder / "runs" / "random"] if "sharded" in script else []
        said = by_torch(SCRIPTS / script, ranks, 0, count, *options, max_wait=60 + 5 * count, environment=environment)
        assert said.count("states checked") == ranks, said
        yield f"{script} over Gloo, {ranks} ranks", f"{count} random states are exact"


def _commits(device: Device, folder: Path, rounds: int, _say: Callable[[str], None]) -> Iterator[Row]:
    small = ["--tokens=64", "--steps=5"] if device.kind == "cpu" else []
    compared = folder / "runs" / "compared"
    for line in _told(commits.__name__, f"--device={device.kind}", "--millions=1", f"--folder={compared}", *small):
        yield f"checkpoints beside training, {line['stream']} stream", f"{line['compared']} hold what was committed"
    for millions in (1,) if device.kind == "cpu" else (10, 100):
        options = [f"--device={device.kind}", f"--millions={millions}", f"--rounds={rounds}", *small]
        for line in _told(commits.__name__, *options):
            names = ("step", "commit", "waiting", "asked", "digests")
            told = ", ".join(f"{name} {1000 * line[name]:.2f}" for name in names)
            yield f"{millions} M parameters, {line['bytes'] / 1e6:.0f} MB, {line['stream']} stream (ms)", told


def _checkpoints(device: Device, folder: Path, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    for megabytes in SIZES_CPU if device.kind == "cpu" else SIZES:
        name = f"checkpoint of {megabytes / 1024:g} GiB" if megabytes >= 1024 else f"checkpoint of {megabytes} MiB"
        if device.memory < _COPIES * (megabytes << 20):
            yield name, f"not taken: the device has {device.memory / 2**30:.0f} GiB of memory"
            continue
        say(f"{name}, {rounds} of each way")
        took = _stalls(device, folder, megabytes, rounds)
        for figure, what in (("stall", "training stands"), ("durable", "durable after")):
            told = (f"{method} {median(took[method, figure]):.3f}" for method in stalls.METHODS)
            yield f"{name}: {what}, median (s)", ", ".join(told)


def _stalls(device: Device, base: Path, megabytes: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    folder = base / "runs" / f"checkpoints-{megabytes}"
    folder.mkdir(parents=True)
    wanted = {"megabytes": megabytes, "rounds": rounds, "folder": folder, "device": device.kind}
    options = [f"--{name}={value}" for name, value in wanted.items()]
    figures = defaultdict[tuple[str, str], list[float]](list)
    for line in _told(stalls.__name__, *options):
        for figure in ("stall", "durable"):
            figures[line["method"], figure].append(line[figure])
    shutil.rmtree(folder)
    return figures


def _told(module: str, *options: str) -> list[dict[str, Any]]:
    """The lines of JSON that a program has printed."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "images/trainer/src"), os.environ.get("PYTHONPATH", "")])
    words, environment = [sys.executable, "-m", module, *options], {**os.environ, "PYTHONPATH": path}
    told = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment)
    return [json.loads(line) for line in told.stdout.splitlines()]


def _section(device: Device, rows: Sequence[Row]) -> list[str]:
    table = [f"| {name} | {value} |" for name, value in rows]
    machine = [f"* {name}: {value}" for name, value in description().items()]
    written = f"Written by `make gpu-check` on: {device.name}, {device.memory / 2**30:.0f} GiB."
    return ["## On a GPU", "", written, "", "| what | came to |", "| --- | --- |", *table, "", *machine]
