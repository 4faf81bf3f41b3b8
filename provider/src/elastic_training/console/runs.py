"""The list of all runs: of this deployment of Airflow, in every place, as far as a person may see them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from elastic_runtime.errors import ElasticError
from elastic_runtime.prices.book import Price
from elastic_runtime.printable import printable
from elastic_runtime.run.status import MAX_USAGE, Usage
from elastic_runtime.run.status_failure import without_quotes
from elastic_training.airflow.rendered import rendered_of_tasks
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.registry import is_local, place_of
from elastic_training.concurrency.newest import Newest
from elastic_training.console.asking import Deadline
from elastic_training.console.costs import CostsWanted, known_owners, no_owners, spent
from elastic_training.console.late import Ended
from elastic_training.console.places import FoundRun, RecentRuns, ids_of, plain_run
from elastic_training.console.pools import plain_pools
from elastic_training.cost.bill import Bill, bill
from elastic_training.cost.price_book import named_book, read_book
from elastic_training.cost.totals import Spent
from elastic_training.identity.ownership import Owner
from elastic_training.redaction.free_text import without_dollars
from elastic_training.redaction.values import masked

PLACES_TIMEOUT = 3.0
"""Seconds for all places together."""
BOOKS_TIMEOUT = 2.0
"""Seconds for all price books together."""
_NEVER = datetime(1, 1, 1, tzinfo=UTC)
FRESH = 60.0
"""Seconds after which a price book is read again."""
MOST_BOOKS = 100
"""Price books that are remembered."""
log = logging.getLogger(__name__)
MOST = 10_000
"""Tries that are remembered."""
AT_ONCE = 200
"""Tries that are asked for in one question."""
ONE_BY_ONE = 2.0
"""Seconds for asking for each alone, after a question for many has failed."""
_NAMES = ("cluster", "checkpoint_uri", "checkpoint_conn_id", "price_book")
_LONGEST = 2000
"""Characters of a field; what is longer is none of ours."""


class Wanted(BaseModel):
    """Which runs, in which order."""

    model_config = ConfigDict(extra="forbid")

    place: Annotated[str, Field(max_length=250)] = ""
    phase: Annotated[str, Field(max_length=20)] = ""
    search: Annotated[str, Field(max_length=100)] = ""
    """In the run's name, its ids and its reason."""
    sort: Literal["name", "phase", "world_size", "step", "place", "started", "finished", "updated", "cost"] = "updated"
    descending: bool = True
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class Viewer(Protocol):
    """The user of a request."""

    def seen(self, dag_ids: Collection[str]) -> set[str]:
        """Return those of these DAGs that the viewer may read."""

    def may_see_results(self, dag_id: str) -> bool:
        """Whether it may see what tasks of the DAG leave as XCom, so also their cost."""

    def may_see_connections(self) -> bool:
        """Whether it may see Airflow's connections."""

    def may_resize_pool(self, name: str) -> bool:
        """Whether it may change the pool of that name."""


