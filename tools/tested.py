"""Write docs/tested.md: which training was put through which fault in which place, from the tests' own marks.

usage: tested.py [--check | --targets]

A test says what it shows with ``@pytest.mark.shows(engine="torch", place="local", fault="rank")``. Each value may be a
tuple. A module's ``pytestmark`` gives values for all its tests; where it has several marks, each test shows all. The
marks are read from the source, so nothing of the tests is imported. ``--check`` writes nothing and fails where the page
is stale. ``--targets`` prints the make targets.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tested.md"
PLACES = {
    "local": "this machine",
    "kubernetes": "Kubernetes",
    "slurm": "Slurm",
    "pool": "a pool",
    "ray": "Ray",
    "spark": "Spark",
}
"""A place without a row of tests has no table, and promises nothing."""
FAULTS = {
    "resize": "another size",
    "notice": "a worker's notice",
    "notices": "notices to all workers",
    "rank": "a rank is killed",
    "worker": "a worker is lost",
    "all": "all ranks are lost",
    "standstill": "a rank stands still",
    "launcher": "the launcher is lost",
    "pause": "a pause",
}
TRAININGS = {
    ("horovod", "torch"): "Horovod",
    ("horovod", "tensorflow"): "Horovod with TensorFlow",
    ("torch", "torch"): "`torch`, `DurableState`",
    ("torch-sharded", "torch"): "`torch`, `ShardedState`",
    ("horovod-shards", "torch"): "Horovod with `Shards`",
    ("torch-shards", "torch"): "`torch` with `Shards`",
    ("torchrun", "torch"): "`torchrun` scripts",
    ("horovodrun", "torch"): "`horovodrun` scripts",
    ("horovodrun", "tensorflow"): "`horovodrun` scripts with TensorFlow",
}
"""By engine and framework."""
TARGETS: Mapping[str, Sequence[str]] = {
    "local": ("test-local", "test-long"),
    "engines": ("test-engines", "test-long"),
    "airflow": ("test-airflow", "test-long"),
    "tensorflow": ("test-tensorflow",),
    "scripts": ("test-scripts",),
    "matrix": ("test-matrix",),
    "slurm": ("test-slurm",),
    "kubernetes": ("test-kubernetes", "test-kubernetes-long"),
    "kubernetes_nodes": ("test-kubernetes",),
    "kubernetes_reclaims": ("test-kubernetes", "test-kubernetes-long"),
    "kubernetes_tensorflow": ("test-tensorflow-kubernetes",),
    "ray": ("test-ray",),
    "spark": ("test-spark",),
}
"""By folder of tests, the target that runs it, and the one for tests that are marked ``long``."""
BY_PLACE = {"matrix"}
"""Folders whose target runs them in one place: that of the variable PLACE, ``local`` without it."""
_VALUES = {
    "engine": {engine for engine, _ in TRAININGS},
    "framework": {framework for _, framework in TRAININGS},
    "place": set(PLACES),
    "fault": set(FAULTS),
}
_HEAD = """# What is tested where

You see here which losses and changes the tests put real trainings through, and in which place.

<!-- Written by tools/tested.py from the tests' marks: make tested -->

A number counts the tests that run the training with real ranks through that change, in that place. *elsewhere* means
that a test shows it in another place only. **none** means that no test shows it. The docs promise these cells, too.

"""
_GAPS = """## Gaps

{promised} cells are promised. {here} have a test in their own place, and {elsewhere} in another place only."""
_NONE = """ No test
shows the other {none}. These are the following, in each place:

"""
_RUN = """
## Run them

`make test-all` runs these targets one after the other. If you stop it, the next call goes on after the last target
that passed on the same files. The report at the end names what the machine leaves out. `make test` has the unit tests
and other checks besides.

