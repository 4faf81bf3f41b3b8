"""A namespace in memory: what the launcher asks of Kubernetes, answered as an API server would.

That it does is checked by :mod:`tests.unit.runtime.kubernetes_contract`, on this one and on real ones.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

from elastic_runtime.errors import ClusterUnavailable, Conflict, MissingRight, RunNotFound, WatchExpired
from elastic_runtime.launcher.kubernetes.interface import (
    Change,
    ChangeKind,
    Kind,
    Listing,
    Object,
    Selector,
    labels_of,
    name_of,
    uid_of,
    version_of,
)

Plain = dict[str, Any]


class FakeApi:
    """Implements :class:`~elastic_runtime.launcher.kubernetes.interface.Api`; further methods are the world's."""

    def __init__(self) -> None:
        self.away = False
        """Whether it does not answer; watches are cut by :meth:`go_away`."""
        self.forbidden: set[tuple[str, Kind]] = set()
        """Verb and kind."""
        self.calls: Counter[tuple[str, Kind]] = Counter()
        self._version = 100
        self._oldest = 0
        self._objects: dict[Kind, dict[str, Plain]] = defaultdict(dict)
        self._history: list[tuple[int, Kind, ChangeKind, Plain]] = []
        self._moved = asyncio.Condition()
        self._cuts = 0

    # What the launcher asks

    async def read(self, kind: Kind, name: str) -> Object:
        self._ask("get", kind)
        return copy.deepcopy(self._find(kind, name))

    async def list(self, kind: Kind, selector: Selector) -> Listing:
        self._ask("list", kind)
        found = tuple(copy.deepcopy(each) for each in self._objects[kind].values() if selects(selector, each))
        return Listing(found, str(self._version))

    @asynccontextmanager
    async def watch(self, kind: Kind, selector: Selector, version: str) -> AsyncIterator[AsyncIterator[Change]]:
        self._ask("watch", kind)
        async with aclosing(self._changes(kind, selector, int(version), self._cuts)) as changes:
            yield changes

    async def patch(self, kind: Kind, name: str, changes: Object) -> Object:
        self._ask("patch", kind)
        found = self._find(kind, name)
        conditions = changes.get("metadata", {})
        self._check(found, conditions.get("uid"), conditions.get("resourceVersion"))
        merged = merge(found, json.loads(json.dumps(changes)))
        if merged != found:
            await self._put(kind, ChangeKind.MODIFIED, merged)
        return copy.deepcopy(self._find(kind, name))

    async def scale(self, name: str, replicas: int) -> None:
        self._ask("scale", Kind.REPLICA_SET)
        found = self._find(Kind.REPLICA_SET, name)
        await self._put(Kind.REPLICA_SET, ChangeKind.MODIFIED, merge(found, {"spec": {"replicas": replicas}}))

    async def delete(self, kind: Kind, name: str, uid: str, version: str | None = None) -> None:
        self._ask("delete", kind)
        self._check(self._find(kind, name), uid, version)
        await self.remove(kind, name)

    # What the world does

    async def create(self, kind: Kind, manifest: Plain) -> Object:
        made = merge({"metadata": {"uid": uuid4().hex}}, manifest)
        assert name_of(made) not in self._objects[kind]
        await self._put(kind, ChangeKind.ADDED, made)
        return copy.deepcopy(made)

    async def change(self, kind: Kind, name: str, changes: Plain) -> None:
        await self._put(kind, ChangeKind.MODIFIED, merge(self._find(kind, name), changes))

    async def remove(self, kind: Kind, name: str) -> None:
        gone = self._objects[kind].pop(name)
        await self._record(kind, ChangeKind.DELETED, gone)

    async def cut_watches(self) -> None:
        """As an API server does after some minutes, or that is restarted."""
        self._cuts += 1
        async with self._moved:
            self._moved.notify_all()

    async def forget(self) -> None:
        """No watch can go on from a version before this one."""
        self._oldest = self._version
        await self.cut_watches()

    async def go_away(self) -> None:
        self.away = True
        await self.cut_watches()

    # How

    def _ask(self, verb: str, kind: Kind) -> None:
        self.calls[verb, kind] += 1
        if self.away:
            raise ClusterUnavailable("the API server is away")
        if (verb, kind) in self.forbidden:
            raise MissingRight(f"{kind} is forbidden: cannot {verb}")

    def _find(self, kind: Kind, name: str) -> Plain:
        try:
            return self._objects[kind][name]
        except KeyError:
            raise RunNotFound(f'{kind} "{name}" not found') from None

    def _check(self, found: Plain, uid: object, version: object) -> None:
        for wanted, present in ((uid, uid_of(found)), (version, version_of(found))):
            if wanted is not None and wanted != present:
                raise Conflict(f"{name_of(found)}: {wanted} wanted, {present} found")

    async def _put(self, kind: Kind, change: ChangeKind, thing: Plain) -> None:
        self._objects[kind][name_of(thing)] = thing
        await self._record(kind, change, thing)

    async def _record(self, kind: Kind, change: ChangeKind, thing: Plain) -> None:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, change, copy.deepcopy(thing)))
        async with self._moved:
            self._moved.notify_all()

    async def _changes(self, kind: Kind, selector: Selector, version: int, cuts: int) -> AsyncGenerator[Change]:
        if version < self._oldest:
            raise WatchExpired(f"too old resource version: {version}")
        while True:
            for number, of, change, thing in list(self._history):
                if number > version and of is kind and selects(selector, thing):
                    yield Change(change, copy.deepcopy(thing))
                version = max(version, number)
            async with self._moved:
                if self._version == version:
                    await self._moved.wait()
            if self._cuts != cuts:
                return


def merge(target: Plain, changes: Plain) -> Plain:
    """A JSON merge patch, RFC 7386."""
    result = copy.deepcopy(target)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            old = result.get(key)
            result[key] = merge(old if isinstance(old, dict) else {}, value)
        else:
            result[key] = value
    return result


def selects(selector: Selector, thing: Object) -> bool:
    """Equality of labels, and of fields given by their path."""
    labels = dict(each.split("=", 1) for each in selector.labels.split(",") if each)
    if any(labels_of(thing).get(key) != value for key, value in labels.items()):
        return False
    for key, value in (each.split("=", 1) for each in selector.fields.split(",") if each):
        found: Any = thing
        for part in key.split("."):
            found = found.get(part, {})
        if found != value:
            return False
    return True
