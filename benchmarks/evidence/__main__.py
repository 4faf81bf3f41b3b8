"""Measure evidence, and write its raw data, its pages and docs/evidence.md. See docs/evidence.md.

usage: python -m benchmarks.evidence [--quick] [--draw] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks.evidence import faults, halves, leaks, mass
from benchmarks.evidence.document import markdown, page
from benchmarks.harness.processes import become_subreaper, end_descendants, handle_sigterm
from benchmarks.harness.sides import RoundFailed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "bench" / "evidence"
DOCS = ROOT / "docs" / "evidence.md"
ALL: dict[str, ModuleType] = {each.NAME: each for each in (faults, leaks, mass, halves)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    options = _parse(arguments)
    folder: Path = BUILD if options.quick else HERE
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    failed = []
    if not options.draw:
        handle_sigterm()
        become_subreaper()
        for name in options.names or ALL:
            runs = BUILD / "runs" / time.strftime(f"{name}-%Y%m%d-%H%M%S")
            try:
                raw = ALL[name].measure(runs, say, quick=options.quick)
            except RoundFailed as problem:
                say(f"{name} FAILED: {problem}; its files: {runs}")
                failed.append(name)
                continue
            except KeyboardInterrupt:
                return 130
            finally:
                end_descendants()
            (folder / f"{name}.json").write_text(compact(raw))
            _tell(name, raw)
    draw(folder, None if options.quick else DOCS)
    print(f"Written to {folder}")
    return int(bool(failed))


def draw(folder: Path, docs: Path | None) -> None:
    """Write the pages of the raw data in a folder, and docs/evidence.md."""
    documents = [
        ALL[name].present(json.loads(raw.read_text())) for name in ALL if (raw := folder / f"{name}.json").exists()
    ]
    for each in documents:
        (folder / f"{each.name}.html").write_text(page(each))
    if docs is not None:
        docs.write_text(markdown(documents))


def compact(raw: object) -> str:
    """JSON in which a list of numbers or words is one line."""
    return _written(raw, "") + "\n"


def _written(value: object, indent: str) -> str:
    deeper = indent + " "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        parts = [f"{deeper}{json.dumps(name)}: {_written(each, deeper)}" for name, each in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "[\n" + ",\n".join(deeper + _written(each, deeper) for each in value) + f"\n{indent}]"
    return json.dumps(value)


def _tell(name: str, raw: dict[str, object]) -> None:
    document = ALL[name].present(raw)
    print(f"\n{document.lead}")
    for goal in document.goals:
        print(f"{'met   ' if goal.met else 'MISSED'}  {goal.what}: {goal.measured}, wanted {goal.goal}")
    for table in document.tables:
        for row in (table.head, *table.rows):
            print("  " + " | ".join(row))
    print(flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(ALL)}")
    parser.add_argument(
        "--quick", action="store_true", help="short runs, to see whether it works; writes to build/bench/evidence"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: write the pages anew")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(ALL)):
        parser.error(f"unknown: {', '.join(unknown)}. Known: {', '.join(ALL)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
