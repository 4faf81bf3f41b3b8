"""Keeps the end of a run of which nobody else has told: of a task that did not wait, above all.

The page sees such ends, its run's and those of the list. Each process tries each of them once, and no run twice that is
kept; several API servers may come at the same time, and write the same (:mod:`elastic_training.archive.keeping`).

What a run in a place says of its owner may be forged, and where it says that its checkpoints are. So only what Airflow
itself knows as a training in that place is kept, where the task's own fields say; and no end that is kept is written
over.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError, FailureKind
from elastic_runtime.printable import printable
from elastic_training import archive
from elastic_training.clusters.registry import cluster_called, location, own_name
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.concurrency.newest import Newest
from elastic_training.console.asking import Deadline
from elastic_training.identity.ownership import Owner

log = logging.getLogger(__name__)
MOST = 10_000
"""Runs that are remembered."""
AT_ONCE = 5
"""Runs that are kept after one look."""
AGAIN = 600.0
"""Seconds after which a run is tried again that could not be kept."""
SURE = timedelta(minutes=10)
"""Without a word of a launcher that seems to be gone: it may be out of this machine's sight alone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, as it was seen."""

    place: str
    """Any name of it."""
    ref: RunRef
    owner: Owner
    failure: FailureKind | None
    updated: datetime
    fields: Mapping[str, object]
    """Template fields of its task."""


class LateKeeping:
    """For the background of an API server's requests, in threads; one of them at a time."""

    def __init__(self) -> None:
        self._due: Newest[str, float] = Newest(MOST)
        """When a run of that uid may be looked at again."""
        self._busy = threading.Lock()

    def keep(self, seen: Iterable[Ended]) -> None:
        """Keep some of what is not kept yet; blocks. Raise nothing that a place, a store or Airflow can cause."""
        if not self._busy.acquire(blocking=False):
            return  # The next look sees them, too.
        try:
            for each in self._chosen(seen):
                self._due[each.ref.uid] = monotonic() + AGAIN  # Whatever comes of it.
                try:
                    kept = self._is_kept(each) or self._keep(each)
                except Exception as error:  # noqa: BLE001  # of one run, whose fields and documents say anything
                    name = printable(each.ref.name)
                    log.warning("The end of run %s is not kept: %s: %s", name, type(error).__name__, printable(error))
                    continue
                if kept:
                    self._due[each.ref.uid] = math.inf
        finally:
            self._busy.release()

    def _chosen(self, seen: Iterable[Ended]) -> list[Ended]:
        now, sure = monotonic(), utc_now() - SURE
        due = [
            each
            for each in seen
            if self._due.get(each.ref.uid, 0.0) <= now
            and isinstance(each.fields.get("cluster"), str)
            and (each.failure is not FailureKind.LAUNCHER_LOST or each.updated < sure)
        ]
        return due[:AT_ONCE]

    @staticmethod
    def _is_kept(each: Ended) -> bool:
        kept, _ = archive.look_up(each.owner.task, each.owner.try_number, Deadline(archive.KEEPING_TIMEOUT).ask)
        return kept is not None and kept.status.phase.final

    @staticmethod
    def _keep(each: Ended) -> bool:
        fields = {name: value for name, value in each.fields.items() if isinstance(value, str)}
        checkpoints, conn_id = fields.get("checkpoint_uri"), fields.get("checkpoint_conn_id")
        try:
            place, said = own_name(each.place), location(fields["cluster"])
            if place != own_name(fields["cluster"]):
                return False
            if said is not None and checkpoints is None:
                checkpoints, conn_id = said.checkpoint_uri, conn_id or said.checkpoint_conn_id
            keeper = archive.Keeper(cluster_called(place), place, log, checkpoints, conn_id, fields.get("price_book"))
        except ElasticError as error:
            log.warning("The end of run %s is not kept: %s", each.ref.name, printable(error))
            return False
        return run(keeper.keep(each.ref)) is not None
