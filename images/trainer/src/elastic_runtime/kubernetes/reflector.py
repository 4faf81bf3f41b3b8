"""A copy of all objects of one kind, kept up to date by one watch: list once, then hear of every change.

See the `API concepts`_: a watch goes on from the resourceVersion of the last thing heard, bookmarks move that along in
silence, and 410 says that the server's history does not go back so far, so that it has to be listed again.

.. _API concepts: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic

from elastic_runtime.errors import ElasticError, WatchExpired
from elastic_runtime.kubernetes.client import ChangeKind, Client
from elastic_runtime.kubernetes.resources import Kind, V
from elastic_runtime.kubernetes.retry import UNTIL_BACK, until_mended

SHORT = 1.0
"""Seconds. A watch that was shorter counts as a failure: something between here and the server ends them."""


class Reflector(Generic[V]):
    """The copy.

    Args:
        client: of the namespace.
        kind: of the objects.
        labels: which of them, by a label selector.
        fields: which of them, by a field selector.
        changed: called with every object that came, changed or went.
        troubled: called with the error when the connection is lost, or refused; with None when it is back.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[V],
        *,
        labels: str = "",
        fields: str = "",
        changed: Callable[[V], None],
        troubled: Callable[[ElasticError | None], None] = lambda _: None,
    ) -> None:
        self.objects: dict[str, V] = {}
        """By name."""
        self.current = False
        """Listed, and watched since without a gap."""
        self.trouble: ElasticError | None = None
        """Why it is not current."""
        self._client = client
        self._kind = kind
        self._labels, self._fields = labels, fields
        self._changed, self._troubled = changed, troubled
        self._version: str | None = None
        self._failures = 0

    async def fill(self) -> None:
        """List. Raises what the API server says."""
        found = await self._client.listing(self._kind, self._labels, self._fields)
        # Another one: threads may look at the one before.
        before, self.objects = self.objects, {thing.name: _lean(thing) for thing in found.objects}
        self._version = found.version
        self._connected()
        for name, thing in (before | self.objects).items():
            if before.get(name) != self.objects.get(name):
                self._changed(thing)

    async def run(self) -> None:
        """Until cancelled. Whatever goes wrong is tried again: ever less often, and what is refused hardly ever."""
        while True:
            policy = UNTIL_BACK
            self._failures += 1
            try:
                if self._version is None:
                    await self.fill()
                await self._watch()
            except WatchExpired:
                self._version = None
            except ElasticError as error:
                policy = until_mended(error)
                self._lost(error)
            if self._failures:
                await asyncio.sleep(policy.delay(self._failures))

    def distrust(self) -> None:
        """List anew before anything is believed; the caller restarts :meth:`run`."""
        self.current, self._version = False, None

    async def _watch(self) -> None:
        assert self._version is not None  # listed
        now = asyncio.get_running_loop().time
        async with self._client.watch(self._kind, self._version, self._labels, self._fields) as changes:
            self._connected()
            began = now()
            try:
                async for change in changes:
                    self._apply(change.kind, change.object)
            finally:
                if now() >= began + SHORT:
                    self._failures = 0

    def _apply(self, kind: ChangeKind, thing: V) -> None:
        self._version = thing.version
        if kind is ChangeKind.BOOKMARK:
            return
        if kind is ChangeKind.DELETED:
            self.objects.pop(thing.name, None)
        else:
            self.objects[thing.name] = _lean(thing)
        self._changed(thing)

    def _connected(self) -> None:
        before, self.trouble, self.current = self.trouble, None, True
        if before is not None:
            self._troubled(None)

    def _lost(self, error: ElasticError) -> None:
        before, self.trouble, self.current = self.trouble, error, False
        if type(before) is not type(error):
            self._troubled(error)


def _lean(thing: V) -> V:
    """Without the record of who set which field, which is most of many an object, and of no use here."""
    thing.raw["metadata"].pop("managedFields", None)
    return thing
