"""An AdaptedDriver with ranks that are threads of the test: they report when the test says so."""

from __future__ import annotations

import contextlib
import http.client
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from horovod.runner.elastic.worker import HostUpdateResult

from elastic_runtime.engines.horovod.driver import (
    AdaptedDriver,
    ElasticHandler,
    PushedHosts,
    SessionEnd,
    rank_environment,
)
from elastic_runtime.engines.horovod.rendezvous_server import HOSTS_UPDATED, RendezvousServer, authorization

SOON = 10.0
"""Seconds after which what should have happened has not."""


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Its result, or what it raised."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="of the test", daemon=True).start()
    return future


class Heard:
    """What a rank has heard of changes of hosts."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[float, HostUpdateResult]] = queue.Queue()

    def handle_hosts_updated(self, timestamp: float, update: HostUpdateResult) -> None:
        """One more; Horovod's own service calls it so."""
        self.heard.put((timestamp, update))

    def hear(self) -> tuple[float, HostUpdateResult]:
        """The next notification."""
        return self.heard.get(timeout=SOON)


class Bench:
    """Args: minimum: fewest ranks."""

    def __init__(self, minimum: int = 1) -> None:
        self.minimum = minimum
        self.worlds: queue.Queue[list[str]] = queue.Queue()
        self.came: queue.Queue[str] = queue.Queue()
        self.waiting: queue.Queue[None] = queue.Queue()
        self.ends: queue.Queue[SessionEnd] = queue.Queue()
        self.joined: queue.Queue[str] = queue.Queue()
        self.started: queue.Queue[str] = queue.Queue()
        self._exits: dict[str, Future[int]] = {}
        self.rendezvous = RendezvousServer("127.0.0.1")
        self.driver = AdaptedDriver(
            self.rendezvous,
            PushedHosts(),
            minimum,
            on_assigned=lambda members: self.worlds.put([host for host, _ in members]),
            on_ready=self.came.put,
            on_waiting=lambda: self.waiting.put(None),
            on_end=self.ends.put,
        )
        self.port = self.rendezvous.start(ElasticHandler(self.driver, self.joined.put, print))
        self.start: Future[Any]

    def begin(self, *hosts: str) -> list[str]:
        """Start with these hosts. Returns those that were started as ranks."""
        self.driver.push(hosts, self.minimum)
        self.start = in_thread(lambda: self.driver.start(self.minimum, self._create_worker))
        self.start.result(SOON)
        assert self.worlds.get(timeout=SOON) == list(hosts)
        return sorted(self.started.get(timeout=SOON) for _ in hosts)

    def environment(self, host: str) -> dict[str, str]:
        """Of that rank."""
        token = self.rendezvous.tokens.of(host)
        return rank_environment("127.0.0.1", self.port, "lo", self.driver.get_slot_info(host, 0), token)

    def listen(self, host: str) -> Heard:
        """That rank asks for changes from now on, as the amended Horovod does, until the rendezvous is gone."""
        heard, headers = Heard(), authorization(self.rendezvous.tokens.of(host))

        def ask() -> None:
            while True:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON)
                with contextlib.closing(connection), contextlib.suppress(http.client.HTTPException):
                    connection.request("GET", f"/{HOSTS_UPDATED}/{host}:0", headers=headers)
                    answer = connection.getresponse()
                    if answer.status == http.client.OK:
                        timestamp, update = answer.read().split()
                        heard.handle_hosts_updated(float(timestamp), HostUpdateResult(int(update)))

        in_thread(ask)
        wait_until(lambda: host in self.rendezvous._updates)
        return heard

    def push(self, *hosts: str) -> None:
        """List these."""
        self.driver.push(hosts, self.minimum)

    def ready(self, host: str) -> Future[Any]:
        """The rank of that host comes to the barrier. Returns what it will be answered."""

        def ask() -> Any:
            self.driver.record_ready(host, 0)
            return self.driver.get_slot_info(host, 0)

        known = self.driver._worker_registry.get_recorded_slots
        future = in_thread(ask)
        wait_until(lambda: (host, 0) in known() or future.done())
        return future

    def exit(self, host: str, code: int) -> None:
        """The rank of that host ends."""
        self._exits[host].set_result(code)

    def next_world(self) -> list[str]:
        """Hosts of the next world, by rank."""
        return self.worlds.get(timeout=SOON)

    def end(self) -> SessionEnd:
        """How the driver ended."""
        return self.ends.get(timeout=SOON)

    def _create_worker(self, slot: Any, _events: Sequence[threading.Event]) -> tuple[int, float]:
        self._exits[slot.hostname] = Future()
        self.started.put(slot.hostname)
        return self._exits[slot.hostname].result(), time.time()

    def close(self) -> None:
        """End driver and ranks."""
        self.driver.end(SessionEnd.STOPPED)
        for each in self._exits.values():
            if not each.done():
                each.set_result(-9)
        self.driver.get_results()  # joins the ranks' threads


def wait_until(condition: Callable[[], bool]) -> None:
    """For what Horovod has no event for."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@contextmanager
def bench(minimum: int = 1) -> Iterator[Bench]:
    """One that leaves nothing behind."""
    before = set(threading.enumerate())
    made = Bench(minimum)
    try:
        yield made
    finally:
        made.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(SOON)
            assert not thread.is_alive(), f"{thread} is still there"
