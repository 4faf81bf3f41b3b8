"""Horovod's ElasticDriver, and what its ranks find at the rendezvous, with what is wrong with them put right.

See the table in :mod:`elastic_runtime.engines.horovod`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from horovod.runner.elastic.discovery import HostDiscovery, HostManager
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.registration import FAILURE, READY, SUCCESS, WorkerStateRegistry
from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from typing_extensions import override

from elastic_runtime.engines.horovod.rendezvous_server import (
    GLOBAL,
    HOSTS_UPDATED,
    NEXT_ASSIGNMENT,
    ROLL_CALL,
    TOKEN,
    Handler,
    RendezvousServer,
)
from elastic_runtime.errors import InvalidDocument

_SLOT = 0
"""Of every host: there is one host for each rank."""
_KEY = re.compile(r"(?:rank_)?(0|[1-9][0-9]{0,5})", re.ASCII)
"""Gloo's: the name of a rank's machine, or its addresses."""
_OF_PROCESS_SET = re.compile(r"_process_set_hash_[0-9a-f]{1,16}", re.ASCII)


class RollCall:
    """Who of the world that forms stands before ``hvd.init()``: nobody goes in until all are there.

    Inside, a rank waits in C++, where it hears nothing, and is aborted if the others do not come within
    ``HOROVOD_GLOO_TIMEOUT_SECONDS`` (30); out here it keeps its state, however long a newcomer takes, and can be sent
    back to the barrier when one that it waits for will never come. For any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hosts: tuple[str, ...] = ()
        self._absent: set[str] = set()
        self._given_up = False

    @property
    def complete(self) -> bool:
        """All have come: what happens to one of them now happens to all."""
        return not self._absent

    @property
    def absent(self) -> frozenset[str]:
        """Who has not come."""
        with self._changed:
            return frozenset(self._absent)

    def begin(self, hosts: Iterable[str]) -> None:
        """Another world is forming, of these hosts, by rank."""
        with self._changed:
            self._hosts = tuple(hosts)
            self._absent, self._given_up = set(self._hosts), False
            self._changed.notify_all()

    def come(self, host: str) -> bool:
        """This rank is here: wait for the others. Returns whether to go in; else the world was given up."""
        with self._changed:
            world = self._hosts
            if host not in world:
                return False
            self._absent.discard(host)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._absent or self._given_up or self._hosts is not world)
            return self._hosts is world and not self._given_up

    def has_gone_in(self, host: str) -> None:
        """A rank that does not come here, for it was not adapted, is inside."""
        with self._changed:
            self._absent.discard(host)
            self._changed.notify_all()

    def has_left(self, host: str) -> None:
        """Its process has ended; it may be started again, and come again."""
        with self._changed:
            if self._absent and host in self._hosts:
                self._absent.add(host)

    def give_up(self) -> frozenset[str]:
        """Send all back. Returns who has not come."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
            return frozenset(self._absent)


class ElasticHandler(Handler):
    """Ranks and worlds, as Horovod's elastic rendezvous handler knows them, adapted.

    Args:
        driver: the ElasticDriver.
        on_joined: called, in the server's thread, with the host of each rank that has finished ``hvd.init()`` in the
            current rendezvous: its last act there is a DELETE in the scope ``cross_0_process_set_hash_…``
            (horovod/common/gloo/gloo_context.cc).
        on_elastic: called, in the server's thread, with the host of each rank that asks for changes of hosts, again and
            again: it is in ``hvd.elastic.run``, and can go on in another world.
    """

    def __init__(self, driver: Any, on_joined: Callable[[str], None], on_elastic: Callable[[str], None]) -> None:
        self._driver, self._on_joined, self._on_elastic = driver, on_joined, on_elastic
        self._answers: dict[str, bytes] = {}

    @override
    def get(self, scope: str, key: str, host: str) -> Callable[[], bytes] | None:
        if scope not in (NEXT_ASSIGNMENT, GET_RANK_AND_SIZE, ROLL_CALL, HOSTS_UPDATED):
            return None
        if key != f"{host}:{_SLOT}":
            raise InvalidDocument("a rank asks for itself only")
        if scope == ROLL_CALL:
            return lambda: b"go" if self._driver.roll_call.come(host) else b"back"
        if scope == NEXT_ASSIGNMENT:
            return lambda: self._next_assignment(host)
        if scope == HOSTS_UPDATED:
            self._on_elastic(host)
            return None
        answer = self._answers.pop(host, None)
        return (lambda: self._rank_and_size(host)) if answer is None else (lambda: answer)

    @override
    def stored(self, scope: str, host: str) -> None:
        if scope == GLOBAL:
            self._driver.roll_call.has_gone_in(host)

    @override
    def finished(self, scope: str, host: str) -> None:
        if scope.startswith("cross_") and "process_set_hash" in scope:
            self._on_joined(host)

    @override
    def check(self, scope: str, key: str, host: str) -> None:
        """Accept only keys of this rank, by its place in the current world."""
        slot, found = self._driver.get_slot_info(host, _SLOT), _KEY.fullmatch(key)
        places = {
            GLOBAL: slot.rank,
            f"local_{host}": slot.local_rank,
            f"cross_{slot.local_rank}": slot.cross_rank,
        }
        of_process_set = _OF_PROCESS_SET.search(scope)
        place = places.get(scope[: of_process_set.start()] if of_process_set else scope)
        if slot.rank < 0 or found is None or place is None:
            raise InvalidDocument("no key of a rank of the present world")
        # A process set numbers its ranks by itself: there, a key is the rank's that came first (Store).
        if not of_process_set and int(found[1]) != place:
            raise InvalidDocument("the key of another rank")

    def _next_assignment(self, host: str) -> bytes:
        self._answers[host] = self._rank_and_size(host)
        return self._answers[host]

    def _rank_and_size(self, host: str) -> bytes:
        """Wait at the driver's barrier; then rank, size, local rank and so on of the next world, or -1 for each."""
        self._driver.record_ready(host, _SLOT)
        return bytes(self._driver.get_slot_info(host, _SLOT).to_response_string().encode("ascii"))


def rank_environment(address: str, port: int, interface: str, slot: Any, token: str) -> dict[str, str]:
    """Return the variables that Horovod's C++ side reads when a rank starts. They are secret because of the token.

    Args:
        address: of the rendezvous server.
        port: of the rendezvous server.
        interface: network interface for the ranks' own traffic.
        slot: Horovod's SlotInfo.
        token: of the rank, for that server.
    """
    environment = create_run_env_vars(address, [interface], str(port), elastic=True)
    return {**environment, **create_slot_env_vars(slot), TOKEN: token}


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