"""


_ALL = {"engine", "place", "fault"}


class Mistake(Exception):
    """A mark that says nothing that can be shown."""


@dataclass(frozen=True, slots=True, order=True)
class Shown:
    """One cell that a test fills."""

    engine: str
    framework: str
    place: str
    fault: str
    test: str
    target: str


def shown(root: Path = ROOT) -> list[Shown]:
    """Read all marks. Raises Mistake."""
    return sorted({each for path in sorted((root / "tests").rglob("test_*.py")) for each in _of_file(path, root)})


def _of_file(path: Path, root: Path) -> Iterator[Shown]:
    source = path.read_text(encoding="utf-8")
    if "mark.shows(" not in source:
        return
    body = ast.parse(source).body
    marks = [each.value for each in body if isinstance(each, ast.Assign) and _named(each, "pytestmark")]
    of_module = list(
        itertools.chain.from_iterable(each.elts if isinstance(each, ast.List) else [each] for each in marks)
    )
    for test in body:
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            where = f"{path.relative_to(root)}::{test.name}"
            yield from _of_test(where, test.decorator_list, of_module)


def _named(assignment: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in assignment.targets)


def _of_test(where: str, decorators: list[ast.expr], of_module: list[ast.expr]) -> Iterator[Shown]:
    givens = [said for said in map(_said, of_module) if said is not None] or [{}]
    long = any(ast.unparse(each) == "pytest.mark.long" for each in [*decorators, *of_module])
    told = [said for said in map(_said, decorators) if said is not None]
    # One that says all by itself is of its test alone.
    pairs = [(given, said) for said in told for given in ([{}] if said.keys() >= _ALL else givens)]
    for given, said in pairs:
        values = {"framework": ("torch",)} | given | said
        by = values.pop("by", None)
        for name, known in _VALUES.items():
            if unknown := set(values.get(name, ("nothing",))) - known:
                raise Mistake(f"{where}: shows({name}={', '.join(sorted(unknown))}); known: {', '.join(sorted(known))}")
        names = ("engine", "framework", "place", "fault")
        for engine, framework, place, fault in itertools.product(*(values[name] for name in names)):
            if (engine, framework) not in TRAININGS:
                raise Mistake(f"{where}: no training of TRAININGS is by {engine} with {framework}")
            yield Shown(engine, framework, place, fault, where, by[0] if by else _target(where, long, place))


def _said(mark: ast.expr) -> dict[str, tuple[str, ...]] | None:
    """What a mark says; None: it is another one."""
    if not (isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.shows"):
        return None
    values = {word.arg: ast.literal_eval(word.value) for word in mark.keywords if word.arg}
    if unknown := set(values) - {*_VALUES, "by"}:
        raise Mistake(f"shows() takes no {', '.join(sorted(unknown))}")
    return {name: (value,) if isinstance(value, str) else tuple(value) for name, value in values.items()}


def _target(where: str, long: bool, place: str) -> str:
    folder = where.split("/")[1]
    if folder not in TARGETS:
        raise Mistake(f"{where}: name the target that runs tests/{folder}, in TARGETS of tools/tested.py")
    target = TARGETS[folder][-1 if long else 0]
    return f"{target} PLACE={place}" if folder in BY_PLACE and place != "local" else target


def targets(cells: Sequence[Shown]) -> list[str]:
    """Targets of make that run them, with their variables, those of the most cells first."""
    counts: dict[str, int] = defaultdict(int)
    for cell in cells:
        counts[cell.target] += 1
    return sorted(counts, key=lambda target: (-counts[target], target))


def page(cells: Sequence[Shown]) -> str:
    """Return docs/tested.md."""
    tests: dict[tuple[str, str, str, str], set[str]] = defaultdict(set)
    for each in cells:
        tests[each.engine, each.framework, each.fault, each.place].add(each.test)
    places = [place for place in PLACES if any(each.place == place for each in cells)]
    text, counts, gaps = _HEAD, {"promised": 0, "here": 0, "elsewhere": 0, "none": 0}, []

    def cell(training: tuple[str, str], fault: str, place: str) -> str:
        counts["promised"] += 1
        if count := len(tests[*training, fault, place]):
            counts["here"] += 1
            return str(count)
        if any(tests[*training, fault, other] for other in places):
            counts["elsewhere"] += 1
            return "*elsewhere*"
        counts["none"] += 1
        if place == places[0]:
            gaps.append(f"* {TRAININGS[training]}: {FAULTS[fault]}\n")
        return "**none**"

    for place in places:
        text += f"## In {PLACES[place]}\n\n" if place != "local" else f"## On {PLACES[place]}\n\n"
        text += "| | " + " | ".join(FAULTS.values()) + " |\n" + "| --- " * (len(FAULTS) + 1) + "|\n"
        for training, name in TRAININGS.items():
            text += f"| {name} | " + " | ".join(cell(training, fault, place) for fault in FAULTS) + " |\n"
        text += "\n"
    text += _GAPS.format(**counts) + (_NONE.format(**counts) + "".join(gaps) if gaps else "\n") + _RUN
    for target in targets(cells):
        text += f"* `make {target}`: {sum(1 for each in cells if each.target == target)} of the above\n"
    return text


def main(*words: str) -> int:
    """As the module's docstring says; 0, or 1 where something is to be mended."""
    try:
        cells = shown()
    except Mistake as mistake:
        print(mistake, file=sys.stderr)
        return 1
    if words == ("--targets",):
        print(*targets(cells), sep="\n")
    elif words == ("--check",):
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(cells):
            print("docs/tested.md is stale: make tested", file=sys.stderr)
            return 1
    else:
        PAGE.write_text(page(cells), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
