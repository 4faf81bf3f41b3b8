"""The interface between Airflow's side and the place where the workers run; and a run's life, the same in every place.

Everything that operators, sensors and triggers do to a run goes through a :class:`Cluster`. Triggers await its
methods; operators and sensors, in their worker's thread, call them through :mod:`elastic_training.concurrency.bridge`.

Three fences keep two parties from working on one run:

* the **uid** in a :class:`RunRef` tells two incarnations of a name apart: what was decided about one is never done to
  the other;
* the **owner** is the try of the task that the run works for; a try that has been replaced can neither cancel nor
  delete (:class:`~elastic_runtime.errors.OwnershipLost`);
* the **log lease** is the one watcher that streams the log. A triggerer that was replaced while it stood still finds
  out at its next step, instead of writing lines twice or ending a healthy run.

Every place passes ``tests/contract/test_cluster_contract.py`` and ``…/test_log_contract.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, Conflict, InvalidSettings, OwnershipLost, RunNotFound
from elastic_runtime.printable import printable
from elastic_runtime.retry import within
from elastic_runtime.run.join import TOKEN_LIFETIME, is_joined
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status, WorkerStatus
from elastic_training.clusters.claiming import BeforeTakeover, Claiming
from elastic_training.clusters.document import (
    RunDocument,
    SizeRequest,
    is_worker_name,
    resume_request,
    size_request,
)
from elastic_training.clusters.place import Place, checked
from elastic_training.clusters.types import Claim, LogLease, RunRef, RunSummary, Update

TRIES = 20
"""How often a change is decided anew before this gives up. Others change a document about once a second."""
LONGEST_NAME = 300
"""Characters of who asks."""
Change = Callable[[Callable[[RunDocument], RunDocument], RunDocument | None], Awaitable[RunDocument]]


class Cluster:
    """The runs of one place. Instances are cheap and hold nothing open.

    Methods raise only errors of :mod:`elastic_runtime.errors`: besides their own, ClusterUnavailable when the place
    does not answer.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._tokens: dict[RunRef, str] = {}
        """Of the log leases that were taken here."""

    def set_rank_credentials(self, credentials: Mapping[str, str]) -> None:
        """Give the ranks of the run that :meth:`claim` creates these variables; an adopted run keeps its own.

        Args:
            credentials: of the checkpoint store, which are shown nowhere.

        Raises:
            InvalidSettings: this place cannot hand them over.
        """
        self._place.set_rank_credentials(credentials)

    async def plan(self, spec: RunSpec) -> str:
        """Describe what :meth:`claim` would create, without creating it. Raise InvalidSettings."""
        return await self._place.plan(spec)

    async def claim(
        self, spec: RunSpec, owner: str, *, fresh: bool = False, before_takeover: BeforeTakeover | None = None
    ) -> Claim:
        """Create the run, or adopt the one of this name; idempotent, and atomic against other claims.

        A run that is ending (somebody has cancelled it) is waited for and then replaced. A run that succeeded and
        was never collected is adopted: its result is what this try wants.

        Args:
            spec: of the run to create; an adopted run keeps its own.
            owner: owns the run from now on; who watched it under the owner before finds out.
            fresh: adopt nothing: end a living run first.
            before_takeover: told of the run that is there, before it is adopted or removed; raises nothing.

        Raises:
            ClusterUnavailable: it could not be created now, or the old one does not end.
            InvalidSettings: this place cannot run that spec, or the run of its name is another task's.
        """
        return await Claiming(self._place, spec, owner, fresh=fresh, before_takeover=before_takeover).claim()

    def worker_log(self, name: str, worker: str) -> str:
        """How a person reads the log of one worker of the run of that name: a path, or a command."""
        if is_joined(worker):
            return f"what elastic-join prints on the machine of {worker}"
        return self._place.worker_log(name, worker)

    def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:
        """Words of a command that opens a shell where a worker's ranks run; none: they run on this machine."""
        return self._place.shell_in(worker)

    async def list(self) -> Sequence[RunSummary]:
        """All runs of the place, whoever owns them, the newest first."""
        return sorted(await self._place.list(), key=lambda each: each.created, reverse=True)

    async def find(self, name: str) -> RunRef:
        """The present incarnation. Raises RunNotFound."""
        found = await self._place.read(name)
        return checked(found, found.ref if found else RunRef(name, "")).ref

    async def spec(self, ref: RunRef) -> RunSpec:
        """Return the run's spec, as created. Raise RunNotFound."""
        return (await self._read(ref)).spec

    async def owner(self, ref: RunRef) -> str:
        """Whose it is. Raises RunNotFound."""
        return (await self._read(ref)).owner

    async def collected(self, ref: RunRef) -> bool:
        """Whether its result has been taken. Raises RunNotFound."""
        return (await self._read(ref)).collected

    async def status(self, ref: RunRef) -> Status:
        """How it is doing. Raises RunNotFound.

        ``pending`` until the launcher has spoken; failed with ``launcher_lost`` when the launcher is gone without a
        final status.
        """
        return (await self._place.observe(await self._read(ref))).status

    async def size(self, ref: RunRef) -> int:
        """Workers asked for; 0 once nothing of the run computes, for good or in a pause. Raises RunNotFound."""
        scale = await self._place.scale(ref.name)
        await self._read(ref)  # After it: so it was this incarnation's.
        return scale.workers

    async def ask(
        self, ref: RunRef, request: SizeRequest | int | str, name: str | None = None, by: str = ""
    ) -> SizeRequest:
        """Ask for another size, once.

        The resulting number of workers is stored with the run before anything is changed. So a change such as ``"+2"``
        counts once, from the size that was requested when the run first received it.

        Args:
            ref: of the run.
            request: the size, within the run's bounds, or the workers to give up; or what a user has written as a size.
                The same request is carried out at most once per incarnation, so that a repeated call does not undo
                what others have asked for since. Who asks is in the run's log and events.
            name: of the request for a size that a user has written; None: it is not repeated.
            by: who asks for that, for people. Empty: nobody who is known.

        Returns:
            What it came to, as this call found it: ``done`` if it had been carried out before.

        Raises:
            InvalidSettings: no size, outside the run's bounds, or a worker to give up is not there; or a pause of a run
                without a checkpoint store.
            Conflict: the run is paused, and this does not resume it; or it is not, and this would.
            RunNotFound: no such run, or one that is ending.
        """
        if not isinstance(request, SizeRequest):
            request = size_request(request, name=name or secrets.token_hex(16), by=by)
        return await _ask(self._place, request, lambda: self._read(ref), partial(self._change, ref))

    async def pause(self, ref: RunRef, by: str = "") -> SizeRequest:
        """Ask for a pause: all workers are given up once the state is durable. Harmless when repeated.

        Args:
            ref: of the run.
            by: who asks, for people.

        Raises:
            InvalidSettings: the run has no checkpoint store.
            RunNotFound: no such run, or one that is ending.
        """
        return await self.ask(ref, 0, by=by)

    async def resume(self, ref: RunRef, workers: int | str | None = None, by: str = "") -> SizeRequest:
        """End a pause.

        Args:
            ref: of the run.
            workers: a size within the run's bounds; None: that before the pause.
            by: who asks, for people.

        Raises:
            InvalidSettings: no size, or outside the run's bounds.
            Conflict: the run is not paused.
            RunNotFound: no such run, or one that is ending.
        """
        return await self.ask(ref, resume_request(workers, name=secrets.token_hex(16), by=by))

    async def paused(self, ref: RunRef) -> SizeRequest | None:
        """Return the pause that is asked for and goes on. None: there is none. Raises RunNotFound."""
        found = await self._read(ref)
        return await _pause_of(self._place, found)

    async def known_request(self, ref: RunRef, name: str) -> SizeRequest | None:
        """Return what is known of a request for a size. None: unknown, or too old. Raise RunNotFound."""
        return (await self._read(ref)).requested(name)

    async def reclaim(self, ref: RunRef, worker: str, grace: timedelta) -> datetime:
        """Send a reclaim notice to a worker, as a cloud would: a drill.

        Returns:
            The deadline in the notice.

        Raises:
            InvalidSettings: the run has no such worker.
            RunNotFound: no such run.
        """
        found = await self._read(ref)
        await _check_present(self._place, found, worker)
        if is_joined(worker):
            problem = f"{worker} joined by hand, from another machine"
            raise InvalidSettings("worker", problem, "End its elastic-join there, with SIGTERM or Ctrl-C")
        if not await self._place.reclaim(found, worker, grace):
            raise _no_worker(found, worker, ())
        return utc_now() + grace

    async def join_command(self, ref: RunRef, lifetime: timedelta = TOKEN_LIFETIME) -> str:
        """Return a command with a new token, by which a machine may join the run, once. Secret.

        Args:
            ref: of the run.
            lifetime: after which it is not valid any more.

        Raises:
            InvalidSettings: machines may not join this run.
            Conflict: its launcher does not listen, or there are too many tokens.
            RunNotFound: no such run.
        """
        found = await self._read(ref)
        if found.spec.join is None:
            remedy = (
                "Write workers=Workers(join=Join()) in its task; on this machine with an address, in pods with networks"
            )
            raise InvalidSettings("workers.join", f"machines may not join the run {ref.name}", remedy)
        return await self._place.join_command(found, lifetime)

    async def dump_stacks(self, ref: RunRef) -> None:
        """Have each rank write into the run's log where it stands, soon; for a stalled run. Raises RunNotFound."""
        asked = secrets.token_hex(8)
        await self._change(ref, lambda found: replace(found, stacks=asked))

    async def cancel(self, ref: RunRef, reason: str, owner: str | None) -> None:
        """Ask the run to end, and return without waiting; its documents stay. Harmless when repeated or over.

        Args:
            ref: of the run.
            reason: for people.
            owner: whose run is ended; None: whosever it is by then.

        Raises:
            OwnershipLost: somebody else owns the run.
        """

        def asked(found: RunDocument) -> RunDocument:
            if owner is not None:
                found.check_owner(owner)
            return found.asked_to_end(reason)

        with suppress(RunNotFound):
            await self._place.tidy(await self._change(ref, asked))

    async def collect(self, ref: RunRef, owner: str) -> None:
        """Note that the result has been taken: the next claim replaces the run instead of adopting its result.

        Raises:
            OwnershipLost: somebody else owns the run.
        """
        with suppress(RunNotFound):
            await self._place.tidy(await self._change(ref, lambda found: found.taken(owner)))

    async def delete(self, ref: RunRef, owner: str) -> None:
        """End the run if it is alive, and remove all of it but its checkpoints. Harmless when it is gone.

        Raises:
            OwnershipLost: somebody else owns the run.
            ClusterUnavailable: it does not end.
        """
        times, now = self._place.times, asyncio.get_running_loop().time
        began, trouble = now(), "see what its processes wait for"
        async for _ in within(times.delete, times.pause):
            try:
                found = await self._place.read(ref.name)
                if found is None or found.ref != ref:
                    return
                if not found.going:
                    found.check_owner(owner)
                if await self._place.remove(found, forced=now() >= began + times.delete_order):
                    return
            except (Conflict, RunNotFound):
                continue  # Somebody else was faster: look again.
            except ClusterUnavailable as error:
                trouble = str(error)
        raise ClusterUnavailable(
            f"the run {ref.name} {self._place.where} is being deleted, and not gone after {times.delete:g} s: {trouble}"
        )

    async def take_log_lease(self, ref: RunRef, owner: str) -> LogLease:
        """Become the one who streams the log; who did before finds out in :meth:`advance`.

        Raises:
            OwnershipLost: somebody else owns the run.
            RunNotFound: no such run.
        """
        token = secrets.token_hex(8)
        found = await self._change(ref, lambda found: found.leased(owner, token, utc_now()))
        self._tokens[ref] = token
        return LogLease(token, found.cursor, found.spec.timing.lease, found.told)

    async def renew_lease(self, ref: RunRef, token: str) -> None:
        """Tell the run that somebody still waits for it.

        Raises:
            OwnershipLost: somebody else holds the log lease, or is about to.
            RunNotFound: no such run.
        """
        known = self._place.cached(ref, trusted=False)
        await self._change(ref, lambda found: found.kept(token, utc_now()), known)

    async def advance(self, ref: RunRef, token: str, cursor: str, told: str | None = None) -> None:
        """Note that the log has been streamed up to ``cursor``, and that somebody still waits, as :meth:`renew_lease`.

        With ``told``, also how much of what happened was told, for the next :class:`LogLease`.

        Raises:
            OwnershipLost: somebody else holds the log lease.
            RunNotFound: no such run.
        """
        known = self._place.cached(ref, trusted=False)
        await self._change(ref, lambda found: found.kept(token, utc_now(), cursor, told), known)

    async def log_lease_holder(self, ref: RunRef) -> str | None:
        """Token of the present log lease, perhaps from what this process has just seen. Raises RunNotFound."""
        found = self._place.cached(ref, trusted=True)
        if found is None or found.token != self._tokens.get(ref):
            # Or the log lease that was taken here has not come round through the watch yet, on a busy machine.
            found = await self._read(ref)
        return found.token

    def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        """Updates until the run is over; the last one is its final status, after the last line of its log.

        Each place has its own cheapest way: files polled here, one shared watch per namespace on Kubernetes.

        Args:
            ref: of the run.
            cursor: where to begin in the log; None: no log at all.
            beat: seconds of silence after which a :class:`~elastic_training.clusters.types.Quiet` comes.

        Raises:
            RunNotFound: the run is gone.
            ClusterUnavailable: watch again, later, from the last cursor.
        """
        return self._place.watch(ref, cursor, beat)

    async def _read(self, ref: RunRef) -> RunDocument:
        return checked(await self._place.read(ref.name), ref)

    async def _change(
        self, ref: RunRef, decide: Callable[[RunDocument], RunDocument], known: RunDocument | None = None
    ) -> RunDocument:
        """Decide on what was read, and set it, again and again until nobody was faster; the document as it is now.

        ``decide`` says what shall be there, by what is, and may raise. ``known`` is the document as it was read lately,
        which spares a request if it has not changed since.
        """
        for _ in range(TRIES):
            found = known or await self._read(ref)
            try:
                wanted = decide(found)
                return found if wanted == found else await self._place.change(found, wanted)
            except Conflict:
                known = None
            except OwnershipLost:
                if known is None:
                    raise
                known = None  # It was old, perhaps.
        raise ClusterUnavailable(f"the run {ref.name} {self._place.where} is changed by others all the time")


