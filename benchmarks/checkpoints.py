"""Durable checkpoints: stall of the training, hand-over at a notice, upload. See README.md in this folder."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.durable import stalls, uploads  # noqa: E402  # the path above has to be there first
from benchmarks.durable.handovers import Handover, handovers  # noqa: E402
from benchmarks.durable.measures import (  # noqa: E402
    DEADLINES,
    NO_MORE,
    NONE_LOST,
    SIZES,
    TWENTIETH,
    Row,
    as_measures,
    table,
)
from benchmarks.durable.sink import s3_sink  # noqa: E402
from benchmarks.harness.machine import description  # noqa: E402
from benchmarks.harness.measures import Bound, Target  # noqa: E402
from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm  # noqa: E402
from benchmarks.harness.sections import Section, write_section  # noqa: E402
from benchmarks.harness.sides import RoundFailed  # noqa: E402

BUILD = HERE.parent / "build" / "bench" / "checkpoints"
PARTS = ("stall", "upload", "handover")


class Telling:
    """Tells how far it is, and keeps what went wrong."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self.troubles: list[str] = []

    def __call__(self, line: str) -> None:
        """Print it, with the seconds since the begin."""
        print(f"{time.monotonic() - self._begin:5.0f} s  {line}", flush=True)

    def trouble(self, line: str) -> None:
        """For the page, too."""
        self.troubles.append(line)
        self(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; exit status 1 when something failed."""
    options = _parse(arguments)
    handle_sigterm()
    become_subreaper()
    say, machine, rows = Telling(), description(), list[Row]()
    shutil.rmtree(BUILD, ignore_errors=True)
    for part, size in itertools.product(options.part or PARTS, options.size or SIZES):
        folder = BUILD / part / size
        folder.mkdir(parents=True)
        try:
            rows += [row for row in _RUN[part](size, options.rounds, folder, say) if row.ours]
        except (RoundFailed, subprocess.CalledProcessError) as error:
            say.trouble(f"{part}, {size}: {error}")
        finally:
            end_descendants()
    if not say.troubles:
        shutil.rmtree(BUILD, ignore_errors=True)  # gigabytes
    lines = _section(rows, machine, say.troubles)
    whole = not (options.part or options.size) and options.rounds >= 10
    output: Path = options.output or (HERE if whole else BUILD)
    write_section(output, Section.CHECKPOINTS, lines, as_measures(rows))
    print("\n".join(["", *table(rows), "", *say.troubles, f"Written to {output}"]))
    return 1 if say.troubles else 0


def _stall(size: str, rounds: int, folder: Path, say: Telling) -> list[Row]:
    name = f"a {_named(size)} model"
    stall = Row(f"checkpoint_stall_{size}", f"Training stands for a checkpoint of {name}; peer: `torch.save`",
                target=TWENTIETH)  # fmt: skip
    against = Row(f"checkpoint_stall_async_{size}", "The same; peer: `torch.distributed.checkpoint.async_save`",
                  target=NO_MORE)  # fmt: skip
    slowed = Row(
        f"checkpoint_slowed_{size}", "All that the steps beside it take longer, the stall included; peer: `async_save`"
    )
    durable = Row(f"checkpoint_durable_{size}", "Until it is durable, training going on; peer: `async_save`")
    for line in _lines(stalls, size, rounds, folder, {}):
        say(f"stall {size}: {line}")
        match line["method"]:
            case stalls.OURS:
                for row, key in ((stall, "stall"), (against, "stall"), (slowed, "slowed"), (durable, "durable")):
                    row.ours.append(line[key])
            case stalls.SAVE:
                stall.peer.append(line["stall"])
            case stalls.ASYNC:
                for row, key in ((against, "stall"), (slowed, "slowed"), (durable, "durable")):
                    row.peer.append(line[key])
    return [stall, against, slowed, durable]


def _upload(size: str, rounds: int, folder: Path, say: Telling) -> list[Row]:
    bare = Row(
        f"upload_{size}", f"{_named(size)} into S3; peer: `upload_file` of the same bytes, which are in a file already"
    )
    saved = Row(f"upload_saved_{size}", "The same; peer: `torch.save` to that file, and `upload_file`")
    with s3_sink() as environment:
        for line in _lines(uploads, size, rounds, folder, environment):
            say(f"upload {size}: {line}")
            match line["method"]:
                case uploads.OURS:
                    bare.ours.append(line["seconds"])
                    saved.ours.append(line["seconds"])
                case uploads.FILE:
                    bare.peer.append(line["seconds"])
                case uploads.SAVED:
                    saved.peer.append(line["seconds"])
    return [bare, saved]


def _handover(size: str, rounds: int, folder: Path, say: Telling) -> list[Row]:
    rows: list[Row] = []
    for store, deadlines in (("file", DEADLINES), ("s3", DEADLINES[-1:])):
        collected: list[Handover] = []

        def tell(handover: Handover, store: str = store, collected: list[Handover] = collected) -> None:
            collected.append(handover)
            say(f"handover {size} {store}: {handover}")

        with ExitStack() as stack:
            environment = stack.enter_context(s3_sink()) if store == "s3" else {}
            uri = "s3://benchmark/run" if store == "s3" else (folder / "checkpoints").as_uri()
            handovers(folder / store, SIZES[size], uri, deadlines * rounds, environment, tell, say.trouble)
        for deadline in deadlines:
            rows += _handover_rows(size, store, deadline, [each for each in collected if each.deadline == deadline])
    return rows


def _handover_rows(size: str, store: str, deadline: float, rounds: Sequence[Handover]) -> list[Row]:
    key = f"{size}_{deadline:.0f}s" + ("_s3" if store == "s3" else "")
    where = "into S3" if store == "s3" else "into a folder"
    inside = Target(Bound.OURS_AT_MOST, deadline)
    rows = (
        Row(f"handover_durable_{key}", f"Notice of {deadline:.0f} s, {_named(size)} model {where} → durable checkpoint",
            target=inside, ours=[each.durable for each in rounds], worst=True),
        Row(f"handover_left_{key}", "The same → the worker, which had rank 0, has left",
            target=inside, ours=[each.left for each in rounds], worst=True),
        Row(f"handover_lost_{key}", "The same: steps lost", "steps", NONE_LOST,
            [each.steps_lost for each in rounds], worst=True),
    )  # fmt: skip
    return list(rows)


_RUN = {"stall": _stall, "upload": _upload, "handover": _handover}


def _named(size: str) -> str:
    return f"{size[:-2]} {size[-2:].upper()}"


def _lines(program: Any, size: str, rounds: int, folder: Path, more: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What a program prints, as it does."""
    arguments = ("--megabytes", str(SIZES[size]), "--rounds", str(rounds), "--folder", str(folder))
    environment = {**os.environ, **more, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, program.__file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _section(rows: Sequence[Row], machine: dict[str, str], troubles: Sequence[str]) -> list[str]:
    return [
        "## Durable checkpoints",
        "",
        "Written by `make bench-checkpoints`. Medians, quartiles in brackets, and the worst round; how each figure is",
        "taken: [README.md](README.md).",
        "",
        *table(rows),
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
        "",
        "Rounds that failed:",
        "",
        *([f"* {trouble}" for trouble in troubles] or ["* none"]),
    ]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of everything (default: 10)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this, may be repeated")
    parser.add_argument("--size", choices=SIZES, action="append", help="only this model, may be repeated")
    parser.add_argument(
        "--output", type=Path,
        help="folder for results.json and RESULTS.md (default: this one; build/bench/checkpoints for less than all)",
    )  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
