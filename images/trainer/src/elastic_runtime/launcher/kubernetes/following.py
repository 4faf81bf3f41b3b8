"""Keeping up with what becomes of objects, as long as the launcher lives, however often the API server goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from elastic_runtime.errors import ElasticError, WatchExpired
from elastic_runtime.launcher.kubernetes.interface import Api, ChangeKind, Kind, Object, Selector, name_of

log = logging.getLogger(__name__)

PAUSE, LONGEST_PAUSE = 0.5, 15.0
"""Seconds between two attempts while the API server is away, at first and at most; the pause doubles."""
SHORT_WATCH = 1.0
"""Seconds. After a watch that was shorter there is a pause, too: something in between ends them."""


class Mirror:
    """The objects of one kind that a selector selects, as last heard of.

    Args:
        kind, selector: which.
        on_change: called after every change, and when the connection to the API server is lost or back.
        quiet: leave it to others to say that the API server is away.
    """

    def __init__(self, kind: Kind, selector: Selector, on_change: Callable[[], None], *, quiet: bool = False) -> None:
        self._kind, self._selector, self._on_change = kind, selector, on_change
        self._levels = (logging.DEBUG, logging.DEBUG) if quiet else (logging.INFO, logging.WARNING)
        self._version: str | None = None
        self.objects: dict[str, Object] = {}
        """By name."""
        self.away = False
        """The API server does not answer."""

    async def fill(self, api: Api) -> None:
        """List. Raises what the API server says."""
        listing = await api.list(self._kind, self._selector)
        self.objects.clear()
        self.objects.update((name_of(each), each) for each in listing.objects)
        self._version = listing.version
        self._here()

    async def follow(self, api: Api) -> None:
        """Until cancelled; whatever goes wrong is tried again."""
        pause, loop = PAUSE, asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                if self._version is None:
                    await self.fill(api)
                await self._watch(api)
            except WatchExpired:
                self._version = None
            except ElasticError as error:
                self._gone(error)
            if loop.time() - begun >= SHORT_WATCH and not self.away:
                pause = PAUSE
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _watch(self, api: Api) -> None:
        assert self._version is not None  # filled
        async with api.watch(self._kind, self._selector, self._version) as changes:
            self._here()
            async for change in changes:
                self._version = change.version
                if change.kind is ChangeKind.BOOKMARK:
                    continue
                if change.kind is ChangeKind.DELETED:
                    self.objects.pop(name_of(change.object), None)
                else:
                    self.objects[name_of(change.object)] = change.object
                self._on_change()

    def _here(self) -> None:
        if self.away:
            log.log(self._levels[0], "the API server answers again for %s", self._kind)
        self.away = False
        self._on_change()

    def _gone(self, error: ElasticError) -> None:
        if not self.away:
            log.log(self._levels[1], "training goes on, but no news of %s: %s", self._kind, error)
        self.away = True
        self._on_change()
