"""The log of a run: the output of its launchers, one after the other, streamed as it is written.

A stream may break at any time, and goes on at the :class:`Cursor`. A launcher's log is complete when a stream that was
opened after its container had ended came to its end; only then comes the next launcher's. One whose node is gone
without a word never gets there: it is left when it has been silent for a while and there is another one, or it is no
longer known to Kubernetes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from elastic_runtime.errors import InvalidSettings, PermanentError, RetryableError, RunNotFound
from elastic_runtime.kubernetes.objects import Pod
from elastic_runtime.kubernetes.resources import PODS
from elastic_runtime.net.framing import LineSplitter
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run import runobjects
from elastic_training.clusters.kubernetes.status import diagnosis
from elastic_training.clusters.kubernetes.watching.cursor import LONGEST, Cursor, Passing, split
from elastic_training.clusters.kubernetes.watching.hub import Hub
from elastic_training.clusters.types import LogLines, RunRef

SILENCE = 15.0
"""Seconds after which a launcher that nobody needs any more is not listened to any longer."""
BROKEN = RetryPolicy(0.5, 10.0, jitter=True)
"""After a stream broke."""
PAUSE = 0.5
"""Seconds in which Kubernetes says what has become of a container."""
_ENOUGH = 5000
"""Lines that wait here, before the rest waits at the server."""
_MUCH = 8 << 20
"""Characters of them. A triggerer has a thousand runs to wait for, and a line of output may have a million."""


class Tail:
    """Reads the log of one run.

    Args:
        hub: knows the launchers.
        ref: of the run.
        cursor: where to begin.
        wake: set when there is something to take.
    """

    def __init__(self, hub: Hub, ref: RunRef, cursor: Cursor, wake: asyncio.Event) -> None:
        self.failure: PermanentError | None = None
        """Why nothing more will come."""
        self._hub = hub
        self._ref = ref
        self._cursor = cursor
        self._wake = wake
        self._lines: list[str] = []
        self._size = 0
        self._room = asyncio.Event()
        self._done: set[str] = set()
        self._last_line_at = 0.0
        self._retry = Retry(BROKEN)

    @property
    def at_end(self) -> bool:
        """Every launcher that there is has ended, and its log is here."""
        pod = self._next()
        return pod is None or not diagnosis.started(pod)

    @property
    def waiting(self) -> bool:
        """Whether there are lines to take."""
        return bool(self._lines)

    @property
    def _full(self) -> bool:
        return len(self._lines) > _ENOUGH or self._size > _MUCH

    def take(self) -> LogLines:
        """Return what has arrived since the last call."""
        if self._full:  # Nothing was read from the launcher until now.
            self._last_line_at = asyncio.get_running_loop().time()
        lines, self._lines, self._size = tuple(self._lines), [], 0
        self._room.set()
        return LogLines(lines, str(self._cursor))

    async def run(self) -> None:
        """Read the logs of the run's launchers in turn, until cancelled or until :attr:`failure` is set."""
        with self._hub.subscribed(self._ref.name) as changed:
            while self.failure is None:
                changed.clear()
                pod = self._next()
                if pod is None or not diagnosis.started(pod):
                    await changed.wait()
                else:
                    await self._read_while_needed(pod, changed)

    def _next(self) -> Pod | None:
        """The launcher to be read."""
        for pod in self._hub.pods(self._ref):
            behind = pod.metadata["creationTimestamp"] < self._cursor.created and pod.uid != self._cursor.pod
            if pod.uid in self._done or behind or (pod.over and not diagnosis.started(pod)):
                continue
            return pod
        return None

    def _finish(self, pod: Pod) -> None:
        self._done.add(pod.uid)
        self._wake.set()

    async def _read_while_needed(self, pod: Pod, changed: asyncio.Event) -> None:
        self._last_line_at = asyncio.get_running_loop().time()
        reading = asyncio.create_task(self._read(pod, changed), name=f"log of {pod.name}")
        reading.add_done_callback(lambda _: changed.set())
        try:
            while not reading.done():
                left = self._patience(pod)
                if left is not None and left <= 0:
                    self._finish(pod)
                    return
                changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()
            reading.result()
        except PermanentError as error:
            self.failure = error
            self._wake.set()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _patience(self, pod: Pod) -> float | None:
        """Seconds after which a silent launcher is left. None: it is not, as long as the run's pods do not change."""
        if not self._obsolete(pod):
            return None
        if self._full:  # Its lines are not read, so it is not silent.
            return SILENCE
        return self._last_line_at + SILENCE - asyncio.get_running_loop().time()

    def _obsolete(self, pod: Pod) -> bool:
        """Whether there is another launcher, or this one is not known any more."""
        uids = [each.uid for each in self._hub.pods(self._ref) if diagnosis.started(each)]
        return pod.uid not in uids or uids[-1] != pod.uid

    async def _read(self, pod: Pod, changed: asyncio.Event) -> None:
        """One stream, and what its end means."""
        try:
            await self._stream(pod)
        except RunNotFound:
            self._finish(pod)  # It is gone, and its log with it.
        except InvalidSettings:
            await asyncio.sleep(PAUSE)  # 400: its container is not there yet, or not any more.
        except RetryableError:
            await self._retry.pause()
        else:
            self._retry.succeeded()
            if diagnosis.ended(pod):
                self._finish(pod)
                return
            # Most likely the container has ended since, and Kubernetes is about to say so.
            changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE):
                    await changed.wait()

    async def _stream(self, pod: Pod) -> None:
        cursor = self._cursor.at(pod.metadata["creationTimestamp"], pod.uid)
        query = {"container": runobjects.LAUNCHER_CONTAINER, "follow": "true", "timestamps": "true"}
        if cursor.since is not None:
            query["sinceTime"] = cursor.since
        lines, passing = LineSplitter(LONGEST), Passing(cursor)
        self._cursor = cursor
        async with self._hub.client.stream(PODS, pod.name, "log", query) as pieces:
            async for piece in pieces:
                for line in lines.feed(piece):
                    self._add(line, passing)
                while self._full:
                    self._room.clear()
                    await self._room.wait()
        if diagnosis.ended(pod):
            for line in lines.end():  # Of one that was still running, the rest of it comes with the next stream.
                self._add(line, passing)

    def _add(self, line: bytes, passing: Passing) -> None:
        self._last_line_at = asyncio.get_running_loop().time()
        self._retry.succeeded()
        stamp, text = split(line)
        # Without a stamp it is not a line of the log, but the kubelet's word that there is none.
        if stamp is not None and passing.new(stamp):
            self._cursor = self._cursor.after(stamp)
            if not self._lines:  # Whoever has been woken for the first line takes those behind it, too.
                self._wake.set()
            self._lines.append(text)
            self._size += len(text)
