"""Requests of a user on the page, in threads of the API server. Callers have checked permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from elastic_runtime.errors import ClusterUnavailable, Conflict, RunNotFound
from elastic_training.clusters.kubernetes.pools import NamespacePools
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.pool import resize
from elastic_training.clusters.registry import has_pods, local_settings, own_name, split_name
from elastic_training.concurrency.bridge import run
from elastic_training.console.asking import LOOK, Deadline
from elastic_training.console.page import NO_TRAINING, Found, find, settings_of
from elastic_training.console.places import known_places
from elastic_training.identity.naming import TaskIdentity
from elastic_training.settings.training_pool import PoolName

T = TypeVar("T")


def scale(task: TaskIdentity, workers: int, person: str) -> None:
    """Ask for so many workers.

    Raises:
        InvalidSettings: outside the run's bounds.
        ElasticError: there is no run, it is over, or its place does not answer.
    """
    _change(task, lambda found: found.cluster.ask(found.ref, workers, by=person))


def pause(task: TaskIdentity, person: str) -> None:
    """Ask for a pause.

    Raises:
        InvalidSettings: the run has no checkpoint store.
        ElasticError: there is no run, it is over, or its place does not answer.
    """
    _change(task, lambda found: found.cluster.pause(found.ref, by=person))


def resume(task: TaskIdentity, person: str) -> None:
    """End a pause, with as many workers as before it. Raises as :func:`scale` does, and Conflict if there is none."""
    _change(task, lambda found: found.cluster.resume(found.ref, by=person))


def notice(task: TaskIdentity, worker: str, seconds: float) -> None:
    """Send a reclaim notice to a worker, as a drill. Raises as :func:`scale` does."""
    _change(task, lambda found: found.cluster.reclaim(found.ref, worker, timedelta(seconds=seconds)))


def end(task: TaskIdentity, person: str) -> None:
    """Ask the run to end. Raises as :func:`scale` does."""
    reason = f"{person} has ended it on its page"
    _change(task, lambda found: found.cluster.cancel(found.ref, reason, found.owner_text))


def token(task: TaskIdentity) -> str:
    """Return the command by which a machine joins the run, within :data:`TOKEN_LIFETIME`. Secret; kept nowhere.

    Raises:
        InvalidSettings: machines may not join the run.
        ElasticError: there is no run, it is over, or its place or launcher does not answer.
    """
    return _change(task, lambda found: found.cluster.join_command(found.ref))


def resize_pool(pool: PoolName, workers: int) -> None:
    """Have a pool with so many workers at most.

    Raises:
        InvalidSettings: it cannot have so many.
        ElasticError: it is not up, or its place does not answer.
    """
    place = pool.on or LOCAL
    if place not in known_places():
        raise RunNotFound(f"[elastic_training] places does not have {place}, so no pool there is known")
    deadline, what = Deadline(), f"the pool {pool.name}"
    if not pool.on:
        root, _ = local_settings()
        deadline.ask(what, partial(resize, root, pool.name, maximum=workers))
        return
    name = deadline.ask(what, partial(own_name, pool.on))
    if not has_pods(name):
        raise RunNotFound(f"{place} has no pods, and so no pools")
    run(_within(deadline.left, NamespacePools(*split_name(name)).resize(pool.name, maximum=workers)))


def _change(task: TaskIdentity, ask: Callable[[Found], Coroutine[Any, Any, T]]) -> T:
    settings = settings_of(task)
    if settings is None:
        raise RunNotFound(NO_TRAINING)
    deadline = Deadline()
    found = find(str(settings["cluster"]), task, deadline)
    if not found.live:
        raise Conflict(f"the run {found.ref.name} is over")
    return run(_within(deadline.left, ask(found)))


async def _within(seconds: float, change: Coroutine[Any, Any, T]) -> T:
    try:
        return await asyncio.wait_for(change, seconds)
    except TimeoutError:
        told = f"it has not answered in {LOOK:g} s, and may still do what was asked: look before you ask again"
        raise ClusterUnavailable(told) from None
