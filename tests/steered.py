"""Other people's training scripts, each process of which waits after so many steps until the test goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_runtime.run.status import EventKind
from tests.local.harness import ScriptedRun

FOLDER = "ELASTIC_TRAINING_TEST_SCRIPTS"
STANDIN = Path(__file__).parent / "scripts" / "standin"


@pytest.fixture
def checkout(tmp_path: Path) -> Callable[[str, str], Path]:
    """Copies a folder of a project's checkout, since scripts write beside themselves; skips where there is none."""

    def copied(project: str, folder: str) -> Path:
        if not (where := os.environ.get(FOLDER)):
            pytest.skip(f"{FOLDER} is not set: make test-scripts SCRIPTS=FOLDER, with a checkout {project} in it")
        source = Path(where) / project / folder
        if not source.is_dir():
            pytest.skip(f"no folder {source}: {FOLDER} is to have a checkout of {project}")
        copy = tmp_path / "checkout"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "assets", "*.ipynb"))
        return copy

    return copied


def steering(folder: Path, held_after: int) -> dict[str, str]:
    """Return the environment in which ``held_steps.py`` has ranks wait after so many steps, and begin that."""
    (folder / "hold").touch()
    return {"STEERED": str(folder), "HELD_AFTER": str(held_after)}


class Steered:
    """A run of a script, each process of which waits after so many steps until the test goes on."""

    def __init__(self, run: ScriptedRun, folder: Path, held_after: int) -> None:
        self.run, self._folder, self._held_after = run, folder, held_after
        self._seen: set[int] = set()

    def stands(self, size: int) -> None:
        """Await that a new world of so many ranks stands after those steps, and that the status knows of it."""

        def there() -> bool:
            noted = [note for note in self.steps() if note[1] == size and note[3] == self._held_after]
            new = {pid: rank for pid, _, rank, *_ in noted if pid not in self._seen}
            if set(new.values()) != set(range(size)):
                return False
            self._seen.update(new)
            return True

        self.run.until(there, f"{size} ranks stand after {self._held_after} steps")
        self.run.until_status(lambda status: status.world_size == size, f"the status knows of {size} ranks")

    def steps(self) -> list[tuple[int, ...]]:
        """Of each rank: process id, world size, rank, step of that process, TORCHELASTIC_RESTART_COUNT."""
        noted = self._folder / "steps"
        lines = noted.read_text().splitlines(keepends=True) if noted.exists() else []
        return [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]

    def sizes_a_notice_and_a_loss(self, *, to_the_end: bool = True) -> None:
        """Two ranks, three, two; one until the worker that is taken is replaced; a SIGKILL; to the end."""
        run = self.run
        self.stands(2)
        run.resize(3)
        self.stands(3)
        run.resize(2)
        self.stands(2)
        run.reclaim(run.worker(0).name)
        self.stands(2)
        assert run.events(EventKind.RESTARTED, EventKind.LOST, EventKind.RANK_FAILED) == []
        run.kill_rank(0)
        self.stands(2)
        assert len(run.events(EventKind.RESTARTED)) == 1
        if to_the_end:
            self.succeed()

    def succeed(self) -> None:
        (self._folder / "hold").unlink()
        self.run.succeed()

    def warnings(self) -> list[str]:
        return [event.message for event in self.run.status().events if event.kind is EventKind.WARNING]

    def told(self, start: str) -> list[str]:
        """The rest of each line of the run's log that has this in it."""
        return [line.split(start, 1)[1] for line in self.run.log().splitlines() if start in line]
