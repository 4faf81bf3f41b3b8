"""What ranks are told and tell at the rendezvous, and how they are notified, with what is wrong upstream put right.

See the table in :mod:`elastic_runtime.engines.horovod`.
"""

from __future__ import annotations

import base64
import io
import ipaddress
import pickle
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from horovod.runner.common.util import network, secret
from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE, PUT_WORKER_ADDRESSES
from horovod.runner.elastic.worker import HostsUpdatedRequest, HostUpdateResult
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars

from elastic_runtime.engines.horovod.rendezvous_server import Handler
from elastic_runtime.errors import InvalidDocument

NOTIFY_TIMEOUT = 3.0
"""Seconds to connect to a rank and to hear its answer."""
NEXT_ASSIGNMENT = "next_assignment"
"""Scope: as ``rank_and_size``, but the next ``rank_and_size`` of the same rank repeats the answer. A rank asks here
before its C++ side does, which would abort on hearing that it is out; each ``rank_and_size`` counts at the barrier."""


GLOBAL = "global"
"""Scope in which the ranks of a world exchange their addresses: Gloo's part of ``hvd.init()`` begins with it."""
ROLL_CALL = "roll_call"
"""Scope: a rank that has been assigned asks here before each ``hvd.init()``; see :class:`RollCall`."""


class _Unpickler(pickle.Unpickler):
    """Finds the classes that it is told, by module and name, and no other."""

    def __init__(self, data: bytes, allowed: frozenset[tuple[str, str]]) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not expected here")
        return super().find_class(module, name)


_PLAIN: frozenset[tuple[str, str]] = frozenset()
_ANSWERS = frozenset((network.__name__, kind.__name__) for kind in (network.AckResponse, network.PingResponse))


def loads_restricted(data: bytes, allowed: frozenset[tuple[str, str]] = _PLAIN) -> Any:
    """Unpickle plain data and the allowed classes only. Raises InvalidDocument for anything else."""
    try:
        return _Unpickler(data, allowed).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise InvalidDocument(f"refused to unpickle: {error}") from error


Addresses = dict[str, list[tuple[str, int]]]


