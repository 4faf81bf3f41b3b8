"""One watch for all runs of a namespace that this event loop waits for, however many they are.

Three streams (ConfigMaps, Jobs, launcher pods), each a :class:`Reflector` of what belongs to this package; whoever
waits for a run is woken when one of its objects changes, and looks into the copy. It begins with its first subscriber
and ends with its last.

A process may stand still: stopped, swapped out, its machine suspended. Somebody else may have taken its runs over
meanwhile, and nothing in the copy says so. So the copy is trusted only while a heartbeat of its own came on time, by
two clocks, one of which goes on while the machine sleeps; after a stall everything is listed anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from elastic_runtime.errors import ClusterUnavailable, ElasticError, PermanentError
from elastic_runtime.kubernetes.client import Client
from elastic_runtime.kubernetes.objects import Object, Pod
from elastic_runtime.kubernetes.reflector import Reflector
from elastic_runtime.kubernetes.resources import CONFIG_MAPS, JOBS, PODS
from elastic_runtime.run import runobjects
from elastic_runtime.run.runobjects import ObjectNames, Part
from elastic_training.clusters.document import RunDocument
from elastic_training.clusters.kubernetes import connection
from elastic_training.clusters.kubernetes.access import Access
from elastic_training.clusters.kubernetes.documents.root import document, of_run
from elastic_training.clusters.kubernetes.status.diagnosis import age
from elastic_training.clusters.kubernetes.status.judgement import Announced, announced
from elastic_training.clusters.types import RunRef

HEARTBEAT = 1.0
STALL = 5.0
"""Seconds without a heartbeat after which nothing that was seen before is believed."""
OUTAGE = 30.0
"""Seconds for which subscribers are not told that the server does not answer."""


class Hub:
    """The watch of one namespace.

    Args:
        client: of the namespace.
        confirm: asked every :data:`connection.FRESH` seconds whether that client may still be used; raises if not.
    """

    def __init__(self, client: Client, confirm: Callable[[], Awaitable[None]] | None = None) -> None:
        self.client = client
        self._confirm = confirm
        self._revoked: ElasticError | None = None
        every, launchers = runobjects.selector(), runobjects.selector(part=Part.LAUNCHER)
        troubled = self._troubled
        self._maps = Reflector(client, CONFIG_MAPS, labels=every, changed=self._map_changed, troubled=troubled)
        self._jobs = Reflector(client, JOBS, labels=every, changed=self._changed, troubled=troubled)
        self._pods = Reflector(client, PODS, labels=launchers, changed=self._pod_changed, troubled=troubled)
        self._reflectors: tuple[Reflector[Any], ...] = (self._maps, self._jobs, self._pods)
        self._pods_of: dict[str, dict[str, Pod]] = defaultdict(dict)
        self._announced: dict[str, Announced] = {}
        """In each status that there is, by its object's name."""
        self._subscribers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._current_at = time.monotonic()
        self._beat()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Watch, until the task that this returns is cancelled."""
        self._task = self._task or asyncio.create_task(self._run(), name=f"watch of namespace {self.client.namespace}")
        return self._task

    @property
    def runs(self) -> int:
        """Number of runs with subscribers."""
        return len(self._subscribers)

    @property
    def current(self) -> bool:
        """Whether the copy is complete and watched, as far as this process knows; see :attr:`trusted`."""
        return all(reflector.current for reflector in self._reflectors)

    @property
    def trusted(self) -> bool:
        """Whether the copy can be believed this moment. For any thread."""
        return self.current and not self._stood_still()

    def check(self) -> None:
        """Raises what keeps the watch from going on: PermanentError, or ClusterUnavailable, at once or after a while.

        A process that has too little of its machine is late with everything, which is not an outage: if each of its
        runs now closed its streams to open them again, it would only be later.
        """
        if self._revoked is not None:
            raise self._revoked
        troubles = [reflector.trouble for reflector in self._reflectors if reflector.trouble]
        for trouble in troubles:
            if isinstance(trouble, PermanentError):
                raise trouble
        if self.current or not troubles:
            self._current_at = time.monotonic()
        elif time.monotonic() > self._current_at + OUTAGE:
            raise ClusterUnavailable(str(troubles[0]))

    def root(self, ref: RunRef) -> RunDocument | None:
        """Return the root of this incarnation. None: it does not exist or is being deleted. Thread-safe."""
        thing = self._maps.objects.get(ObjectNames(ref.name).root)
        found = document(thing) if thing is not None and of_run(thing, ref.uid) else None
        return None if found is None or found.going else found

    def status_map(self, ref: RunRef) -> Object | None:
        """The ConfigMap that holds its status."""
        return _of(ref, self._maps.objects.get(ObjectNames(ref.name).status))

    def announced(self, status: Object) -> Announced:
        """Return the announcement in a :meth:`status_map`, parsed once for all readers."""
        return self._announced.get(status.name) or announced(status)

    def marks(self, name: str) -> tuple[object, ...]:
        """Return objects of the run of this name that stay identical until a change that wakes its subscribers."""
        names = ObjectNames(name)
        root, job = self._maps.objects.get(names.root), self._jobs.objects.get(names.launcher)
        return (root, self._announced.get(names.status), job, *self._pods_of.get(name, {}).values())

    def job(self, ref: RunRef) -> Object | None:
        """Return the Job of the run's launchers."""
        return _of(ref, self._jobs.objects.get(ObjectNames(ref.name).launcher))

    def pods(self, ref: RunRef) -> list[Pod]:
        """Its launchers, in the order in which they were created."""
        mine = [pod for pod in self._pods_of.get(ref.name, {}).values() if _of(ref, pod)]
        return sorted(mine, key=age)

    @contextmanager
    def subscribed(self, name: str) -> Iterator[asyncio.Event]:
        """Set whenever an object of the run of this name has changed, and when the watch fails."""
        event = asyncio.Event()
        self._subscribers[name].add(event)
        try:
            yield event
        finally:
            self._subscribers[name].discard(event)
            if not self._subscribers[name]:
                del self._subscribers[name]

    async def _run(self) -> None:
        confirming = asyncio.create_task(self._confirm_again(), name="its connection")
        try:
            await self._watch()
        finally:
            confirming.cancel()
            await asyncio.gather(confirming, return_exceptions=True)

    async def _confirm_again(self) -> None:
        while self._confirm is not None and self._revoked is None:
            await asyncio.sleep(connection.FRESH)
            try:
                await self._confirm()
            except ElasticError as error:
                self._revoked = error
                self._wake_all()

    async def _watch(self) -> None:
        while True:
            tasks = [asyncio.create_task(each.run(), name="one kind of it") for each in self._reflectors]
            try:
                await self._until_stalled(tasks)
            finally:
                # In one go: nothing that was asked for before the stall may still be taken for an answer after it.
                for task, reflector in zip(tasks, self._reflectors, strict=True):
                    task.cancel()
                    reflector.distrust()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_stalled(self, tasks: list[asyncio.Task[None]]) -> None:
        self._beat()
        while True:
            done, _ = await asyncio.wait(tasks, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._stood_still():
                return
            self._beat()

    def _beat(self) -> None:
        self._beaten = time.monotonic(), time.time()

    def _stood_still(self) -> bool:
        steady, wall = self._beaten
        return max(time.monotonic() - steady, abs(time.time() - wall)) > STALL

    def _changed(self, thing: Object) -> None:
        name = thing.labels.get(runobjects.RUN_LABEL, "")
        for event in self._subscribers.get(name, ()):
            event.set()

    def _map_changed(self, thing: Object) -> None:
        """Of a status whose step and figures have changed, nobody needs to be woken for: they are read in passing."""
        if thing.labels.get(runobjects.PART_LABEL) == Part.STATUS:
            name = thing.name
            before = self._announced.pop(name, None)
            if name in self._maps.objects:
                said = announced(thing)
                if said == before:
                    self._announced[name] = before
                    return
                self._announced[name] = said
        self._changed(thing)

    def _pod_changed(self, pod: Pod) -> None:
        name, run = pod.name, pod.labels.get(runobjects.RUN_LABEL, "")
        present = self._pods.objects.get(name)
        if present is not None:
            self._pods_of[run][name] = present
        elif run in self._pods_of:
            self._pods_of[run].pop(name, None)
            if not self._pods_of[run]:
                del self._pods_of[run]
        self._changed(pod)

    def _troubled(self, error: ElasticError | None) -> None:
        if isinstance(error, PermanentError):
            self._wake_all()

    def _wake_all(self) -> None:
        for event in (event for events in self._subscribers.values() for event in events):
            event.set()


def _of(ref: RunRef, thing: Object | None) -> Object | None:
    return thing if thing is not None and of_run(thing, ref.uid) else None


_hubs: dict[tuple[asyncio.AbstractEventLoop, Access, str], tuple[Hub, int]] = {}


@asynccontextmanager
async def watching(access: Access, namespace: str) -> AsyncIterator[Hub]:
    """The watch of that namespace in the running event loop."""
    async with connection.client(access, namespace) as client:
        key = (asyncio.get_running_loop(), access, namespace)
        hub, users = _hubs.get(key) or (Hub(client, lambda: connection.confirm(access)), 0)
        _hubs[key] = hub, users + 1
        task = hub.start()
        try:
            yield hub
        finally:
            hub, users = _hubs.pop(key)
            if users > 1:
                _hubs[key] = hub, users - 1
            else:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def cached_root(access: Access, namespace: str, ref: RunRef, *, trusted: bool) -> RunDocument | None:
    """Return the root that this process saw last, while it watches the namespace. Thread-safe.

    Args:
        access: of the cluster.
        namespace: of the run.
        ref: of the run.
        trusted: only when it can be believed; otherwise it may be old, which a conditional change finds out.
    """
    for (_, each, where), (hub, _) in list(_hubs.items()):
        if each == access and where == namespace and (hub.trusted or not trusted) and (found := hub.root(ref)):
            return found
    return None
