"""What a person asks of a run at a terminal, by the same ways as tasks do."""

from __future__ import annotations

import getpass
import sys
from datetime import timedelta

from elastic_runtime.errors import Conflict
from elastic_training.console.command.finding import Chosen
from elastic_training.console.command.output import fit, say


async def scale(chosen: Chosen, workers: str) -> None:
    """Ask for a number of workers.

    Raises:
        InvalidSettings: it is not a size, or outside the run's bounds.
        Conflict: the run is over.
    """
    await _check_alive(chosen)
    asked = await chosen.cluster.ask(chosen.ref, workers, by=_person())
    say(f"run {chosen.ref.name}: {asked.request.workers} workers asked for")


async def notice(chosen: Chosen, worker: str, seconds: float) -> None:
    """Tell a worker that it will be taken.

    Raises:
        InvalidSettings: the run has no such worker.
        Conflict: the run is over.
    """
    await _check_alive(chosen)
    deadline = await chosen.cluster.reclaim(chosen.ref, worker, timedelta(seconds=seconds))
    say(f"run {chosen.ref.name}: {worker} was told that it will be taken at {deadline:%H:%M:%S}Z")


async def stacks(chosen: Chosen) -> None:
    """Have each rank write into the run's log where it stands. Raises Conflict when the run is over."""
    await _check_alive(chosen)
    await chosen.cluster.dump_stacks(chosen.ref)
    say(f"run {chosen.ref.name}: its ranks write into its log where they stand, soon")


def confirmed(chosen: Chosen) -> bool:
    """Whether whoever sits at the terminal wants it ended; blocks."""
    head = chosen.found.headline
    step = "" if head.step is None else f", step {head.step}"
    sys.stderr.write(fit(f"End the run {chosen.ref.name} in {chosen.found.place} ({head.phase}{step})?") + " yes/no: ")
    sys.stderr.flush()
    return sys.stdin.readline(100).strip().lower() == "yes"


async def end(chosen: Chosen) -> None:
    """Ask the run to end."""
    if (status := await chosen.cluster.status(chosen.ref)).phase.final:
        say(f"run {chosen.ref.name} is over: {status.phase}")
        return
    await chosen.cluster.cancel(chosen.ref, f"{_person()} has ended it with elastic-training", None)
    say(f"run {chosen.ref.name} was asked to end")


async def _check_alive(chosen: Chosen) -> None:
    status = await chosen.cluster.status(chosen.ref)
    if status.phase.final:
        raise Conflict(f"the run {chosen.ref.name} is over: {status.phase} ({status.reason})")


def _person() -> str:
    try:
        return fit(getpass.getuser(), 63)
    except (KeyError, OSError):  # In a container, perhaps, whose user has no name.
        return "somebody"
