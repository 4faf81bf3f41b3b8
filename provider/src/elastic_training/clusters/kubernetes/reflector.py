"""A copy of all objects of one kind, kept up to date by one watch: list once, then hear of every change.

See the `API concepts`_: a watch goes on from the resourceVersion of the last thing heard, bookmarks move that along in
silence, and 410 says that the server's history does not go back so far, so that it has to be listed again.

.. _API concepts: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable

from elastic_runtime.errors import RetryableError, WatchExpired
from elastic_runtime.kubernetes.errors import translate
from elastic_training.clusters.kubernetes import resources
from elastic_training.clusters.kubernetes.aio import AsyncApi
from elastic_training.clusters.kubernetes.cursor import Lines
from elastic_training.clusters.kubernetes.resources import Kind, Object

WATCH_SECONDS = (240, 360)
"""For how long the server is asked to keep one watch open; drawn at random, so that not all begin anew at once."""
PAUSE = (0.2, 15.0)
"""First and longest pause, in seconds, while the server does not answer; it doubles, and is drawn at random below."""
_SHORTEST = 1.0
_LONGEST_EVENT = 4 << 20
"""Bytes; etcd takes no object larger than 1.5 MiB, and JSON in JSON grows by its quotes."""


class Reflector:
    """The copy.

    Args:
        api: of the event loop.
        kind: of the objects.
        namespace: of the objects.
        labels: which of them.
        changed: called with every object that came, changed or went.
    """

    def __init__(
        self, api: AsyncApi, kind: Kind, namespace: str, labels: str, changed: Callable[[Object], None]
    ) -> None:
        self.objects: dict[str, Object] = {}
        """By name."""
        self.current = False
        """Listed, and watched since without a gap."""
        self.trouble: RetryableError | None = None
        """Why it is not current."""
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._changed = changed
        self._version = ""

    async def run(self) -> None:
        """Until cancelled. Raises PermanentError when the server will never allow it."""
        pause = PAUSE[0]
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                pause = PAUSE[0]
            except (WatchExpired, ValueError):  # No JSON: an answer that was cut short, or is none of Kubernetes'.
                self._version = ""
            except RetryableError as error:
                self.current, self.trouble = False, error
                await asyncio.sleep(random.uniform(PAUSE[0], pause))  # noqa: S311  # spreads load, guards nothing
                pause = min(2 * pause, PAUSE[1])

    def distrust(self) -> None:
        """List anew before anything is believed; the caller restarts :meth:`run`."""
        self.current, self._version = False, ""

    async def _list(self) -> None:
        found, version = await self._api.list(self._kind, self._namespace, self._labels)
        before, self.objects = self.objects, {resources.name_of(thing): _lean(thing) for thing in found}
        self._version = version
        self._current()
        for name, thing in (before | self.objects).items():
            if before.get(name) != self.objects.get(name):
                self._changed(thing)

    async def _watch(self) -> None:
        query = {
            "watch": "1",
            "labelSelector": self._labels,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311  # spreads load, guards nothing
        }
        lines, began = Lines(_LONGEST_EVENT), asyncio.get_running_loop().time()
        async with self._api.stream(self._kind.path(self._namespace), query) as pieces:
            self._current()
            async for piece in pieces:
                for line in lines.feed(piece):
                    self._hear(json.loads(line))
        if asyncio.get_running_loop().time() < began + _SHORTEST:
            await asyncio.sleep(_SHORTEST)  # Something between here and the server keeps no stream open.

    def _current(self) -> None:
        self.current, self.trouble = True, None

    def _hear(self, event: Object) -> None:
        thing: Object = event["object"]
        if event["type"] == "ERROR":
            raise translate(int(thing.get("code", 500)), json.dumps(thing), f"watch {self._kind.plural}")
        self._version = resources.version_of(thing)
        if event["type"] == "BOOKMARK":
            return
        name = resources.name_of(thing)
        if event["type"] == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = _lean(thing)
        self._changed(thing)


def _lean(thing: Object) -> Object:
    """Without the record of who set which field, which is most of many an object, and of no use here."""
    thing["metadata"].pop("managedFields", None)
    return thing
