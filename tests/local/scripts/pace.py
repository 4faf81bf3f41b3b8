"""How a training script here keeps pace with its test: it notes what it did, and stands where it is told to.

The test gives a :class:`Pace` as JSON in the environment variable ``PACE``, and talks by files in one folder:
``notes/*.jsonl`` is what ranks did, ``at/STEP`` says that a hold was reached, ``go/STEP`` ends it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from elastic_runtime.world import current_world

T = TypeVar("T")
R = TypeVar("R")
WORKER, SLOT = "ELASTIC_RUNTIME_WORKER", "ELASTIC_RUNTIME_SLOT"
LOOK = 0.005
"""Seconds between two looks for a file."""


@dataclass(frozen=True)
class Pace:
    """What a test wants of a script."""

    folder: str
    epochs: int = 10
    commit_every: int = 1
    state_every: int = 1
    """The state's own ``commit_every``."""
    holds: tuple[int, ...] = ()
    """Steps after which all ranks stand until told to go on, committing (or only listening, where the step is none to
    commit at): changes of the world happen here."""
    freezes: tuple[int, ...] = ()
    """Steps after which rank 0 stands without a commit, and the others wait for it: no change can happen."""
    leaves: tuple[int, ...] = ()
    """Steps after which the last of several ranks ends as if all were done."""
    raises: tuple[int, ...] = ()
    """Steps after which every rank raises, the first time."""
    step_seconds: float = 0.0
    """That every step takes at least."""
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds that every step takes besides, by worker."""
    shared_by: int | None = None
    """Ranks: in a world of fewer a step takes longer in proportion; None: as long in any."""
    stand: tuple[str, int, int] | None = None
    """How a rank stands still once, after which step, and which rank; see ``standing_still.py``."""
    uneven: bool = False
    """Steps take unevenly long, and there are evaluations and compilations between them; see ``standing_still.py``."""
    kills: tuple[int, ...] = ()
    """Steps in the middle of which, before its gradients, the last of several ranks kills itself, the first time."""
    zeroes: str = "first"
    """Where ``exact.py`` has ``zero_grad()``: ``first`` in a step, ``last`` before the commit, or ``after`` that."""
    doors: dict[str, str] = field(default_factory=dict)
    """What the first rank of a worker does before it joins: ``kill`` itself, ``exit`` with 7, or ``wait``."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Pace:
        if os.environ.get("OWN_HOSTS"):  # NCCL takes several ranks on one GPU where they seem to be on several hosts.
            os.environ["NCCL_HOSTID"] = "-".join(os.environ[name] for name in (WORKER, SLOT))
        return cls(**json.loads(os.environ["PACE"]))

    def door(self) -> None:
        """To be called before the rank joins a world."""
        worker = os.environ[WORKER]
        at = Path(self.folder, "at", worker)
        if worker not in self.doors or at.exists():
            return
        at.touch()
        if self.doors[worker] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.doors[worker] == "exit":
            raise SystemExit(7)
        wait_for(Path(self.folder, "go", worker))

    def note(self, **what: Any) -> None:
        """Write down what this rank did; survives its SIGKILL."""
        name = f"{current_world().name}-{os.getpid()}.jsonl"
        with Path(self.folder, "notes", name).open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(what) + "\n")

    def watched(self, function: Callable[[T], R]) -> Callable[[T], R]:
        """The same training function, which notes when it begins and when an exception ends it."""

        def watched(state: T) -> R:
            self.note(entered=time.monotonic())
            try:
                return function(state)
            except BaseException:  # whatever ends it, noted and raised on
                self.note(failed=time.monotonic())
                raise

        return watched

    def fall(self, step: int) -> None:
        """Be lost here, where this step is one for that. The others are in it, too."""
        if step not in self.kills:
            return
        at = Path(self.folder, "at", f"killed-{step}")
        is_first = first_rank_says(not at.exists())
        if is_first and (world := current_world()).rank == world.size - 1 > 0:
            at.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def hold(self, state: Any) -> None:
        """Stand here, if the state's step is one to stand at."""
        step = state.step
        time.sleep(self.slow.get(os.environ[WORKER], 0.0))
        time.sleep(self.step_seconds * (self.shared_by / current_world().size if self.shared_by else 1))
        if self.stand or self.uneven:
            import standing_still

            standing_still.hold(self, step)
        if step in self.leaves and (world := current_world()).rank == world.size - 1 > 0:
            raise SystemExit(0)
        at, go = (Path(self.folder, name, str(step)) for name in ("at", "go"))
        if step in self.raises and first_rank_says(not at.exists()):
            at.touch()
            raise ValueError(f"no label for sample {step}")
        if step in self.holds:
            while not first_rank_says(go.exists()):
                at.touch()
                if step % self.commit_every:
                    state.check_host_updates()
                else:
                    state.commit()
                time.sleep(LOOK)
        if step in self.freezes and current_world().rank == 0:
            at.touch()
            wait_for(go)


def first_rank_says(mine: bool) -> bool:
    """Rank 0's answer, everywhere."""
    world = current_world()
    return world.maximum([mine and world.rank == 0]) == [True]


def wait_for(path: Path) -> None:
    """Until somebody has made this file."""
    while not path.exists():
        time.sleep(LOOK)
