"""The engines that have to keep the contract, and what their ranks run in its tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from elastic_runtime.run.spec import RecoverySpec
from tests.local.harness import ScriptedRun
from tests.paced import Script

DISTRIBUTION = Path(__file__).parent / "distribution"
"""To be on the path of every process of a run with the engine ``hub``."""
PACE = {each.name for each in fields(Script)} - {"name", "arguments"}


@dataclass(frozen=True)
class Kind:
    """An engine."""

    engine: str
    script: str
    """Whose weights are the same to the last bit whatever the worlds, 7 steps an epoch."""
    path: tuple[Path, ...] = ()
    in_place: bool = False
    """Whether its script stays in its loop at planned changes."""
    restarts: bool = False
    """Whether ranks are started anew for each world, at the script's newest checkpoint, instead of going on to it."""
    variant: bool = False
    """Whether it differs little from another, and is left to `make test-long`."""

    @property
    def name(self) -> str:
        """Of the engine, and of how it is used."""
        return f"{self.engine}-in-place" if self.in_place else self.engine

    @property
    def environment(self) -> dict[str, str]:
        """Of its ranks."""
        return {"IN_PLACE": "1"} if self.in_place else {}

    def run(
        self, base: Path, workers: tuple[int, int, int], place: Callable[..., Any] = ScriptedRun, **more: Any
    ) -> Any:
        """One of ``place`` that is not started; ``more``: of the script's pace, or of the RunSpec."""
        pace = {name: more.pop(name) for name in PACE if name in more}
        script = Script(self.script, **{"epochs": 3, **pace})
        spec = {
            "recovery": RecoverySpec(backoff=0.5),
            "environment": self.environment,
            **more,
        }
        return place(base, script, workers, path=self.path, engine=self.engine, **spec)


HOROVOD = Kind("horovod", "doubles.py")
HUB = Kind("hub", "tally.py", (DISTRIBUTION,))
TORCH = Kind("torch", "parallel.py")
TORCH_IN_PLACE = Kind("torch", "parallel.py", in_place=True)
TORCHRUN = Kind("torchrun", "restarting.py", restarts=True)
HOROVODRUN = Kind("horovodrun", "restarting_horovod.py", restarts=True, variant=True)
KINDS = (HUB, HOROVOD, TORCH, TORCH_IN_PLACE, TORCHRUN, HOROVODRUN)
