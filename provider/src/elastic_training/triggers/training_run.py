"""Waits in the triggerer for a training run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_plain
from elastic_runtime.errors import ElasticError, FailureKind, OwnershipLost, RunNotFound
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status_failure import without_quotes
from elastic_training.airflow.versions import task_state, times_out_deferred_tasks, triggers_are_told_of_kills
from elastic_training.archive import Keeper
from elastic_training.archive.document import without_curves
from elastic_training.clusters.registry import cluster_called
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.following.follow import Ending, Followed, Follower
from elastic_training.identity.ownership import read_owner
from elastic_training.listeners import listeners_of
from elastic_training.redaction.free_text import without_logs, without_secrets
from elastic_training.redaction.values import Secrets
from elastic_training.triggers.cleared import until_cleared
from elastic_training.triggers.settling import Settling

KILL_DELAY = 5.0
"""Seconds between word that the task was killed and the run's cancellation. Below Airflow 3.4 it also comes where
another triggerer takes the trigger over, which may lease the log meanwhile; then the run goes on. A cleared task's next
try ends the run itself, so it makes no difference which of the two is first. Well under Airflow's ``[triggerer]
on_kill_timeout`` (30 s)."""
KEEP_TIMEOUT = 60.0
"""Seconds that a kill waits for the run's end, to keep its final status."""
END_TIMEOUT = 20.0
"""Seconds that a trigger waits for the end of a run at its deadline, before it fires; a checkpoint takes up to 10."""
TIMED_OUT = "execution_timeout has passed"
"""Why a run is cancelled whose task Airflow 2 ends at its ``execution_timeout``, with this trigger."""
SPEC_TIMEOUT = 10.0
"""Seconds for the run's spec, at its end."""
_DEFERRED = "deferred"
_kills: set[asyncio.Task[None]] = set()
"""Kills under way, held here because an event loop itself holds its tasks only weakly."""