class RunList:
    """For threads of an API server; with what it remembers from one question to the next."""

    def __init__(self) -> None:
        self._recent = RecentRuns(PLACES_TIMEOUT)
        self._fields = TaskFields()
        self._spending = Spending()
        self._dags: dict[str, set[str]] = {}
        """Of each place, those that had runs there when it was last reached."""

    def shown(self, wanted: Wanted, deployment: str, viewer: Viewer) -> tuple[dict[str, Any], list[Ended]]:
        """One page of the list, as JSON; and those of its runs that are over.

        Args:
            wanted: which ones.
            deployment: of Airflow: other ones' runs in the same place are not shown.
            viewer: the user who asks.
        """
        found = self._recent.get()
        mine = [(each, each.owner) for each in found.runs if each.owner and each.owner.deployment == deployment]
        self._note_dags(mine)
        dag_ids = viewer.seen({owner.dag_id for _, owner in mine})
        chosen = [row for row in mine if row[1].dag_id in dag_ids and _is_wanted(*row, wanted)]
        fields = self._fields.of([owner for _, owner in chosen])
        priced = {each: viewer.may_see_results(each) for each in dag_ids}
        books = Deadline(BOOKS_TIMEOUT)
        rows = [
            _Row(each, owner, fields[owner], self._cost(each, owner, fields, priced, books)) for each, owner in chosen
        ]
        rows.sort(key=lambda row: row.key(wanted.sort), reverse=wanted.descending)
        told = [each for each in found.unreachable if self._may_know(each.place, viewer)]
        page = {
            "total": len(rows),
            "runs": [row.plain() for row in rows[wanted.offset : wanted.offset + wanted.limit]],
            "unreachable": [{"place": each.place, "message": masked(each.message)} for each in told],
            "incomplete": len(told) < len(found.unreachable),
            "pools": plain_pools(
                found.pools,
                {run.ref.name: ids_of(owner) for run, owner in mine if owner.dag_id in dag_ids},
                viewer.may_resize_pool,
            ),
        }
        return page, [row.ended() for row in rows if row.run.headline.phase.final]

    def costs(self, wanted: CostsWanted, deployment: str, viewer: Viewer) -> list[Spent]:
        """Every run whose cost the viewer may see.

        Args:
            wanted: which ones.
            deployment: of Airflow: other ones' runs in the same place do not count.
            viewer: the user who asks.
        """
        found = self._recent.get()
        mine = [(each, each.owner) for each in found.runs if each.owner and each.owner.deployment == deployment]
        dag_ids = {each for each in viewer.seen({owner.dag_id for _, owner in mine}) if viewer.may_see_results(each)}
        seen = [row for row in mine if row[1].dag_id in dag_ids]
        fields = self._fields.of([owner for _, owner in seen])
        books = Deadline(BOOKS_TIMEOUT)

        def bill_of(each: FoundRun, owner: Owner) -> Bill | None:
            return self._spending.bill(each.headline.usage, fields[owner].get("price_book"), books)

        return spent(seen, bill_of, wanted.since, known_owners if wanted.by == "team" else no_owners)

    def _cost(
        self,
        each: FoundRun,
        owner: Owner,
        fields: Mapping[Owner, Mapping[str, str]],
        priced: Mapping[str, bool],
        books: Deadline,
    ) -> Decimal | None:
        if not priced[owner.dag_id]:
            return None
        return self._spending.cost(each.headline.usage, fields[owner].get("price_book"), books)

    def _note_dags(self, mine: Iterable[tuple[FoundRun, Owner]]) -> None:
        of_place: dict[str, set[str]] = {}
        for each, owner in mine:
            of_place.setdefault(_asked(each.place), set()).add(owner.dag_id)
        self._dags |= of_place

    def _may_know(self, place: str, viewer: Viewer) -> bool:
        """Why a place is not reached: its words may quote addresses, so they are for those who have runs there."""
        return viewer.may_see_connections() or bool(viewer.seen(self._dags.get(_asked(place), set())))


def _asked(place: str) -> str:
    """Whose list has the runs of a place: that of this machine, or of a namespace, has those of its pools."""
    return LOCAL if is_local(place) else place_of(place)


@dataclass(frozen=True, slots=True)
class _Row:
    run: FoundRun
    owner: Owner
    fields: Mapping[str, str]
    cost: Decimal | None

    def key(self, by: str) -> Any:
        match by:
            case "place":
                return self.run.place
            case "name":
                return self.run.ref.name
            case "cost":
                return Decimal(-1) if self.cost is None else self.cost
        value = attrgetter(by)(self.run.headline)
        if value is None:
            return _NEVER if by in ("started", "finished") else -1
        return value

    def plain(self) -> dict[str, Any]:
        cost = None if self.cost is None else str(self.cost)
        return plain_run(self.run) | {"reason": _reason(self.run), "cost": cost}

    def ended(self) -> Ended:
        head = self.run.headline
        return Ended(self.run.place, self.run.ref, self.owner, head.failure, head.updated, self.fields)


def _reason(each: FoundRun) -> str:
    """Without a rank's words and money: which of these are secret, and who may read them, the page of the run knows."""
    reason: str = masked(without_dollars(without_quotes(each.headline.reason)))
    return reason


def _is_wanted(each: FoundRun, owner: Owner, wanted: Wanted) -> bool:
    words = f"{each.ref.name} {owner.dag_id} {owner.run_id} {owner.task_id} {_reason(each)}".lower()
    return (
        wanted.place in ("", each.place)
        and wanted.phase in ("", each.headline.phase.value)
        and wanted.search.lower() in words
    )


