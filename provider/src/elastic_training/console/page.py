"""Data of a training task's page: the run while it exists, else its kept record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from elastic_runtime.documents import time_to_text, to_plain
from elastic_runtime.errors import ClusterUnavailable, ElasticError, RunNotFound
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Status
from elastic_training import archive
from elastic_training.airflow.rendered import rendered_fields, rendered_of_run
from elastic_training.archive import Kept
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.registry import cluster_called, own_name
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.console import asking
from elastic_training.console.access import Rights
from elastic_training.console.asking import PLACE, Deadline
from elastic_training.console.late import Ended
from elastic_training.cost.price_book import asks_cloud, cost_of, named_book
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner, read_owner
from elastic_training.identity.page_address import ids_of, report_query, timeline_query
from elastic_training.redaction.free_text import Hide, without_logs, without_results, without_secrets
from elastic_training.redaction.values import Secrets, masked
from elastic_training.report import render_report
from elastic_training.report.contents import why

T = TypeVar("T")
log = logging.getLogger(__name__)
MOST_TASKS = 100
"""Training tasks of one DAG run that are listed."""
RESOLVED_AT_ONCE = 4
"""Places that one request looks up in Airflow's connections at the same time."""
NO_TRAINING = "This task is not a training, or has not begun: Airflow has kept no settings of it."
NO_RUN = "There is no run of this task: it has not been created yet, or nothing was kept of it."
SILENT = "The run's place, or the store of what is kept of its tries, does not answer. Why is not for you to see."
NO_TRY = "Nothing was kept of try {number}."


@dataclass(frozen=True, slots=True)
class Found:
    """The run of a task, as it is in its place."""

    cluster: Cluster
    ref: RunRef
    owner: Owner
    owner_text: str
    status: Status
    spec: RunSpec

    @property
    def live(self) -> bool:
        """Whether the run has not ended, so that the page refreshes and offers changes."""
        return not self.status.phase.final


@dataclass(frozen=True, slots=True)
class Seen:
    """State of a try of a training task."""

    settings: Mapping[str, Any]
    """Its template fields, as Airflow keeps them."""
    found: Found | None
    """The run in its place, whichever try's it is."""
    kept: Kept | None
    """Record of the requested try, or of the newest."""
    wanted: int | None
    """The try that was asked for; None: the newest."""
    trouble: str | None
    """Why the place, or the store of what is kept, does not tell."""
    cost: Mapping[str, Any] | None = None
    """Cost of :attr:`present`, so far."""

    @property
    def place(self) -> str:
        """Place, as the task names it."""
        return str(self.settings["cluster"])

    @property
    def present(self) -> Found | None:
        """The run in its place, if it is of the try that was asked for."""
        return self.found if self.found and self.wanted in (None, self.found.owner.try_number) else None

    @property
    def ended(self) -> Ended | None:
        """:attr:`present`, if it is over, and this is not known to be kept."""
        here, kept = self.present, self.kept
        if here is None or here.live or (kept and kept.try_number == here.owner.try_number and kept.status.phase.final):
            return None
        return Ended(self.place, here.ref, here.owner, here.status.failure, here.status.updated, self.settings)


def look(task: TaskIdentity, try_number: int | None) -> Seen | None:
    """In its place, and at what is kept; for a thread of the API server.

    Args:
        task: whoever asks has been allowed to see it.
        try_number: None: the newest.

    Returns:
        None: the task is no training, or has not begun.
    """
    settings = settings_of(task)
    if settings is None:
        return None
    deadline = Deadline()
    seen = Seen(settings, None, None, try_number, None)
    try:
        seen = replace(seen, found=find(seen.place, task, deadline))
    except RunNotFound:
        pass
    except (ElasticError, OSError) as error:
        seen = replace(seen, trouble=f"cannot read the run's status from {seen.place}: {error}")
    if seen.present is None:
        return _with_kept(seen, task, try_number, deadline)
    first_lives = seen.present.live and seen.present.owner.try_number == 1
    seen = seen if first_lives else _with_kept(seen, task, None, deadline)
    return replace(seen, cost=_cost(seen, deadline))


def _with_kept(seen: Seen, task: TaskIdentity, try_number: int | None, deadline: Deadline) -> Seen:
    kept, unread = archive.look_up(task, try_number, deadline.ask)
    if unread is None:
        return replace(seen, kept=kept)
    troubles = filter(None, (seen.trouble, f"What was kept of its tries cannot be read: {unread}"))
    return replace(seen, kept=kept, trouble=". ".join(troubles))


def _cost(seen: Seen, deadline: Deadline) -> Mapping[str, Any] | None:
    if (found := seen.present) is None:
        return None
    given = seen.settings.get("price_book")
    compute = partial(cost_of, found.status, given if isinstance(given, str) else None, log)
    book = f"the price book {named_book(given if isinstance(given, str) else None)}"
    if asks_cloud():
        with suppress(ClusterUnavailable):
            return deadline.ask(f"EC2, for spot prices beside {book},", compute)
    with suppress(ClusterUnavailable):  # Its file system is silent.
        return deadline.ask(book, partial(compute, ask_cloud=False))
    return None


