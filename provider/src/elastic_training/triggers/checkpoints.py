"""Tells an asset of each durable checkpoint of a training, while it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.status import Checkpoint
from elastic_training.airflow.versions import event_trigger
from elastic_training.clusters.registry import cluster_called, own_name_in_loop
from elastic_training.clusters.types import RunSummary
from elastic_training.identity.deployment import deployment
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.triggers.checkpoint_cursor import Cursor

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger
else:
    BaseEventTrigger = event_trigger()

INTERVAL = 10.0
"""Seconds between two looks at the runs of a cluster."""
CURSOR_KEY = "checkpoints"
"""In the asset's state store."""
_LONGEST = 300.0
"""Seconds between two looks at a cluster that does not answer."""
_log = logging.getLogger(__name__)


class CheckpointTrigger(BaseEventTrigger):
    """An event for each durable checkpoint of a task's runs, in any of its DAG's runs, mapped ones too.

    Its payload: ``dag_id``, ``run_id``, ``task_id``, ``map_index`` of the training; ``run`` and ``uid``; ``uri``,
    ``step`` and ``time`` of the checkpoint. Of several that were written between two looks, the newest.

    All that watch one cluster at one interval share a list of its runs (Airflow 3.3; each its own before). A run's
    status is read when the list says that there is something new. What was told is kept with the asset (Airflow 3.3),
    so that a triggerer's restart repeats nothing; before, a restarted one tells what is written from then on.

    Args:
        dag_id: of the training's DAG.
        task_id: of the training's task.
        asset: that is watched, by its name.
        cluster: as of the training.
        interval: seconds between two looks.
    """

    def __init__(
        self, *, dag_id: str, task_id: str, asset: str, cluster: str = "local", interval: float = INTERVAL
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in Airflow
        self.dag_id = dag_id
        self.task_id = task_id
        self.asset = asset
        self.cluster = cluster
        self.interval = interval
        self._news: dict[str, str] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """All of it: Airflow tells triggers of assets apart by what they are made of."""
        kwargs = {
            "dag_id": self.dag_id,
            "task_id": self.task_id,
            "asset": self.asset,
            "cluster": self.cluster,
            "interval": self.interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    def shared_stream_key(self) -> Hashable | None:
        """Whoever watches the same cluster as often."""
        return (CheckpointTrigger.__qualname__, self.cluster, self.interval)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncGenerator[Sequence[RunSummary], None]:
        """All runs of the cluster, again and again; a cluster that does not answer is asked less often."""
        name, interval = kwargs["cluster"], kwargs["interval"]
        retry = Retry(RetryPolicy(interval, max(interval, _LONGEST)))
        place = None
        while True:
            try:
                place = place or await own_name_in_loop(name)
                runs = await cluster_called(place).list()
            except Exception as error:  # noqa: BLE001  # a watcher that ends is not begun again by anybody
                _log.warning("The runs in %s cannot be listed: %s", printable(name, 80), printable(error))
                place = None  # It may lead elsewhere by now.
                await retry.pause()
                continue
            retry.succeeded()
            yield runs
            await asyncio.sleep(interval)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Sequence[RunSummary]]
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Events for what is new in the lists."""
        if (cursor := await self._read_cursor()) is None:
            await self._write_cursor(cursor := Cursor(utc_now()))
        async for runs in shared_stream:
            mine = [(owner, each) for each in runs if (owner := self._owner(each))]
            listed = {each.ref.name for _, each in mine}
            self._news = {each.ref.uid: self._news.get(each.ref.uid, "") for _, each in mine}
            for owner, each in mine:
                newest = await self._newest(each, cursor)
                if newest is None or not cursor.is_new(each.ref.name, newest):
                    continue
                # Another triggerer may have told it, while this one stood still.
                cursor = await self._read_cursor() or cursor
                if cursor.is_new(each.ref.name, newest):
                    yield TriggerEvent(_payload(owner, each, newest))  # type: ignore[no-untyped-call]  # as above
                    await self._write_cursor(cursor := cursor.with_reported(each.ref.name, newest, listed))

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Below Airflow 3.3, where nothing is shared."""
        async with aclosing(self.open_shared_stream(self.serialize()[1])) as runs:
            async for event in self.filter_shared_stream(runs):
                yield event

    def _owner(self, each: RunSummary) -> Owner | None:
        """Whose run it is, if it is of the task."""
        owner = read_owner(each.owner)
        if owner is None or (owner.dag_id, owner.task_id) != (self.dag_id, self.task_id):
            return None
        return owner if owner.deployment == _deployment() else None

    async def _newest(self, each: RunSummary, cursor: Cursor) -> Checkpoint | None:
        """The run's newest checkpoint, if its status says something that was not read yet."""
        news, known = each.headline.news, self._news[each.ref.uid]
        past = each.headline.phase.final and each.headline.updated <= cursor.since
        if news == known or (past and each.ref.name not in cursor.told):
            return None
        try:
            status = await cluster_called(await own_name_in_loop(self.cluster)).status(each.ref)
        except Exception as error:  # noqa: BLE001  # a watcher that ends is not begun again by anybody
            self.log.warning("The status of %s cannot be read: %s", each.ref.name, printable(error))
            return None
        self._news[each.ref.uid] = news
        return status.checkpoint

    @property
    def _store(self) -> Any | None:
        """Of the asset; None below Airflow 3.3."""
        stores = getattr(self, "asset_state_store", None)
        if stores is None:
            return None
        from airflow.sdk.definitions.asset import AssetNameRef

        return stores[AssetNameRef(self.asset)]

    async def _read_cursor(self) -> Cursor | None:
        try:
            plain = await self._store.aget(CURSOR_KEY) if self._store else None
            return None if plain is None else from_plain(Cursor, plain)
        except InvalidDocument as error:
            self.log.warning("Cannot read the sent events of %s: %s", printable(self.asset), error)
        except Exception as error:  # noqa: BLE001  # Airflow's: a watcher that ends is not begun again by anybody
            self.log.warning("The state of %s cannot be read: %s", printable(self.asset), printable(error))
        return None

    async def _write_cursor(self, cursor: Cursor) -> None:
        try:
            if self._store:
                await self._store.aset(CURSOR_KEY, to_plain(cursor))
        except Exception as error:  # noqa: BLE001  # as above
            self.log.warning("The state of %s cannot be written: %s", printable(self.asset), printable(error))


def _payload(owner: Owner, each: RunSummary, newest: Checkpoint) -> dict[str, Any]:
    task = {"dag_id": owner.dag_id, "run_id": owner.run_id, "task_id": owner.task_id, "map_index": owner.map_index}
    return {**task, "run": each.ref.name, "uid": each.ref.uid, **to_plain(newest)}


def _deployment() -> str:
    try:
        return deployment()
    except InvalidSettings:  # Said wherever a training starts.
        return ""
