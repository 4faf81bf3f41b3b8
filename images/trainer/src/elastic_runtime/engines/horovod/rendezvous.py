"""Rendezvous of Horovod's ranks, and their notifications, with corrections of upstream defects.

See the table in :mod:`elastic_runtime.engines.horovod`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
from typing_extensions import override

from elastic_runtime.engines.horovod.rendezvous_http import TOKEN
from elastic_runtime.engines.horovod.rendezvous_server import HOSTS_UPDATED, Handler
from elastic_runtime.errors import InvalidDocument

NEXT_ASSIGNMENT = "next_assignment"
"""Scope: as ``rank_and_size``, but the next ``rank_and_size`` of the same rank repeats the answer. A rank asks here
before its C++ side does, which would abort on hearing that it is out; each ``rank_and_size`` counts at the barrier."""


GLOBAL = "global"
"""Scope in which the ranks of a world exchange their addresses: Gloo's part of ``hvd.init()`` begins with it."""
_SLOT = 0
"""Of every host: there is one host for each rank."""
ROLL_CALL = "roll_call"
"""Scope: a rank that has been assigned asks here before each ``hvd.init()``; see :class:`RollCall`."""


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
