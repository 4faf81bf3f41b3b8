"""The commands ``verify`` and ``replay``, where torch or numpy is: ``python -m elastic_runtime.audit verify URI``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from elastic_runtime.audit.replaying import Replayed, replay
from elastic_runtime.audit.verifying import Verified, verify
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.documents import from_json
from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import RunSpec


def main(words: Sequence[str] | None = None) -> int:
    """Return 0, or 1 with what is wrong on standard error."""
    arguments = _parser().parse_args(words)
    try:
        return _carried_out(arguments)
    except ElasticError as error:
        sys.stderr.write(f"{arguments.command}: {printable(error, 2000)}\n")
        return 1


def _carried_out(arguments: argparse.Namespace) -> int:
    if arguments.command == "replay":
        found = replay(read_spec(arguments.spec), arguments.step, arguments.workers, arguments.timeout)
        _say(outcome(found, arguments.workers))
        return 0 if found.is_within(arguments.within) else 1
    with closing(open_store(arguments.uri)) as store:
        _say(told(verify(store)))
    return 0


def read_spec(path: str) -> RunSpec:
    """Read a run's ``spec.json``, or the one in its folder. Raises InvalidSettings, InvalidDocument."""
    found = Path(path)
    try:
        return from_json(RunSpec, (found / "spec.json" if found.is_dir() else found).read_bytes())
    except OSError as error:
        raise InvalidSettings("SPEC", f"{path!r} cannot be read: {error.strerror}", "Give a run's folder") from error


def _say(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _parser() -> argparse.ArgumentParser:
    every = argparse.ArgumentParser(prog="python -m elastic_runtime.audit", description="Check a training's receipt.")
    commands = every.add_subparsers(dest="command", required=True)
    verifying = commands.add_parser("verify", help="check the receipt beside the checkpoints of a run")
    verifying.add_argument("uri", help="of the run's checkpoints")
    again = commands.add_parser("replay", help="train the steps to the next recorded checkpoint again, and compare")
    again.add_argument("spec", help="folder of the run, or its spec.json; its command is executed here")
    again.add_argument("--step", type=int, required=True, help="begin with the newest checkpoint at or before it")
    again.add_argument("--workers", type=int, required=True, help="world size, in workers")
    again.add_argument("--within", type=float, default=0.0, help="relative difference that still counts (default: 0)")
    again.add_argument("--timeout", type=float, default=3600.0, help="seconds for the training (default: 3600)")
    return every


def outcome(found: Replayed, workers: int) -> list[str]:
    """Return lines for people."""
    steps = f"steps {found.start + 1} to {found.step} at {workers} workers"
    if not found.differing:
        return [f"{steps}: equal to the bit"]
    lines = [f"{steps}: differs in {', '.join(found.differing)}"]
    if found.tensors is None:
        lines.append("the run's checkpoint of that step is no longer kept, so by how much is not known")
    for name, apart, relative in (found.tensors or ())[:50]:
        lines.append(f"{name}: by {apart:.3g}, {relative:.3g} of its greatest value")
    lines.append(
        "Sums of floating-point numbers depend on their order, so another world size rounds differently. "
        "Dropout, BatchNorm and kernels that are not deterministic add to it. See docs/receipt.md"
    )
    return lines


def told(found: Verified) -> list[str]:
    """Return lines for people."""
    lines = [
        f"whole: steps {found.first + 1} to {found.step}, each once, in {found.segments} segments",
        f"head: {found.head}",
    ]
    if found.samples:
        lines.append(f"samples: {found.samples}, each once an epoch, over {found.epochs:.4g} epochs")
    if found.unknown:
        lines.append(f"samples of {found.unknown} steps are not known: the script does not use GlobalBatches or Shards")
    sizes = ", ".join(f"{ranks or 'several'} from step {first}" for first, ranks in found.worlds[-20:])
    more = f"the last 20 of {len(found.worlds)}: " if len(found.worlds) > 20 else ""
    lines.append(f"ranks: {more}{sizes}")
    lines.append(f"resumed from a checkpoint: {found.resumed} times; segments of lost steps: {found.cut}")
    lines += [f"checkpoint {name}: as written" for name in found.checkpoints]
    return lines


if __name__ == "__main__":
    sys.exit(main())
