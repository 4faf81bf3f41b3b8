"""Other people's training scripts, from a folder with one checkout for each project."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start, start
from tests.local.harness import ScriptedRun
from tests.paced import Script

__all__ = ["DOCS", "HUB", "HYDRA", "NO_HANDLER", "Steered", "Train", "change", "checkout", "start", "train"]

FOLDER = "ELASTIC_TRAINING_TEST_SCRIPTS"
STANDIN = Path(__file__).parent / "standin"
HUB = Path(__file__).parent / "standin_hub"
"""Takes the place of Datasets and Evaluate, for scripts that fetch data, models and metrics by them."""
HYDRA = Path(__file__).parent / "standin_hydra"
"""Takes the place of Hydra and OmegaConf. Others, as Lightning, look for the real ones."""
DOCS = Path(__file__).parents[2] / "docs" / "torchrun.md"
NO_HANDLER = "SIGTERM itself ended ranks "
Train = Callable[..., "Steered"]


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


def change(script: Path, lines: Mapping[str, str], *, documented: bool = False) -> None:
    """Replace lines of it, each of which has to be there once, and new ones be in the docs if they are told there."""
    text = script.read_text()
    if documented:
        told = DOCS.read_text().splitlines()
        wanted = [f"+{line}" for old, new in lines.items() for line in new.splitlines() if line not in old.splitlines()]
        assert [line for line in told if line in wanted] == wanted
    for old, new in lines.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)


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


@pytest.fixture
def train(start: Start, tmp_path: Path) -> Train:
    """Starts a script in its folder, with Restart as it is by default, and the stand-in for CUDA."""

    def begin(
        folder: Path, *command: str, held_after: int = 3, standins: tuple[Path, ...] = (), **spec: Any
    ) -> Steered:
        path = (STANDIN, *standins)
        (tmp_path / "hold").touch()
        environment = {
            "STEERED": str(tmp_path),
            "HELD_AFTER": str(held_after),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "ELASTIC_RUNTIME_PRELOAD": "cpu_for_cuda",
        }
        run = start(
            Script("none"),
            (1, 2, 3),
            engine="torchrun",
            command=("python", *command),
            path=path,
            working_directory=str(folder),
            restart=RestartSpec(grace=20.0),
            recovery=RecoverySpec(backoff=0.5),
            environment={**environment, **spec.pop("environment", {})},
            **spec,
        )
        return Steered(run, tmp_path, held_after)

    return begin