# Asking for a size, the same in every place: noted, then carried out, and never twice.


async def _ask(
    place: Place, request: SizeRequest, read: Callable[[], Awaitable[RunDocument]], change: Change
) -> SizeRequest:
    """Change the size as :meth:`Cluster.ask <elastic_training.clusters.cluster.Cluster.ask>` does.

    Args:
        place: where the run is.
        request: as the user wrote it.
        read: the run's document.
        change: it, as what the function makes of it.
    """
    found = await read()
    for _ in range(TRIES):
        scale = await place.scale(found.ref.name)
        # After it: so that was this incarnation's, and its version is the condition for changing it.
        found = await read()
        noted = found.requested(request.name)
        if noted is not None and noted.done:
            return noted
        pause = None if noted else await _checked_pause(place, request, found)
        with suppress(Conflict):
            if noted is None:
                resolved = await _resolved(place, request, pause.workers if pause else scale.workers, found)
                found = await change(lambda current: current.asked_for(resolved), found)  # noqa: B023  # called at once
                noted = found.requested(request.name) or resolved
            for worker in request.release:  # First: then those that go for the smaller size are these.
                await place.reclaim(found, worker, timedelta(seconds=found.spec.timing.leave_grace))
            if not noted.pause:  # Its workers go when the launcher has their state durable, and not before.
                await place.resize(found, scale, noted.workers)
            # Killed before this line, the next call sets the same size again; the other way round, it never would.
            await change(lambda current: current.resized(request.name), found)
            return noted
    raise ClusterUnavailable(f"the size of {found.ref.name} is changed by others all the time")


