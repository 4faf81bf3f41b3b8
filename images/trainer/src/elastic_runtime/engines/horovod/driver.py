"""Horovod's ElasticDriver with what is wrong with it put right.

See the table in :mod:`elastic_runtime.engines.horovod`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from horovod.runner.elastic.discovery import HostDiscovery, HostManager
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.registration import FAILURE, READY, SUCCESS, WorkerStateRegistry
from horovod.runner.elastic.worker import HostUpdateResult

from elastic_runtime.engines.horovod.rendezvous import RollCall
from elastic_runtime.engines.horovod.rendezvous_server import RendezvousServer

log = logging.getLogger(__name__)

RESEND = 0.25
"""Seconds after which a notification that changed nothing is sent again."""


class SessionEnd(StrEnum):
    """How the life of one driver ended."""

    SUCCEEDED = "succeeded"
    """Every rank of the last world ended with 0."""
    EARLY_EXIT = "early_exit"
    """A rank ended with 0 while others were still training."""
    ALL_FAILED = "all_failed"
    """No rank of the last world is left."""
    NO_SURVIVOR = "no_survivor"
    """Hosts came, but none that still holds the state."""
    STOPPED = "stopped"
    """We asked for it."""


class PushedHosts(HostDiscovery):  # type: ignore[misc]  # horovod is not typed
    """Host discovery that is told instead of asked; one slot a host, in the order of ranks to be."""

    def __init__(self) -> None:
        self._hosts: tuple[str, ...] = ()

    def replace(self, hosts: Iterable[str]) -> None:
        """These are the hosts from now on."""
        self._hosts = tuple(hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Host to slots, in order."""
        return dict.fromkeys(self._hosts, 1)


class OrderedHostManager(HostManager):  # type: ignore[misc]  # horovod is not typed
    """Orders newcomers as they are listed; upstream iterates over a set of strings."""

    def __init__(self, discovery: PushedHosts) -> None:
        self._veterans: frozenset[str] = frozenset()
        super().__init__(discovery)

    def update_available_hosts(self) -> HostUpdateResult:
        """Ask the discovery, and keep its order among the hosts that are new."""
        result = super().update_available_hosts()
        known = self._current_hosts.host_assignment_order
        order = {host: index for index, host in enumerate(self._current_hosts.host_slots)}
        veterans = [host for host in known if host in self._veterans]
        newcomers = sorted((host for host in known if host not in self._veterans), key=order.__getitem__)
        self._current_hosts._host_assignment_order = veterans + newcomers
        self._veterans = frozenset(known)
        return result