def describe(task: TaskIdentity, seen: Seen | None, rights: Rights) -> dict[str, Any]:
    """The page of a task, as JSON, for somebody with these rights."""
    if seen is None:
        return _page(task, None, NO_TRAINING)
    seen = _told(seen, rights)
    if seen.present is not None:
        return _of_place(task, seen, seen.present, rights)
    kept, number = seen.kept, seen.wanted
    if kept is None:
        nothing = NO_RUN if number is None else NO_TRY.format(number=number)
        return _page(task, None, seen.trouble or nothing, place=seen.place)
    tries = {*kept.tries, *([seen.found.owner.try_number] if seen.found else [])}
    status = _fit(kept.status, masked, rights)
    page = _page(task, status, seen.trouble, place=kept.place, tries=tries, try_number=kept.try_number)
    cost = kept.cost if rights.results else None
    return page | {"cost": cost, "links": _links(task, kept.try_number, status, rights), "hidden": _hidden(rights)}


def report(task: TaskIdentity, try_number: int | None, rights: Rights) -> str | None:
    """Render the kept try, or the run in its place, as HTML. None: there is neither. As :func:`look`.

    Raises:
        ClusterUnavailable: it cannot be said now.
    """
    seen = look(task, try_number)
    if seen is None:  # Of a task that has been taken out of its DAG, perhaps.
        kept, trouble = archive.look_up(task, try_number, Deadline().ask)
        seen = Seen({"cluster": ""}, None, kept, try_number, trouble)
    seen = _told(seen, rights)
    if (here := seen.present) is not None:
        status, cost = _fit(here.status, Secrets.of(here.spec).hide, rights), seen.cost
    elif seen.kept is not None:
        status, cost = _fit(seen.kept.status, masked, rights), seen.kept.cost
    elif seen.trouble is not None:
        raise ClusterUnavailable(seen.trouble)
    else:
        return None
    return render_report(status, cost=cost if rights.results else None)


def _fit(status: Status, hide: Hide, rights: Rights) -> Status:
    """A status without secrets, and without what somebody with these rights is not shown in Airflow either."""
    status = without_secrets(status, hide)
    status = status if rights.logs else without_logs(status)
    return status if rights.results else without_results(status)


def _told(seen: Seen, rights: Rights) -> Seen:
    """Without addresses and names of connections, which the words of a place or a store may have."""
    return seen if rights.outages or seen.trouble is None else replace(seen, trouble=SILENT)


def _hidden(rights: Rights) -> list[str]:
    return [name for name in ("logs", "results") if not getattr(rights, name)]


def tasks_of(dag_id: str, run_id: str, deployment: str) -> list[dict[str, Any]]:
    """The training tasks of a DAG run, for a thread of the API server."""
    rows = [
        (TaskIdentity(dag_id, run_id, task_id, map_index, deployment), str(settings["cluster"]))
        for task_id, map_index, settings in rendered_of_run(dag_id, run_id)
        if _is_training(settings)
    ]
    return run(_looked_at(rows[:MOST_TASKS]))


def find(place: str, task: TaskIdentity, deadline: Deadline) -> Found:
    """The run of a task; for a thread.

    Raises:
        RunNotFound: there is none.
        ElasticError: the place does not answer, or no cluster is called so.
    """
    return run(_find(place, task, min(PLACE, deadline.left)))


def settings_of(task: TaskIdentity) -> Mapping[str, Any] | None:
    """Template fields of a training task as Airflow keeps them; None: it is none, or has not begun."""
    fields = rendered_fields(task.dag_id, task.run_id, task.task_id, task.map_index)
    return next((each for each in fields if _is_training(each)), None)


def _is_training(settings: Mapping[str, Any]) -> bool:
    """Sensors have a cluster, too, and no command."""
    return isinstance(settings.get("cluster"), str) and "command" in settings and "workers" in settings


async def _find(place: str, task: TaskIdentity, max_wait: float) -> Found:
    async def asked() -> Found:
        return await _found(cluster_called(await asking.SLOTS.in_daemon(own_name, place)), task)

    with asking.OUTAGES.asking(asking.of_place(place)):
        return await _in_time(asked(), max_wait)


async def _found(cluster: Cluster, task: TaskIdentity) -> Found:
    ref = await cluster.find(task.name)
    text = await cluster.owner(ref)
    owner = read_owner(text)
    if owner is None or owner.task != task:
        raise RunNotFound(f"the run {ref.name} is another task's")
    return Found(cluster, ref, owner, text, await cluster.status(ref), await cluster.spec(ref))


