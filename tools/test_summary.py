"""Sum up the JUnit reports of all test runs: a line for each run, each failure, and at the end ``N passed, N failed``.

Failures are near the end, and the names of all that failed after them, since who shows only a part of a long output
shows its last lines.

usage: test_summary.py FOLDER [PART...]

PART is a part of ``make test`` that failed. One in whose reports no test failed (a linter, a run that broke off before
its report was written) counts as one failure, so that the last line never looks like success when it was none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

FAILED = {"failure", "error"}
"""Parts of a report's test that say so; the second is of what stands around it."""
SAID = 12
"""Lines of what pytest says of one failed test: the first half and the last half of them."""
PRINTED = 30
"""Last lines of what it printed; where it had runs, their events are the last."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tests by how they ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed"


def read(report: Path) -> list[ElementTree.Element]:
    """Tests of one report."""
    return list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 # written by our own pytest a moment ago


def count(cases: list[ElementTree.Element]) -> Counts:
    """Count one report's tests. A test that fails and then fails again while it is torn down is one failure."""
    endings: dict[tuple[str | None, str | None], set[str]] = {}
    for case in cases:
        endings.setdefault((case.get("classname"), case.get("name")), set()).update(part.tag for part in case)
    failed = sum(1 for tags in endings.values() if tags & FAILED)
    skipped = sum(1 for tags in endings.values() if "skipped" in tags and not tags & FAILED)
    return Counts(len(endings) - failed - skipped, failed, skipped)


def duration(cases: list[ElementTree.Element]) -> float:
    """Seconds that one report's tests took, one after the other, with what stands around them."""
    return sum(float(case.get("time", "0")) for case in cases)


def failures(report: str, cases: list[ElementTree.Element]) -> Iterator[tuple[str, list[str]]]:
    """Each failed test of one report, and how it failed: first where, then a few lines."""
    for case in cases:
        for part in case:
            if part.tag in FAILED:
                said = (part.get("message") or part.text or "").splitlines()
                place = (part.text or "").rstrip().rsplit("\n", maxsplit=1)[-1]
                kept = said if len(said) <= SAID else [*said[: SAID // 2], "…", *said[-SAID // 2 :]]
                printed = (case.findtext("system-out") or "").rstrip().splitlines()[-PRINTED:]
                yield f"{part.tag} of {report}: {case.get('name')}", [place, *kept, *printed]


def main(folder: str, *parts: str) -> int:
    """Print the sums; 0 when all passed."""
    reports = {path.stem: read(path) for path in sorted(Path(folder).glob("*.xml"))}
    counts = {report: count(cases) for report, cases in reports.items()}
    for report, one in counts.items():
        print(f"{report}: {one}, {one.skipped} skipped, in {duration(reports[report]):.0f} s")
    failed = [failure for report, cases in reports.items() for failure in failures(report, cases)]
    for name, how in failed:
        print("\n    ".join([name, *how]))
    if len(failed) > 1:
        print("All that failed:")
        for name, how in failed:
            print(f"{name}, {how[0]}")
    total = sum(counts.values(), Counts())
    for part in parts:
        reported = any(one.failed for report, one in counts.items() if report.startswith(part.removeprefix("test-")))
        print(f"make {part} failed" + ("" if reported else ", though no test did: see above. Counted as a failure."))
        total += Counts(failed=0 if reported else 1)
    if not total.passed and not total.failed:
        print("No test ran. Counted as a failure.")
        total += Counts(failed=1)
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
