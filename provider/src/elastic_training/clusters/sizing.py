"""Asking for a size, the same in every place: noted, then carried out, and never twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, Conflict, InvalidSettings, RunNotFound
from elastic_training.clusters.document import RunDocument, SizeRequest
from elastic_training.clusters.place import Place, Scale
from elastic_training.clusters.wish import SizeWish

TRIES = 20
"""How often a change is decided anew before this gives up. Others change a document about once a second."""
LONGEST_NAME = 300
"""Characters of who asks."""

Change = Callable[[Callable[[RunDocument], RunDocument], RunDocument | None], Awaitable[RunDocument]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a size, and what this call did about it."""

    request: SizeRequest
    new: bool
    """Whether this call carried it out."""


async def ask(
    place: Place, wish: SizeWish, name: str, read: Callable[[], Awaitable[RunDocument]], change: Change, by: str = ""
) -> Asked:
    """See :meth:`Cluster.ask <elastic_training.clusters.cluster.Cluster.ask>`.

    Args:
        place: where the run is.
        wish: for a size.
        name: of the request.
        read: the run's document.
        change: it, as what the function makes of it.
        by: who asks, for people.
    """
    found = await read()
    for _ in range(TRIES):
        scale = await place.scale(found.ref.name)
        # After it: so that was this incarnation's, and its version is the condition for changing it.
        found = await read()
        request = found.requested(name)
        if request is not None and request.done:
            return Asked(request, new=False)
        with suppress(Conflict):
            if request is None:
                request = await _understood(place, wish, name, scale, found, by)
                noted = request
                found = await change(lambda current: current.asked_for(noted), found)  # noqa: B023  # called at once
                request = found.requested(name) or noted
            for worker in wish.release:  # First: then those that go for the smaller size are these.
                await place.reclaim(found, worker, timedelta(seconds=found.spec.timing.leave_grace))
            await place.resize(found, scale, request.workers)
            # Killed before this line, the next call sets the same size again; the other way round, it never would.
            found = await change(lambda current: current.resized(name), found)
            return Asked(found.requested(name) or request, new=True)
    raise ClusterUnavailable(f"the size of {found.ref.name} is changed by others all the time")


async def _understood(
    place: Place, wish: SizeWish, name: str, scale: Scale, found: RunDocument, by: str
) -> SizeRequest:
    if wish.relative and not scale.workers:
        raise RunNotFound(f"the run {found.ref.name} has no workers any more")
    target = wish.target(scale.workers, found.spec.workers)
    for worker in wish.release:
        await check_present(place, found, worker)
    now = utc_now()
    kept = now.replace(microsecond=now.microsecond // 1000 * 1000)  # As the document will have it.
    return SizeRequest(name, target, kept, done=False, by=by[:LONGEST_NAME])


async def check_present(place: Place, found: RunDocument, worker: str) -> None:
    """Raises InvalidSettings when the run has no such worker."""
    status = (await place.observe(found)).status
    present = [each.name for each in status.workers if not each.state.gone]
    if worker not in present:
        raise no_worker(found, worker, present)


def no_worker(found: RunDocument, worker: str, present: Sequence[str]) -> InvalidSettings:
    """The error."""
    known = ", ".join(present) or "none"
    return InvalidSettings("worker", f"the run {found.ref.name} has no worker {worker!r}", f"Name one of: {known}")