class TrainingRunTrigger(BaseTrigger):
    """Streams the run's log into the task's, and fires one event when the run is over.

    The event's payload is JSON: ``ending`` (an :class:`~elastic_training.following.follow.Ending`), ``status`` (the
    last status document, without its curves; so the result does not depend on the run's still being there),
    ``detail``, and which run it is about: ``name``, ``uid``, ``owner`` (``dag.test()`` hands over nothing but the
    event).

    Args:
        cluster: its own name, see :func:`~elastic_training.clusters.registry.own_name`.
        name: of the run.
        uid: of its incarnation.
        owner: whose try waits.
        deadline: RFC 3339; None: none. Absolute, so that a triggerer's restart does not move it.
        log_ranks: whose lines are wanted of the log; None: all.
        callbacks: dotted paths of :class:`~elastic_training.listeners.callbacks.TrainingCallback` classes.
        keeping: ``checkpoints``, ``conn_id`` and ``price_book`` of :class:`~elastic_training.archive.Keeper`, for a run
            that is killed.
    """

    def __init__(
        self,
        cluster: str,
        name: str,
        uid: str,
        owner: str,
        deadline: str | None = None,
        log_ranks: Sequence[int] | None = None,
        callbacks: Sequence[str] = (),
        keeping: Mapping[str, str | None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in Airflow
        self.cluster = cluster
        self.ref = RunRef(name, uid)
        self.owner = owner
        self.deadline = deadline
        self.log_ranks = log_ranks
        self.callbacks = tuple(callbacks)
        self.keeping = {name: value for name, value in (keeping or {}).items() if value}
        self._follower: Follower | None = None
        self._fired = False
        self._cleared = False
        self._ends = False
        """Its run, at the deadline."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Only what differs from the defaults."""
        kwargs: dict[str, Any] = {
            "cluster": self.cluster,
            "name": self.ref.name,
            "uid": self.ref.uid,
            "owner": self.owner,
        }
        if self.deadline is not None:
            kwargs["deadline"] = self.deadline
        if self.log_ranks is not None:
            kwargs["log_ranks"] = list(self.log_ranks)
        if self.callbacks:
            kwargs["callbacks"] = list(self.callbacks)
        if self.keeping:
            kwargs["keeping"] = dict(self.keeping)
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Follow the run, and yield one event."""
        settling = Settling()
        deadline = None if self.deadline is None else datetime.fromisoformat(self.deadline)
        self._follower = Follower(
            cluster_called(self.cluster),
            self.ref,
            self.owner,
            self.log,
            deadline=deadline,
            ranks=self.log_ranks,
            listeners=listeners_of(self.owner, self.callbacks),
        )
        looking = asyncio.create_task(self._end_if_cleared(), name=f"looks after the task of {self.ref.name}")
        try:
            followed = await self._follower.follow()
        finally:
            looking.cancel()
        if followed.ending is Ending.SUPERSEDED or self._cleared:
            # An event, or an end without one, would end the task, which now belongs to somebody else's watch.
            why = "the task was cleared" if self._cleared else followed.detail
            self.log.info("%s; this trigger stands by until Airflow removes it", why)
            await asyncio.get_running_loop().create_future()
        followed = await self._timed_out(followed)
        await settling.over()
        self._fired = True
        yield TriggerEvent(self._event(await self._hidden(followed)))  # type: ignore[no-untyped-call]  # untyped in Airflow

    async def _timed_out(self, followed: Followed) -> Followed:
        """With Airflow 2, end the run at its deadline: whether the task has a worker in time is not certain."""
        if not times_out_deferred_tasks():
            return followed
        if followed.ending is Ending.DEADLINE:
            self._ends = True
            done, _ = await asyncio.wait([self._begin(self._end(TIMED_OUT))], timeout=END_TIMEOUT)
            if error := next((each.exception() for each in done), None):
                self._ends = False
                self.log.warning("The run %s was not cancelled at its deadline: %s", self.ref.name, printable(error))
        elif followed.status and followed.status.failure is FailureKind.CANCELLED and TIMED_OUT in followed.detail:
            return replace(followed, ending=Ending.DEADLINE)  # An earlier trigger has, and could not fire any more.
        return followed

    async def on_kill(self) -> None:
        """The task was marked, or cleared, or Airflow only believes so: cancel, unless the run has a new master.

        Airflow 3.3 repeats its word about once a second until the trigger has ended, and every repetition cancels this
        coroutine. So the kill is a task of its own, which goes on without it as long as the triggerer does.
        """
        await self._apart(self._kill())

    async def cleanup(self) -> None:
        """The trigger ends, for whatever reason: below Airflow 3.3, which calls no :meth:`on_kill`, look for it.

        A task that is still deferred has only lost this triggerer; any other was marked or cleared. As there, every
        repetition of Airflow's word cancels this coroutine.
        """
        if not (self._fired or self._ends or triggers_are_told_of_kills()):
            await self._apart(self._kill_unless_deferred())

    async def _end_if_cleared(self) -> None:
        """Cancel the run once the task has no state any more; any other Airflow itself tells this trigger of."""
        if (owner := read_owner(self.owner)) is None:
            return
        await until_cleared(owner)
        self._cleared = True
        self.log.warning("The task was cleared, and is not scheduled yet: its run is ended")
        await self._apart(self._kill())

    async def _apart(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        kill = asyncio.create_task(work, name=f"kill of {self.ref.name}")
        _kills.add(kill)
        kill.add_done_callback(_kills.discard)
        return kill

    async def _kill_unless_deferred(self) -> None:
        owner = read_owner(self.owner)
        if owner is None:
            return
        try:
            state = await task_state(owner.dag_id, owner.run_id, owner.task_id, owner.map_index)
        except Exception as error:  # noqa: BLE001  # a database's, a network's, Airflow's: the run must not pay for any
            self.log.warning("Airflow does not say what became of the task (%s): its run is not cancelled", error)
            return
        if state != _DEFERRED:
            await self._kill()

    async def _kill(self) -> None:
        await asyncio.sleep(KILL_DELAY)
        late = self.deadline is not None and utc_now() >= datetime.fromisoformat(self.deadline)
        await self._end(TIMED_OUT if late and times_out_deferred_tasks() else "the task was ended by a user")

    async def _end(self, reason: str) -> None:
        cluster = cluster_called(self.cluster)
        token = self._follower.token if self._follower else None
        try:
            if await cluster.log_lease_holder(self.ref) != token:
                self.log.info("Another process watches the run %s now: it is not cancelled", self.ref.name)
                return
            await cluster.cancel(self.ref, reason, self.owner)
        except OwnershipLost as lost:
            self.log.info("%s: it is not cancelled", lost)
        except RunNotFound:
            return
        names = ("checkpoints", "conn_id", "price_book")
        keeper = Keeper(cluster, self.cluster, self.log, *map(self.keeping.get, names))
        await keeper.keep_at_end(self.ref, KEEP_TIMEOUT)

    async def _hidden(self, followed: Followed) -> Followed:
        """The same without the run's secrets: Airflow logs the event, and keeps it in its database."""
        if followed.status is None:
            return followed
        try:
            async with asyncio.timeout(SPEC_TIMEOUT):
                spec = await cluster_called(self.cluster).spec(self.ref)
        except (ElasticError, TimeoutError):  # Nothing says what its secrets are; the rest of the status has none.
            status = without_logs(followed.status)
            return replace(followed, status=status, detail=without_quotes(followed.detail))
        return await in_daemon(_without_secrets_of, spec, followed)

    def _event(self, followed: Followed) -> dict[str, Any]:
        # Airflow keeps the event in its database.
        status = followed.status and without_curves(followed.status)
        return {
            "ending": followed.ending.value,
            "status": None if status is None else to_plain(status),
            "detail": followed.detail,
            "name": self.ref.name,
            "uid": self.ref.uid,
            "owner": self.owner,
        }


def _without_secrets_of(spec: RunSpec, followed: Followed) -> Followed:
    hide = Secrets.of(spec).hide
    return replace(
        followed,
        status=followed.status and without_secrets(followed.status, hide),
        detail=hide(followed.detail),
    )
