"""Keeps what there is to keep of a run, at its end and before its documents go; and fails nothing.

Whoever sees the end of a run calls this, so one end may be kept several times: by the task, by the trigger of a task
that was marked, by the next try that finds the run. They write the same, under the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import from_plain
from elastic_runtime.errors import ElasticError, InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status
from elastic_training.archive.document import NAME, TRIES, Cost, Document, file_name, report_uri, written
from elastic_training.archive.reading import read_document
from elastic_training.archive.where import address_of, credentials, newest, opened
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.types import RunRef, StatusChanged
from elastic_training.concurrency.bridge import ask_airflow
from elastic_training.concurrency.daemons import in_daemon
from elastic_training.cost.price_book import cost_of
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.listeners.audience import Log
from elastic_training.redaction.free_text import without_secrets
from elastic_training.redaction.values import Secrets, masked

KEEPING_TIMEOUT = 60.0
"""Seconds for place and store: a task has its result, and waits no longer for what is only kept."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """Keeps runs of one place; raises nothing but CancelledError.

    Args:
        cluster: the place.
        place: its own name.
        log: for the address, and for what went wrong.
        checkpoints: where the task's runs have their checkpoints, by its own settings; never by the run's document,
            which others may have written.
        conn_id: Airflow connection with the credentials of the checkpoint store.
        price_book: as given to the operator.
    """

    cluster: Cluster
    place: str
    log: Log
    checkpoints: str | None = None
    conn_id: str | None = None
    price_book: str | None = None

    async def keep(
        self,
        ref: RunRef,
        status: Status | None = None,
        cost: Mapping[str, Any] | None = None,
        max_wait: float = KEEPING_TIMEOUT,
    ) -> str | None:
        """A run as it is now, under the try that owns it.

        Args:
            ref: of the run.
            status: the last that was seen, in case that the place does not tell.
            cost: as the result document has it; None: it is computed.
            max_wait: seconds for place and store.

        Returns:
            The report's URI; None: nothing was kept.
        """
        try:
            async with asyncio.timeout(max_wait):
                owner, spec = await self.cluster.owner(ref), await self.cluster.spec(ref)
                with suppress(ElasticError):  # The status of an event lacks the curves.
                    status = await self.cluster.status(ref)
                return await self._keep(owner, spec, status, cost)
        except Exception as error:  # noqa: BLE001  # a store's, a network's, Airflow's: none of them fails a training
            self._failed(ref.name, error, max_wait)
            return None

    async def keep_at_end(self, ref: RunRef, max_wait: float, store: float = KEEPING_TIMEOUT) -> str | None:
        """A run that was asked to end, once it has, or as it is after so many seconds; and more for the store."""
        with suppress(ElasticError, TimeoutError):
            async with asyncio.timeout(max_wait), aclosing(self.cluster.watch(ref, None, max_wait)) as updates:
                async for update in updates:
                    if isinstance(update, StatusChanged) and update.status.phase.final:
                        break
        return await self.keep(ref, max_wait=store)

    async def keep_before(self, found: RunDocument, status: Status) -> None:
        """A run that another try takes over, or takes away: for :meth:`Cluster.claim`."""
        try:
            async with asyncio.timeout(KEEPING_TIMEOUT):
                await self._keep(found.owner, found.spec, status)
        except Exception as error:  # noqa: BLE001  # as above
            self._failed(found.ref.name, error, KEEPING_TIMEOUT)

    async def _keep(
        self, owner_text: str, spec: RunSpec, status: Status | None, cost: Mapping[str, Any] | None = None
    ) -> str | None:
        owner = read_owner(owner_text)
        if owner is None or status is None:
            return None
        address = address_of(self.checkpoints, self.conn_id, self.place)
        if address is None:
            return None
        variables = await ask_airflow(credentials, address)
        # A rank's last words, which the status holds, are kept without what its environment has of secrets.
        status = await in_daemon(_without_secrets_of, spec, status)
        if cost is None:
            cost = await in_daemon(cost_of, status, self.price_book, self.log)
        folder = spec.checkpoint.uri.rpartition("/")[2] if spec.checkpoint else None
        kept = await in_daemon(keep, address.uri, variables, owner, self.place, status, cost, self.log, folder)
        if kept and status.phase.final:
            self.log.info("Report of run %s: %s", spec.name, printable(kept))
        return kept

    def _failed(self, name: str, error: Exception, max_wait: float) -> None:
        late = f"its place and its checkpoint store have not both answered in {max_wait:g} s"
        trouble = late if isinstance(error, TimeoutError) else error
        self.log.warning("Status and report of the run %s are not kept: %s", name, printable(masked(str(trouble))))


def _without_secrets_of(spec: RunSpec, status: Status) -> Status:
    return without_secrets(status, Secrets.of(spec).hide)


def keep(
    archive: str,
    variables: Mapping[str, str] | None,
    owner: Owner,
    place: str,
    status: Status,
    cost: Mapping[str, Any] | None,
    log: Log,
    folder: str | None = None,
) -> str | None:
    """Write document and report; blocks.

    Args:
        archive: its URI.
        variables: credentials of its store.
        owner: the try that it is about.
        place: where it ran.
        status: of its run, without secrets.
        cost: as :func:`~elastic_training.cost.bill.plain_bill` writes it; None: not known.
        log: for what is not retired.
        folder: of its checkpoints, under the prefix of its task.

    Returns:
        The report's URI; also where a final status of the same run is kept already, and this one is none.

    Raises:
        ElasticError: the store does not answer, or refuses.
    """
    from elastic_training.report import render_report

    report = report_uri(archive, owner.task, owner.try_number)
    with opened(archive, owner.task, variables) as store:
        if not status.phase.final and _ended(store, owner, status):
            return report
        document = Document(
            dag_id=owner.dag_id,
            run_id=owner.run_id,
            task_id=owner.task_id,
            map_index=owner.map_index,
            try_number=owner.try_number,
            deployment=owner.deployment,
            place=place,
            written=utc_now(),
            status=status,
            cost=None if cost is None else from_plain(Cost, cost),
            folder=folder,
        )
        _write(store, owner, "html", render_report(status, cost=cost).encode())
        _write(store, owner, "json", written(document))  # Last: it is what is looked for.
        _retire(store, log)
    return report


def _write(store: CheckpointStore, owner: Owner, kind: str, body: bytes) -> None:
    with store.write_file(file_name(owner.task, owner.try_number, kind)) as stream:
        stream.write(body)


def _ended(store: CheckpointStore, owner: Owner, status: Status) -> bool:
    """Whether the end of this very run is kept."""
    with suppress(InvalidDocument):
        known = read_document(store, owner.task, owner.try_number).status
        return known.phase.final and known.uid == status.uid
    return False


def _retire(store: CheckpointStore, log: Log) -> None:
    """Remove the oldest of a task, of more than are to be kept; best effort."""
    if not (most := newest()):
        return
    try:
        files = {name: age for name, age in store.ages(TRIES).items() if NAME.fullmatch(name)}
        tries: dict[str, float] = {}
        for name, age in files.items():
            stem = name.rpartition(".")[0]
            tries[stem] = min(age, tries.get(stem, age))
        for stem in sorted(tries, key=lambda each: tries[each])[most:]:
            for name in (f"{stem}.json", f"{stem}.html"):
                if name in files:
                    store.delete_file(name)
    except ElasticError as error:
        log.warning("Older reports stay for now: %s", printable(error))
