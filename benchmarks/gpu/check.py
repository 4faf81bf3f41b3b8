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
from pathlib import Path
from statistics import median

from benchmarks.durable import stalls
from benchmarks.gpu import runs
from benchmarks.gpu.machine import ROOT, Device, build_with_nccl, find_device
from benchmarks.harness.machine import description
from benchmarks.harness.sections import Section, write_section

FOLDER = ROOT / "build" / "gpu-check"
SIZES, SIZES_CPU = (1024, 10 * 1024), (16, 64)
"""Of checkpoints, in 2**20 bytes."""
ROUNDS = 5
_COPIES = 2.5
"""Of a state on a GPU: itself, that of the last commit, and room to work."""
Row = tuple[str, str]
DESCRIPTION = """\
On a machine with a GPU: build Horovod with NCCL, train with one rank over NCCL, with several that share the GPU over
Gloo through a resize, a notice and a SIGKILL, checkpoint states of 1 and 10 GB out of its memory, read its figures; and
write the table into benchmarks/RESULTS.md. Weights have to be those of an undisturbed run on the processor.

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
    begin, failed = time.monotonic(), False

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for step in (_training, _checkpoints):
        shutil.rmtree(folder / "runs", ignore_errors=True)  # gigabytes
        try:
            for row in step(device, folder, options.rounds, say):
                rows.append(row)
                say(": ".join(row))
        except (AssertionError, OSError, subprocess.CalledProcessError) as error:
            failed = True
            rows.append(("**failed**", f"{type(error).__name__}: {error}".partition("\n")[0]))
            say(str(error))
    shutil.rmtree(folder / "runs", ignore_errors=True)
    output = folder if options.cpu else ROOT / "benchmarks"
    write_section(output, Section.GPU, _section(device, rows), {})
    say(f"written to {output / 'RESULTS.md'}")
    return int(failed)


def _training(device: Device, folder: Path, _: int, say: Callable[[str], None]) -> Iterator[Row]:
    path = [build_with_nccl(folder, say)] if device.kind == "cuda" else []
    base = folder / "runs"
    same = runs.undisturbed(base / "undisturbed")
    seconds = runs.one_rank(base / "one", device, same, *path)
    yield "one rank" + (" over NCCL" if path else ""), f"the weights of two ranks on the processor, {seconds:.1f} s"
    shared = runs.several_ranks(base / "several", device, same)
    yield "ranks that share it over Gloo", f"the same weights; worlds {', '.join(map(str, shared.sizes))}"
    yield "resize 2→3", f"{shared.resize:.2f} s until three train"
    yield "notice for one of three", f"{shared.notice:.2f} s until the others train on"
    yield "SIGKILL of one of three", f"{shared.loss:.2f} s until a world trains again"
    for gpu in shared.gpus:
        used, total = ((each or 0) / 2**30 for each in (gpu.memory_bytes, gpu.memory_total_bytes))
        yield f"figures of GPU {gpu.index}", f"{gpu.name}: {gpu.percent} %, {used:.1f} of {total:.1f} GiB"
    if not shared.gpus:
        yield "figures of GPUs", "none were told"


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
    path = os.pathsep.join([str(ROOT), str(ROOT / "images/trainer/src"), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, "-m", stalls.__name__, *options],
        check=True, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    shutil.rmtree(folder)
    figures = defaultdict[tuple[str, str], list[float]](list)
    for line in map(json.loads, told.stdout.splitlines()):
        for figure in ("stall", "durable"):
            figures[line["method"], figure].append(line[figure])
    return figures


def _section(device: Device, rows: Sequence[Row]) -> list[str]:
    table = [f"| {name} | {value} |" for name, value in rows]
    machine = [f"* {name}: {value}" for name, value in description().items()]
    written = f"Written by `make gpu-check` on: {device.name}, {device.memory / 2**30:.0f} GiB."
    return ["## On a GPU", "", written, "", "| what | came to |", "| --- | --- |", *table, "", *machine]