class AdaptedRegistry(WorkerStateRegistry):  # type: ignore[misc]  # horovod is not typed
    """Counts only ranks that belong to the world, each once, and tells a success from an early exit."""

    def __init__(self, *arguments: Any) -> None:
        self._waiting: dict[tuple[tuple[str, int], str], threading.Event] = {}
        """Who stands at the barrier, and as what; set when it has left."""
        super().__init__(*arguments)

    def get(self, state: str) -> set[tuple[str, int]]:
        """Host and slot of the ranks in that state; upstream leaves one that failed at the barrier in READY, too."""
        return {key for key, recorded in list(self._states.items()) if recorded == state}

    def count(self, state: str) -> int:
        """How many ranks are in that state."""
        return len(self.get(state))

    def record_success(self, host: str, slot: int) -> int:
        """A rank has ended with 0. One that has come to the barrier is gone from there; upstream counts it twice."""
        gone = self._states.get((host, slot)) == READY
        return int(self.record_failure(host, slot) if gone else super().record_success(host, slot))

    def _wait(self, key: tuple[str, int], state: str, rendezvous_id: int) -> int:
        with self._lock:
            waiting = self._waiting.get((key, state))
            if first := waiting is None:
                waiting = self._waiting[key, state] = threading.Event()
        if not first:
            waiting.wait()  # It has a place at the barrier; upstream gives it one for each time that it asks.
            return rendezvous_id
        try:
            return self._wait_once(key, state, rendezvous_id)
        finally:
            with self._lock:
                del self._waiting[key, state]
            waiting.set()

    def _wait_once(self, key: tuple[str, int], state: str, rendezvous_id: int) -> int:
        if not self._driver.has_rank_assignment(*key):
            with self._lock:
                self._states.pop(key, None)
            return rendezvous_id
        with self._lock:
            if (recorded := self._states.get(key, state)) != state:
                # Its worker was lost a moment before itself; upstream has it take a second place at the barrier.
                raise RuntimeError(f"{key[0]} comes as {state}, and is known as {recorded}")
        if state == READY:
            self._driver.on_ready(key[0])
        try:
            return int(super()._wait(key, state, rendezvous_id))
        except threading.BrokenBarrierError:
            return rendezvous_id  # The driver has ended, and with it every wait.

    def abort(self) -> None:
        """Let go of every thread that waits for the next world."""
        if self._barrier is not None:
            self._barrier.abort()

    def _on_workers_recorded(self) -> None:
        """The barrier is full: every rank of the world is ready for the next one, done, or gone."""
        done, failed, ready = self.count(SUCCESS), self.count(FAILURE), self.count(READY)
        log.debug("all %d ranks recorded: %d done, %d failed, %d ready", self.size(), done, failed, ready)
        if done == self.size():
            self._driver.conclude(SessionEnd.SUCCEEDED)
        elif done and ready:
            self._driver.conclude(SessionEnd.EARLY_EXIT)
        elif not ready:
            self._driver.conclude(SessionEnd.ALL_FAILED)
        else:
            self._go_on()

    def _go_on(self) -> None:
        for host, _slot in self.get(FAILURE):
            self._host_manager.blacklist(host)
        try:
            self._driver.resume()
        except (RuntimeError, ValueError) as error:  # "No hosts from previous set", time-out, or stopped meanwhile
            log.debug("no further world: %s", error)
            self._driver.conclude(SessionEnd.NO_SURVIVOR)


