"""Sum up the JUnit reports of all test runs: a line for each, and at the very end ``N passed, N failed``.

usage: test_summary.py FOLDER STATUS

STATUS is how ``make test`` ended. Where it failed and no test did (a linter, a run that broke off before its report
was written), that counts as one failure, so that the last line never looks like success when it was none.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


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


def count(report: Path) -> Counts:
    """Count one report's tests. A test that fails and then fails again while it is torn down is one failure."""
    endings: dict[tuple[str | None, str | None], set[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 # written by our own pytest a moment ago
        endings.setdefault((case.get("classname"), case.get("name")), set()).update(part.tag for part in case)
    failed = sum(1 for tags in endings.values() if tags & {"failure", "error"})
    skipped = sum(1 for tags in endings.values() if "skipped" in tags and not tags & {"failure", "error"})
    return Counts(len(endings) - failed - skipped, failed, skipped)


def main(folder: str, status: str) -> int:
    """Print the sums; 0 when all passed."""
    total = Counts()
    for report in sorted(Path(folder).glob("*.xml")):
        counts = count(report)
        total += counts
        print(f"{report.stem}: {counts}, {counts.skipped} skipped")
    if int(status) and not total.failed:
        print(f"make test ended with status {status}, though no test failed: see above. Counted as a failure.")
        total += Counts(failed=1)
    if not total.passed and not total.failed:
        print("No test ran. Counted as a failure.")
        total += Counts(failed=1)
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