def parse_worker_addresses(value: bytes) -> tuple[Addresses, bytes]:
    """What a rank registers: addresses by interface, and the key of its notification service.

    Raises:
        InvalidDocument: not exactly that, or a pickle that needs any class.
    """
    try:
        plain = loads_restricted(base64.b64decode(value, validate=True))
        addresses, key = plain
        checked = {str(nic): [(str(host), int(port)) for host, port in found] for nic, found in addresses.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidDocument(f"not the addresses of a rank: {error}") from error
    if not isinstance(key, bytes) or not any(checked.values()):
        raise InvalidDocument("not the addresses of a rank: no key, or no address")
    return checked, key


def only_at(peer: str, addresses: Addresses) -> Addresses:
    """Of these addresses those on the machine at ``peer``: who registers another one has us call there.

    On pods that is the pod's own address, which the network model of Kubernetes keeps unchanged between pods.

    Raises:
        InvalidDocument: there is none.
    """
    own = {nic: [each for each in found if _same_host(each[0], peer)] for nic, found in addresses.items()}
    if not any(own.values()):
        raise InvalidDocument(f"a rank at {peer} cannot register for others: {addresses}")
    return {nic: found for nic, found in own.items() if found}


def _same_host(one: str, other: str) -> bool:
    try:
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    except ValueError:  # Ranks register addresses, never names.
        return False


class NotificationClient:
    """Tells the notification service of one rank that hosts have changed.

    Speaks the protocol of ``horovod.runner.common.util.network`` (HMAC, length, pickle), with a timeout, and without
    unpickling more than an acknowledgement: who registered the address also chose the key, so the HMAC proves nothing.
    """

    def __init__(self, addresses: Addresses, key: bytes) -> None:
        self._addresses = [address for found in addresses.values() for address in found]
        self._key = key

    def notify_hosts_updated(self, timestamp: float, update: HostUpdateResult) -> None:
        """Send it to the first address that answers.

        Raises:
            OSError: none does.
            InvalidDocument: what answers is no notification service.
        """
        for index, address in enumerate(self._addresses):
            try:
                self._send(address, HostsUpdatedRequest(timestamp, update))
                return
            except OSError:
                if index == len(self._addresses) - 1:
                    raise

    def _send(self, address: tuple[str, int], request: object) -> None:
        with socket.create_connection(address, timeout=NOTIFY_TIMEOUT) as sock, sock.makefile("rwb") as stream:
            network.Wire(self._key).write(request, stream)
            digest = stream.read(secret.DIGEST_LENGTH)
            length = int.from_bytes(stream.read(4), "little")
            body = stream.read(min(length, 65536))
            if not secret.check_digest(self._key, body, digest):
                raise InvalidDocument(f"the rank at {address} answered with a wrong digest")
            loads_restricted(body, _ANSWERS)


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

    def has_gone_in(self, rank: int) -> None:
        """A rank that does not come here, for it was not adapted, is inside."""
        with self._changed:
            self._absent.difference_update(self._hosts[rank : rank + 1])
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
        on_joined: called, in the server's thread, with the rank (decimal) of each rank that has finished ``hvd.init()``
            in the current rendezvous: its last act there is a DELETE in the scope ``cross_0_process_set_hash_…``
            (horovod/common/gloo/gloo_context.cc).
    """

    def __init__(self, driver: Any, on_joined: Callable[[str], None]) -> None:
        self._driver, self._on_joined = driver, on_joined
        self._answers: dict[str, bytes] = {}

    def get(self, scope: str, key: str) -> Callable[[], bytes] | None:
        """See :class:`Handler`."""
        if scope not in (NEXT_ASSIGNMENT, GET_RANK_AND_SIZE, ROLL_CALL):
            return None
        host, _ = _host_and_slot(key)  # or refuse
        if scope == ROLL_CALL:
            return lambda: b"go" if self._driver.roll_call.come(host) else b"back"
        if scope == NEXT_ASSIGNMENT:
            return lambda: self._next_assignment(key)
        answer = self._answers.pop(key, None)
        return (lambda: self._rank_and_size(key)) if answer is None else (lambda: answer)

    def put(self, scope: str, key: str, value: bytes, peer: str) -> bool:
        """See :class:`Handler`."""
        if scope == GLOBAL and key.isdecimal():
            self._driver.roll_call.has_gone_in(int(key))
        if scope != PUT_WORKER_ADDRESSES:
            return False
        host, slot = _host_and_slot(key)
        if not self._driver.has_rank_assignment(host, slot):
            raise InvalidDocument(f"{host} is not a host of this run, so it cannot register")
        addresses, secret_key = parse_worker_addresses(value)
        self._driver.register_worker_server(host, slot, only_at(peer, addresses), secret_key)
        return True

    def finished(self, scope: str, key: str) -> None:
        """See :class:`Handler`."""
        if scope.startswith("cross_") and "process_set_hash" in scope:
            self._on_joined(key)

    def _next_assignment(self, key: str) -> bytes:
        self._answers[key] = self._rank_and_size(key)
        return self._answers[key]

    def _rank_and_size(self, key: str) -> bytes:
        """Wait at the driver's barrier; then rank, size, local rank and so on of the next world, or -1 for each."""
        host, slot = _host_and_slot(key)
        self._driver.record_ready(host, slot)
        return bytes(self._driver.get_slot_info(host, slot).to_response_string().encode("ascii"))


def _host_and_slot(key: str) -> tuple[str, int]:
    host, _, slot = key.rpartition(":")
    if not host or not slot.isdecimal():
        raise InvalidDocument(f"{key!r} is not a host and slot")
    return host, int(slot)


def rank_environment(address: str, port: int, interface: str, slot: Any) -> dict[str, str]:
    """What Horovod's C++ side reads when a rank starts.

    Args:
        address: of the rendezvous server.
        port: of the rendezvous server.
        interface: network interface for the ranks' own traffic.
        slot: Horovod's SlotInfo.
    """
    return {**create_run_env_vars(address, [interface], str(port), elastic=True), **create_slot_env_vars(slot)}