# What each run of the list has cost so far: its machines' seconds by the price book of its task, or the deployment's.
#
# Unlike the page of a run, it asks no cloud for its prices of the hour.


class Spending:
    """Price books as they were lately. For threads."""

    def __init__(self) -> None:
        self._books: dict[str, tuple[float, Mapping[str, Price] | None]] = {}
        self._lock = threading.Lock()

    def cost(self, usage: Iterable[Usage], given: str | None, deadline: Deadline) -> Decimal | None:
        """In dollars; None: nothing of it has a price, or its book cannot be read now. As :meth:`bill`."""
        made = self.bill(usage, given, deadline)
        return made.cost if made and made.priced else None

    def bill(self, usage: Iterable[Usage], given: str | None, deadline: Deadline) -> Bill | None:
        """Return the bill. None: there is no book, or it cannot be read now.

        Args:
            usage: seconds by kind of machine.
            given: the task's ``price_book``.
            deadline: for reading it.
        """
        try:
            book = self._book(named_book(given), deadline)
            return bill(tuple(usage)[:MAX_USAGE], book) if book else None
        except Exception as error:  # noqa: BLE001  # of one run, whose book and figures say anything
            log.warning("What a run has cost is not known: %s: %s", type(error).__name__, printable(error))
            return None

    def _book(self, name: str, deadline: Deadline) -> Mapping[str, Price] | None:
        with self._lock:
            until, book = self._books.get(name, (0.0, None))
        if monotonic() < until or not name:
            return book
        if not deadline.left:  # Others were silent: nothing is known of this one.
            return None
        try:
            # Not under the lock: its file system may be silent.
            book = deadline.ask(f"the price book {name}", partial(read_book, name))
        except ElasticError:  # Said on the page of each run that has it.
            book = None
        with self._lock:
            if len(self._books) >= MOST_BOOKS:
                self._books.clear()
            self._books[name] = (monotonic() + FRESH, book)
        return book


# What the list has to know of the tasks of its runs, asked of Airflow's database once for each try.


class TaskFields:
    """Remembers them by the owner: they do not change while it owns its run, nor come later. For threads."""

    def __init__(self) -> None:
        self._known: Newest[Owner, Mapping[str, str]] = Newest(MOST)
        self._lock = threading.Lock()

    def of(self, owners: Collection[Owner]) -> dict[Owner, Mapping[str, str]]:
        """Cluster, store and price book as the task has them; nothing where Airflow does not tell."""
        with self._lock:
            found = {each: self._known[each] for each in owners if each in self._known}
        missing = [each for each in dict.fromkeys(owners) if each not in found]
        for begin in range(0, len(missing), AT_ONCE):
            asked = self._asked(missing[begin : begin + AT_ONCE])
            found |= asked
            with self._lock:
                self._known.update(asked)
        return {each: found.get(each, {}) for each in owners}

    def _asked(self, owners: Collection[Owner]) -> dict[Owner, Mapping[str, str]]:
        try:
            return self._told(owners)
        except Exception as error:  # noqa: BLE001  # a database's, Airflow's: the list is one without these
            log.warning(
                "Cannot read the settings of %d runs' tasks from Airflow: %s", len(owners), type(error).__name__
            )
        # Perhaps it refuses the ids of one of them, which any document can hold.
        found: dict[Owner, Mapping[str, str]] = {}
        until = monotonic() + ONE_BY_ONE
        for each in owners:
            if len(owners) == 1 or monotonic() > until:
                break
            with suppress(Exception):  # As before, and said.
                found |= self._told([each])
        return found

    @staticmethod
    def _told(owners: Collection[Owner]) -> dict[Owner, Mapping[str, str]]:
        ids = {each: (each.dag_id, each.run_id, each.task_id, each.map_index) for each in owners}
        rendered = rendered_of_tasks(set(ids.values()))
        return {each: _ours(rendered.get(its, {})) for each, its in ids.items()}


def _ours(fields: Mapping[str, object]) -> dict[str, str]:
    texts = {name: fields.get(name) for name in _NAMES}
    return {name: each for name, each in texts.items() if isinstance(each, str) and len(each) <= _LONGEST}