async def _pause_of(place: Place, found: RunDocument) -> SizeRequest | None:
    """The pause of a run, unless its launcher has refused it."""
    if found.pause is None:
        return None
    told = (await place.observe(found)).status.pause
    return None if told and told.request == found.pause.name and told.refused else found.pause


async def _checked_pause(place: Place, request: SizeRequest, found: RunDocument) -> SizeRequest | None:
    """The present pause, if there is one and the request agrees with it. Raises InvalidSettings or Conflict."""
    name, pause = found.ref.name, await _pause_of(place, found)
    if request.pause and not found.spec.can_pause:
        problem = f"the run {name} has no checkpoint store, so a pause would lose its state"
        raise InvalidSettings("checkpoint_uri", problem, 'Write checkpoint_uri="s3://bucket/runs" in the training')
    if request.resume and pause is None:
        raise Conflict(f"the run {name} is not paused")
    if pause is not None and not (request.pause or request.resume):
        by = f" by {printable(pause.by)}" if pause.by else ""
        raise Conflict(f"the run {name} is paused{by}: resume it, with the number of workers that you want")
    return pause


async def _resolved(place: Place, request: SizeRequest, present: int, found: RunDocument) -> SizeRequest:
    """Return the request with the number of workers that it comes to now. Raise InvalidSettings or RunNotFound."""
    if not present and (request.relative or not request.size):
        raise RunNotFound(f"the run {found.ref.name} has no workers any more")
    target = request.target(present, found.spec.workers)
    for worker in request.release:
        await _check_present(place, found, worker)
    now = utc_now()
    kept = now.replace(microsecond=now.microsecond // 1000 * 1000)  # As the document will have it.
    came_to = replace(request, size="", clip=False, release=(), workers=target)
    return replace(came_to, asked=kept, done=False, by=request.by[:LONGEST_NAME])


async def _check_present(place: Place, found: RunDocument, worker: str) -> None:
    """Raises InvalidSettings when the run has no such worker."""
    status = (await place.observe(found)).status
    present = [each.name for each in status.workers if not each.state.gone]
    # A status may name anything, and a name becomes that of a file, or of a pod.
    if worker not in present or not is_worker_name(worker):
        raise _no_worker(found, worker, present)


def _no_worker(found: RunDocument, worker: str, present: Sequence[str]) -> InvalidSettings:
    known = printable(", ".join(present) or "none")
    return InvalidSettings("worker", f"the run {found.ref.name} has no worker {worker!r}", f"Name one of: {known}")
