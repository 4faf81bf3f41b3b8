"""Where runs of ``make chaos`` are, and what that means for a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tests import ray_run, slurm_run, spark_run
from tests.chaos.plan import FAULTS, FaultKind
from tests.local.harness import ScriptedRun
from tests.local.pooled import GIVEN_BACK, Pool, PooledRun

RoundRun = Any
"""A :class:`ScriptedRun`, or a run that can be hit as one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where they are."""

    make: Callable[..., RoundRun] = ScriptedRun
    """Called as :class:`ScriptedRun`; the run is not started."""
    faults: tuple[FaultKind, ...] = FAULTS
    """What is done to them."""
    limit: float = 180.0
    """Seconds after which a round is given up."""
    grace: float = 1.0
    """Seconds in which what is ending may end when the run is over."""
    own_engines: bool = True
    """Whether engines of tests can be had there."""


POOLED = 20
"""Workers of the pool: enough for four rounds at a time, so that none of them has to give one to another."""
HERE = Place()
"""Launcher and workers are processes of this machine."""


@contextmanager
def _pods(folder: Path) -> Iterator[Place]:
    # Needs the provider's environment, which the others do without.
    with import_module("tests.chaos.pods").pods(folder) as make:
        yield Place(make, (*FAULTS, FaultKind.DELETE_LAUNCHER), limit=400.0, grace=90.0, own_engines=False)


@contextmanager
def _pool(folder: Path) -> Iterator[Place]:
    with Pool(folder / "pool", POOLED).kept() as pool:
        yield Place(partial(PooledRun, pool), grace=GIVEN_BACK, own_engines=False)


def _with(run: type[ScriptedRun]) -> Callable[[Path], AbstractContextManager[Place]]:
    return lambda _: nullcontext(Place(run))


PLACES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "local": _with(ScriptedRun),
    "slurm": _with(slurm_run.SharingRun),
    "spark": _with(spark_run.SharingRun),
    "ray": _with(ray_run.SharingRun),
    "kubernetes": _pods,
    "pool": _pool,
}
"""Called with the folder in which the rounds are."""