async def _looked_at(rows: Sequence[tuple[TaskIdentity, str]]) -> list[dict[str, Any]]:
    places = list(dict.fromkeys(place for _, place in rows))
    turns = asyncio.Semaphore(RESOLVED_AT_ONCE)
    until = asyncio.get_running_loop().time() + PLACE
    clusters = dict(zip(places, await asyncio.gather(*(_resolved(each, turns, until) for each in places)), strict=True))

    async def look(task: TaskIdentity, place: str) -> dict[str, Any]:
        row: dict[str, Any] = {"task_id": task.task_id, "map_index": task.map_index, "place": place}
        row |= dict.fromkeys(
            ("try_number", "name", "phase", "world_size", "target_size", "step", "progress", "started")
        )
        cluster = clusters[place]
        if cluster is None:
            return row
        try:
            with asking.OUTAGES.asking(asking.of_place(place)):
                found = await _in_time(_found(cluster, task), PLACE)
        except (ElasticError, OSError):
            return row
        status = found.status
        figures = {"world_size": status.world_size, "target_size": status.target_size, "step": status.step}
        row["progress"] = to_plain(status.progress)
        row["started"] = None if status.started is None else time_to_text(status.started)
        return row | {"try_number": found.owner.try_number, "name": found.ref.name, "phase": status.phase} | figures

    return list(await asyncio.gather(*(look(task, place) for task, place in rows)))


async def _resolved(place: str, turns: asyncio.Semaphore, until: float) -> Cluster | None:
    """The cluster of that name, which may have to be asked for in Airflow's connections. None: it does not tell."""
    try:
        async with asyncio.timeout_at(until), turns:
            # Only now: a place that had no turn has shown no outage.
            left = until - asyncio.get_running_loop().time()
            with asking.OUTAGES.asking(asking.of_place(place)):
                return cluster_called(await _in_time(asking.SLOTS.in_daemon(own_name, place), left))
    except (TimeoutError, ElasticError, OSError):
        return None


async def _in_time(answer: Coroutine[Any, Any, T], seconds: float) -> T:
    try:
        return await asyncio.wait_for(answer, seconds)
    except TimeoutError:
        raise ClusterUnavailable(f"it has not answered in {seconds:.1f} s") from None


def _of_place(task: TaskIdentity, seen: Seen, found: Found, rights: Rights) -> dict[str, Any]:
    number, status = found.owner.try_number, _fit(found.status, Secrets.of(found.spec).hide, rights)
    tries = {number, *(seen.kept.tries if seen.kept else ())}
    page = _page(task, status, seen.trouble, place=seen.place, tries=tries, try_number=number)
    return page | {
        "limits": {"minimum": found.spec.workers.minimum, "maximum": found.spec.workers.maximum},
        "live": found.live,
        "joinable": found.spec.join is not None,
        "may_edit": rights.edit,
        "cost": seen.cost if rights.results else None,
        "links": _links(task, number, status, rights, _checkpoints(seen.settings, found) if rights.results else None),
        "hidden": _hidden(rights),
    }


def _page(
    task: TaskIdentity,
    status: Status | None,
    message: str | None,
    *,
    place: str | None = None,
    tries: set[int] | None = None,
    try_number: int | None = None,
) -> dict[str, Any]:
    return {
        "run": {
            "name": status.run if status else None,
            "place": place,
            **ids_of(task),
            "try_number": try_number,
            "tries": sorted(tries or ()),
        },
        "status": None if status is None else to_plain(status),
        "why": None if status is None else why(status),
        "message": None if message is None else masked(message),
        "limits": None,
        "live": False,
        "joinable": False,
        "may_edit": False,
        "cost": None,
        "hidden": [],
        "links": _links(task, None, None, Rights()),
    }


def _checkpoints(settings: Mapping[str, Any], found: Found) -> str | None:
    """By the task's own settings; the folder alone is the run's word."""
    spec, given = found.spec.checkpoint, settings.get("checkpoint_uri")
    if spec is None or not isinstance(given, str) or not given:
        return None
    uri = f"{given.rstrip('/')}/{spec.uri.rpartition('/')[2]}"
    return uri if uri == spec.uri else given


def _links(
    task: TaskIdentity, number: int | None, status: Status | None, rights: Rights, checkpoints: str | None = None
) -> dict[str, Any]:
    newest = status.checkpoint.uri if status and status.checkpoint else None
    timeline = status and status.timeline and rights.logs
    return {
        "report": report_query(task, number) if number is not None else None,
        "log": _log(task, number),
        "checkpoints": checkpoints or newest,
        "timeline": timeline_query(task, number) if timeline and number is not None else None,
        "profiles": list(status.profiles) if status else [],
    }


def _log(task: TaskIdentity, number: int | None) -> str:
    """Of the task instance's page in Airflow, which begins with its log; relative to ours."""
    ids = [quote(each, safe="") for each in (task.dag_id, task.run_id, task.task_id)]
    mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
    query = f"?try_number={number}" if number is not None else ""
    return f"../dags/{ids[0]}/runs/{ids[1]}/tasks/{ids[2]}{mapped}{query}"
