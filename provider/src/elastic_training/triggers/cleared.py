"""Detection of cleared tasks: one watch for all deferred trainings of a triggerer.

If nothing can run a cleared task, as in a paused DAG, Airflow does not end its trigger, at least from 2.11 to 3.4:
``Trigger.clean_unused`` compares the state, which is NULL. So the states are polled. Each request to Airflow costs the
triggerer's supervisor a round of its loop and of its database, so one request asks for many task instances.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote_plus

from elastic_runtime.errors import InvalidSettings
from elastic_training.airflow.sdk import conf
from elastic_training.airflow.versions import task_states
from elastic_training.clusters.registry import SECTION
from elastic_training.identity.ownership import Owner
from elastic_training.settings.values import real_number

log = logging.getLogger(__name__)

LOOK = 120.0
"""Default of ``[elastic_training] clear_interval``: seconds between two polls."""
_SHORTEST, _LONGEST = 1.0, 86400.0
SEVERAL = 4
"""Watched instances of a task in one DAG run from which on a question is about all its instances there. Airflow's
``[core] max_map_length`` limits their number."""
MAX_LENGTH = 16_000
"""Limit for the ids of DAG runs in a question, in characters of a URL. Airflow's client accepts URLs of 65,536."""


class Instance(NamedTuple):
    """A task instance, by Airflow's ids."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int


@dataclass(frozen=True, slots=True)
class Question:
    """Arguments of one call of :func:`~elastic_training.airflow.versions.task_states`."""

    dag_id: str
    task_id: str
    run_ids: tuple[str, ...]
    map_index: int | None
    """None: all of them."""


def questions(instances: Iterable[Instance]) -> Iterator[Question]:
    """Yield few questions whose answers have the states of all these instances."""
    tasks: defaultdict[tuple[str, str], defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in instances:
        tasks[each.dag_id, each.task_id][each.run_id].append(each.map_index)
    for (dag_id, task_id), runs in tasks.items():
        by_index: defaultdict[int, list[str]] = defaultdict(list)
        for run_id, indices in runs.items():
            if len(indices) >= SEVERAL:
                yield Question(dag_id, task_id, (run_id,), None)
                continue
            for index in indices:
                by_index[index].append(run_id)
        for index, run_ids in by_index.items():
            yield from (Question(dag_id, task_id, part, index) for part in _parts(run_ids))


def _parts(run_ids: Iterable[str]) -> Iterator[tuple[str, ...]]:
    part: list[str] = []
    length = 0
    for run_id in run_ids:
        size = len(quote_plus(run_id)) + len("&run_ids=")
        if part and length + size > MAX_LENGTH:
            yield tuple(part)
            part, length = [], 0
        part.append(run_id)
        length += size
    if part:
        yield tuple(part)


def interval() -> float:
    """Return ``[elastic_training] clear_interval`` in seconds. An invalid one is a warning, and the default counts."""
    try:
        given = conf.get(SECTION, "clear_interval", fallback=str(LOOK))
        return real_number(f"[{SECTION}] clear_interval", given, least=_SHORTEST, most=_LONGEST)
    except InvalidSettings as problem:
        log.warning("%s. Until then, cleared tasks are looked for every %.0f seconds.", problem, LOOK)
        return LOOK


class _Watch:
    """The watch of an event loop. It starts with its first waiter and ends with its last."""

    def __init__(self) -> None:
        self.waiting: defaultdict[Instance, set[asyncio.Event]] = defaultdict(set)

    async def run(self) -> None:
        """Poll every :func:`interval` seconds, until cancelled."""
        now = asyncio.get_running_loop().time
        due = now()
        look = interval()
        while True:
            due = max(due + look, now())
            await asyncio.sleep(due - now())
            for question in list(questions(self.waiting)):
                with suppress(Exception):  # a database's, a network's, Airflow's: the next poll may succeed
                    await self._ask(question)

    async def _ask(self, of: Question) -> None:
        states = await task_states(of.dag_id, of.task_id, of.run_ids, of.map_index)
        for (run_id, map_index), state in states.items():
            if state is None:
                for event in self.waiting.get(Instance(of.dag_id, of.task_id, run_id, map_index), ()):
                    event.set()


_watches: dict[asyncio.AbstractEventLoop, tuple[_Watch, asyncio.Task[None]]] = {}


async def until_cleared(owner: Owner) -> None:
    """Return once this owner's task instance has no state. Airflow itself ends the trigger of one in another state."""
    instance, event = Instance(owner.dag_id, owner.task_id, owner.run_id, owner.map_index), asyncio.Event()
    with _shared() as watch:
        watch.waiting[instance].add(event)
        try:
            await event.wait()
        finally:
            watch.waiting[instance].discard(event)
            if not watch.waiting[instance]:
                del watch.waiting[instance]


@contextmanager
def _shared() -> Iterator[_Watch]:
    loop = asyncio.get_running_loop()
    if loop not in _watches:
        watch = _Watch()
        _watches[loop] = watch, loop.create_task(watch.run(), name="watch for cleared tasks")
    watch, task = _watches[loop]
    try:
        yield watch
    finally:
        if not watch.waiting:
            del _watches[loop]
            task.cancel()
