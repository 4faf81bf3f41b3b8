"""Make every target of docs/tested.md, one after the other, and report at the end what each showed.

usage: test_all.py [--fresh]

A target that passed on the same files is not made again, so that what was stopped goes on. ``--fresh`` forgets that.
The output of each target is in build/test-all. The exit status is 0 if all passed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tested import ROOT, shown, targets

FOLDER = ROOT / "build" / "test-all"
LEFT_OUT = "LEFT OUT: "
"""How a target says that it cannot show something on this machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one target."""

    target: str
    """With its variables."""
    files: str
    """Digest of the repository's files that it was made on."""
    passed: bool
    seconds: float
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = f"{'passed' if self.passed else 'FAILED'} in {self.seconds:.0f} s"
        return "\n".join([f"{self.target}: {words}", *(f"    left out: {each}" for each in self.left_out)])


def files() -> str:
    """Return the digest of all files that Git has or would take."""
    digest = hashlib.sha256()
    for words in (["ls-files", "--stage"], ["diff", "HEAD"]):
        digest.update(subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout)
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    for name in filter(None, listed.split(b"\0")):
        path = ROOT / os.fsdecode(name)
        digest.update(name + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def earlier(folder: Path, target: str, of: str) -> Outcome | None:
    """Return how the target passed on the same files before."""
    try:
        found = Outcome(**json.loads((folder / f"{_file(target)}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.passed and found.files == of else None


def made(folder: Path, target: str, of: str) -> Outcome:
    """Make the target now, and keep how it ended."""
    log, begun = folder / f"{_file(target)}.log", time.monotonic()
    with log.open("wb") as output:
        command = [os.environ.get("MAKE", "make"), "--no-print-directory", *target.split()]
        status = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    left_out = tuple(line.partition(LEFT_OUT)[2] for line in lines if LEFT_OUT in line)
    outcome = Outcome(target, of, status == 0, round(time.monotonic() - begun, 1), left_out)
    (folder / f"{_file(target)}.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    return outcome


def _file(target: str) -> str:
    """Return the name of its files, without a suffix."""
    return target.replace(" ", "-")


def all_of(
    names: Sequence[str], of: str, folder: Path = FOLDER, make: Callable[[Path, str, str], Outcome] = made
) -> list[Outcome]:
    """Make each target that has not passed on these files yet; a failure stops none of the others."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for target in names:
        outcome = earlier(folder, target, of)
        print(f"{target}: {'passed before' if outcome else 'begins'}", flush=True)
        outcomes.append(outcome or make(folder, target, of))
    return outcomes


def main(*words: str) -> int:
    """As the module's docstring says."""
    if words == ("--fresh",):
        for path in FOLDER.glob("*.json"):
            path.unlink()
    outcomes = all_of(targets(shown()), files())
    print("", *outcomes, f"The output of each is in {FOLDER.relative_to(ROOT)}.", sep="\n")
    return 0 if all(each.passed for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