class AdaptedDriver(ElasticDriver):  # type: ignore[misc]  # horovod is not typed
    """ElasticDriver with pushed hosts.

    Args:
        rendezvous: started by the caller, stopped by the driver when it ends.
        hosts: the discovery that :meth:`push` feeds.
        minimum: fewest ranks of a world.
        on_assigned: called with (host, rank) pairs when the ranks of the next world have been decided.
        on_ready: called with the host of each rank of the present world that has come to the barrier, before any
            ``on_assigned`` or ``on_waiting`` that follows from it.
        on_waiting: called when all ranks stand at the barrier and too few hosts are listed for the next world.
        on_end: called once, when the driver has ended, in whatever thread it was.
    """

    def __init__(
        self,
        rendezvous: RendezvousServer,
        hosts: PushedHosts,
        minimum: int,
        *,
        on_assigned: Callable[[list[tuple[str, int]]], None],
        on_ready: Callable[[str], None],
        on_waiting: Callable[[], None],
        on_end: Callable[[SessionEnd], None],
    ) -> None:
        self._pushed = hosts
        self.roll_call = RollCall()
        self.on_ready = on_ready
        self._on_assigned, self._on_waiting, self._on_end = on_assigned, on_waiting, on_end
        self._wake = threading.Event()
        self._ending = threading.Lock()
        self._ended: SessionEnd | None = None
        # Waiting below the minimum is bounded by the launcher, which can say why; never here.
        super().__init__(rendezvous, hosts, minimum, None, timeout=365 * 86400)
        self._host_manager = OrderedHostManager(hosts)
        self._worker_registry = AdaptedRegistry(self, self._host_manager)

    def give_up_world(self) -> frozenset[str]:
        """The world that forms will never be complete: have its ranks come back. Returns hosts that have not come."""
        absent = self.roll_call.give_up()
        self._rendezvous.refuse()
        return absent

    def push(self, hosts: Iterable[str], minimum: int) -> None:
        """List these hosts, and tell the ranks if that changes their world."""
        with self._wait_hosts_cond:
            self._min_num_proc = minimum
            self._pushed.replace(hosts)
            self._host_manager.update_available_hosts()
            self._wait_hosts_cond.notify_all()
        self._wake.set()

    def resume(self) -> None:
        """Called with all ranks at the barrier: wait for hosts that can be a world, then make the next one."""
        hosts = self._host_manager.current_hosts
        if hosts.count_available_slots() < self._min_num_proc or not self._has_survivor(hosts):
            self._on_waiting()
        super().resume()

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> Any:
        """Enough of them, and but for the first world one that stands at the barrier, for no other has the state.

        Upstream ends where all hosts that are listed are new, while those that have the state wait to be listed again.

        Raises:
            RuntimeError: the driver has ended.
        """
        with self._wait_hosts_cond:
            hosts = super().wait_for_available_slots(min_num_proc, min_hosts)
            while self._host_assignments and not self._has_survivor(hosts):
                if self._shutdown.is_set():
                    raise RuntimeError("the driver has ended")
                self._wait_hosts_cond.wait()
                hosts = super().wait_for_available_slots(min_num_proc, min_hosts)
            return hosts

    def _has_survivor(self, hosts: Any) -> bool:
        return any(host in hosts.available_hosts for host, _slot in self._worker_registry.get(READY))

    def end(self, how: SessionEnd) -> None:
        """End the driver from outside; the first call counts."""
        self.conclude(how)
        self._worker_registry.abort()

    def conclude(self, how: SessionEnd) -> None:
        """End the driver, also from the barrier's own action, which holds the barrier's lock; the first call counts."""
        with self._ending:
            if self._ended is not None:
                return
            self._ended = how
        self._wake.set()
        self.roll_call.give_up()
        with self._wait_hosts_cond:
            self._shutdown.set()
            self._wait_hosts_cond.notify_all()
        self.stop()
        self._on_end(how)

    def _discover_hosts(self) -> None:
        """Upstream's loop asks every second; this one is woken, and repeats itself until it was heard."""
        while not self._shutdown.is_set():
            woken = self._wake.wait(RESEND)
            self._wake.clear()
            if not self._shutdown.is_set() and (woken or self._differs()):
                self._notify_workers_host_changes(self._host_manager.current_hosts, HostUpdateResult.mixed)

    def _differs(self) -> bool:
        """Whether the hosts listed are not those of the present world, or in other order."""
        return set(self._host_manager.current_hosts.host_assignment_order) != set(self.host_assignments)

    def _notify_workers_host_changes(self, current_hosts: Any, _update: HostUpdateResult) -> None:
        if not self.host_assignments or not self._differs():
            return
        if self._worker_registry.count(READY):
            return  # They are at the barrier, or on their way to it, and will find the newest hosts there.
        if current_hosts.count_available_slots() < self._min_num_proc:
            return
        if coordinator := self.get_coordinator_info():
            # As the amended Horovod reads it (images/trainer/patches: horovod/runner/elastic/worker.py).
            self._rendezvous.tell(coordinator.hostname, f"{time.time()!r} {int(HostUpdateResult.mixed)}".encode())

    def _update_host_assignments(self, current_hosts: Any) -> Any:
        # Rank 0's state is everybody's: it is one of the last world, also where that one was listed after a newcomer.
        order = sorted(current_hosts.host_assignment_order, key=lambda host: host not in self._host_assignments)
        current_hosts._host_assignment_order = order
        pending = super()._update_host_assignments(current_hosts)
        members = [(slot.hostname, rank) for rank, slot in sorted(self._rank_assignments.items())]
        self.roll_call.begin(host for host, _ in members)
        self._on_assigned(members)
        return pending
