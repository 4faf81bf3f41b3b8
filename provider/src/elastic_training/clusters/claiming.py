"""A claim carried out: what :mod:`~elastic_training.clusters.claims` decides, step by step, until a try has its run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, Conflict, InvalidSettings, RunNotFound
from elastic_runtime.retry import within
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status
from elastic_training.clusters.claims import Action, Observed, Step, decide_claim
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.place import Place
from elastic_training.clusters.types import Claim, ClaimOutcome

BeforeTakeover = Callable[[RunDocument, Status], Awaitable[object]]
"""Told of a run as it is before another try adopts or removes it."""


class Claiming:
    """One call of :meth:`Cluster.claim <elastic_training.clusters.cluster.Cluster.claim>`; its arguments."""

    def __init__(
        self, place: Place, spec: RunSpec, owner: str, *, fresh: bool, before_takeover: BeforeTakeover | None
    ) -> None:
        self._place, self._spec, self._owner, self._fresh = place, spec, owner, fresh
        self._before_takeover = before_takeover
        self._since: dict[tuple[str, bool], float] = {}
        """When each document was first seen as complete, or as incomplete."""

    async def claim(self) -> Claim:
        """Until the try has its run. Raises as :meth:`Cluster.claim` does."""
        times = self._place.times
        before, trouble = "", "the one before was asked to end, and has not ended"
        async for _ in within(times.claim, times.pause):
            try:
                found = await self._place.read(self._spec.name)
                step, seen = await self._next_step(found)
                before = before or step.note
                if found and seen and step.action in (Action.ADOPT, Action.REMOVE):
                    await self._report(found, seen.status)
                if claim := await self._take(step, found, before):
                    return claim
            except (Conflict, RunNotFound):
                continue  # Somebody else was faster, or it went while it was looked at.
            except ClusterUnavailable as error:
                trouble = str(error)
        raise ClusterUnavailable(
            f"the run {self._spec.name} {self._place.where} could not be claimed in {times.claim:g} s: {trouble}"
        )

    async def _next_step(self, found: RunDocument | None) -> tuple[Step, Observed | None]:
        seen, waited, now = None, 0.0, asyncio.get_running_loop().time()
        if found is not None:
            waited = now - self._since.setdefault((found.ref.uid, found.complete), now)
            if found.complete and not found.going:
                seen = await self._place.observe(found)
        times = self._place.times
        step = decide_claim(
            found, seen, self._spec, self._owner, fresh=self._fresh, waited=waited, now=utc_now(), times=times
        )
        return step, seen

    async def _report(self, found: RunDocument, status: Status) -> None:
        """Once, and not of a run that is this try's already."""
        if self._before_takeover and found.owner != self._owner:
            await self._before_takeover(found, status)
            self._before_takeover = None

    async def _take(self, step: Step, found: RunDocument | None, before: str) -> Claim | None:
        """Carry it out; None: there has to be another look."""
        if step.action is Action.CREATE:
            created = await self._place.create(self._spec, self._owner)
            outcome = ClaimOutcome.REPLACED if before else ClaimOutcome.CREATED
            return Claim(created.ref, outcome, before or "no run of this name was there")
        assert found is not None
        match step.action:
            case Action.REFUSE:
                raise InvalidSettings(
                    "task_id",
                    f"the run {self._spec.name} {self._place.where} belongs to {step.note}",
                    "Remove that run, or give this task another name",
                )
            case Action.ADOPT:
                adopted = await self._place.change(found, found.adopted(self._owner, utc_now()))
                differing = self._place.differing(adopted, self._spec)
                return Claim(adopted.ref, ClaimOutcome.ADOPTED, step.note, differing)
            case Action.ASK_TO_END:
                await self._place.change(found, found.asked_to_end("a new try of the task takes its place"))
            case Action.REMOVE:
                await self._place.remove(found, forced=False)
        return None
