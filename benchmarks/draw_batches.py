"""Train the same under the same resizes, with a batch that stays and one that grows; draws docs/batches.svg."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "dags")]

from benchmarks.batches.drawing import draw  # noqa: E402  # the path above has to be there first
from benchmarks.batches.runs import Case, Curve, run  # noqa: E402
from benchmarks.harness.processes import become_subreaper, end_descendants  # noqa: E402
from digits.shards import write_shards  # noqa: E402

BUILD = HERE.parent / "build" / "bench" / "batches"
EPOCHS = 32
RESIZES = {0: 2, 8: 4, 16: 1, 24: 2}
CASES = (
    Case("batch stays, two ranks throughout", "stays", {0: 2}),
    Case("batch stays, resized", "stays", RESIZES),
    Case("batch stays, in micro-batches, resized", "micro", RESIZES),
    Case("batch grows, rate stays", "grows", RESIZES),
    Case("batch grows, rate linear", "linear", RESIZES),
    Case("batch grows, rate square root", "sqrt", RESIZES),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, draw, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "batches.svg", help="the plot")
    options = parser.parse_args(arguments)
    become_subreaper()
    folder = BUILD / time.strftime("%Y%m%d-%H%M%S")
    write_shards(folder / "shards", 0.25, 0)
    curves = []
    try:
        for number, case in enumerate(CASES):
            print(f"{case.name} …", flush=True)
            curves.append(run(case, folder / str(number), folder / "shards", EPOCHS))
    finally:
        end_descendants()
    options.output.write_text(draw(curves), encoding="utf-8")
    print("\n".join(table(curves)))
    return 0


def table(curves: Sequence[Curve]) -> list[str]:
    """Markdown."""
    rows = ["| batch and rate | steps | training loss, epochs 16, 24, 32 | accuracy |", "| --- | --- | --- | --- |"]
    for curve in curves:
        losses = ", ".join(f"{curve.losses()[epoch - 1]:.3f}" for epoch in (16, 24, 32))
        accuracy = curve.epochs[-1]["accuracy"]
        rows.append(f"| {curve.case.name} | {len(curve.steps)} | {losses} | {accuracy:.3f} |")
    for resized in curves[1:3]:
        pairs = zip(curves[0].steps, resized.steps, strict=True)
        furthest = max(abs(one["loss"] - other["loss"]) / one["loss"] for one, other in pairs)
        rows += ["", f"{resized.case.name}: losses of a step differ from the first's by at most {furthest:.1e} of it."]
    return rows


if __name__ == "__main__":
    sys.exit(main())
