"""Gloo's connections, proved: Gloo in torch's wheels takes any process that connects for the rank that it waits for.

When a process group has connected, its ranks tell each other both ends of each connection that they dialled, by the
world's store, which lies behind the agents' mutual TLS; then, of whom they have accepted one. What strangers dial is
not told: no stranger decides how much a rank says. A connection that a rank accepted and no other rank of the group
dialled is a stranger's: it is ended, with what was received on it and not read, before anything is sent. A rank with
which none is left has had its place taken: the group is given up. From then on nobody is let in, where the system lets
a process close its listeners to packets (some kernels want privileges for that); elsewhere who comes later is in no
rank's place. Gloo accepts nobody then, wherever that is (:mod:`~elastic_runtime.engines.torch.accepting`).

NCCL's connections are NCCL's: who connects has to know a number that the store alone tells.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from elastic_runtime.engines.gloo_sockets import (
    PAIR,
    PythonSockets,
    borrowed,
    is_listening,
    open_sockets,
    still_open,
    unless_gone,
)
from elastic_runtime.engines.torch.accepting import set_accepting
from elastic_runtime.engines.torch.channel import WorldLost
from elastic_runtime.logs import script_logger
from elastic_runtime.net.descriptors import raise_descriptor_limit
from elastic_runtime.printable import printable

PROVE = "ELASTIC_PROVE_PEERS"
"""Environment variable; ``0``: believe every connection. For networks that change addresses on the way, as a service
mesh does; that network must then be the one that keeps strangers out."""
_LAZY = "TORCH_GLOO_LAZY_INIT"
_DIGEST = 16
_PIECE = 1000
"""Digests in one value of the store, which takes 24 KiB."""
_LENGTH = struct.Struct("=I")
_NAMED = 3
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""SO_ATTACH_FILTER and SO_DETACH_FILTER of Linux's asm-generic/socket.h, which Python does not name."""
_DROP = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0), 8)
"""One instruction of the classic packet filter, ``ret #0``: let nothing through (bpf(4); Linux's filter.txt)."""
_OF_NETWORK = re.compile(r"[Cc]onnect|[Tt]imed? ?out|reset|closed|refused|socket|ECONN")
_OF_DEVICE = re.compile(r"device\.cc|[Uu]nable to find (address|interface)")
"""Of Gloo: the script's or the network's settings name no interface of this machine."""
Sockets = Mapping[int, str]
"""Descriptors and identities, as :func:`open_sockets` has them."""
log = script_logger(__name__)


class PlaceTaken(dist.DistNetworkError):
    """A stranger is connected in the place of a rank, or an address is not the same at both ends."""


class _Proofs:
    """Of all process groups of this process."""

    def __init__(self, given_up: Callable[[PlaceTaken], None]) -> None:
        self._given_up = given_up
        self._python = PythonSockets()
        self._making = threading.Lock()
        self._listening: dict[int, str] = {}
        """Sockets of Gloo's that others connect to, and their identities; some may be closed by now."""
        self._splits: Counter[str] = Counter()
        """By name of a group: how often one of that name was split off. Each has proofs of its own in the store."""

    def made(self, store: Store, rank: int, size: int, make: Callable[[], None]) -> None:
        """Have a group made that listens by itself, and prove it; see :func:`prove_peers`."""
        with self._alone():
            before = open_sockets()
            with _connecting():
                make()
            with _proving(rank):
                listening = _listening(self._python.others_since(before))
                self._listening = {**still_open(self._listening), **listening}
                _prove(store, rank, size, lambda: self._python.others_since(before), listening)

    def split(self, store: Store, split: Callable[[], Any]) -> Any:
        """Have a group split off another one, which connects by that one's listeners; prove it."""
        with self._alone():
            before = open_sockets()
            listening = self._listening = still_open(self._listening)
            _set_filters(listening, admit=True)
            try:
                with _connecting():
                    group = split()
                if group is not None and group.size() > 1 and _connects_by_gloo(group):
                    name, rank = group.group_name, group.rank()
                    self._splits[name] += 1
                    store = PrefixStore(f"{name}/{self._splits[name]}", store)
                    with _proving(rank):
                        _prove(store, rank, group.size(), lambda: self._python.others_since(before), listening)
            finally:
                _set_filters(still_open(listening), admit=False)
        return group

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Which sockets belong to which group can be told while one is made at a time."""
        if not self._making.acquire(blocking=False):
            raise RuntimeError(
                "two threads of this process make process groups at once, whose connections look the same: make "
                f"one after the other, in the same order in all ranks, or set {PROVE}=0 in the training's environment"
            )
        try:
            with self._python.watching():
                yield
        except PlaceTaken as error:
            self._given_up(error)
            raise
        finally:
            self._making.release()


@cache
def prove_peers(given_up: Callable[[PlaceTaken], None] = lambda _error: None) -> None:
    """Have each process group of Gloo's, in this process and from now on, made of its own ranks alone.

    Making one raises :class:`PlaceTaken` where a stranger has come in; for torch that is an error of its network.

    Args:
        given_up: called with it before; for engines where a process is in one world alone.
    """
    if os.environ.get(PROVE) == "0" or not dist.is_gloo_available():
        return
    raise_descriptor_limit()  # Until a group is made its listener accepts all who come.
    if os.environ.pop(_LAZY, None):
        log.warning("%s is left out: connections that are made later could not be proved", _LAZY)
    proofs = _Proofs(given_up)
    make = distributed_c10d.ProcessGroupGloo.__init__

    @wraps(make)
    def make_proved(group: Any, store: Store, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
        proofs.made(store, rank, size, lambda: make(group, store, rank, size, *args, **kwargs))

    distributed_c10d.ProcessGroupGloo.__init__ = make_proved  # type: ignore[assignment, method-assign]
    # What dist.split_group and a device mesh, which knows that function by name, come to. A torch without it splits by
    # making a group.
    if split := getattr(dist.ProcessGroup, "split_group", None):

        @wraps(split)
        def split_proved(group: Any, *args: Any, **kwargs: Any) -> Any:
            store = PrefixStore("split", distributed_c10d._get_default_store())
            return proofs.split(store, lambda: split(group, *args, **kwargs))

        dist.ProcessGroup.split_group = split_proved  # type: ignore[assignment, method-assign]


@contextlib.contextmanager
def _connecting() -> Iterator[None]:
    """What strangers do to Gloo meanwhile is no error of the script."""
    try:
        yield
    except PlaceTaken:
        raise
    except RuntimeError as error:
        if _OF_NETWORK.search(str(error)) and not _OF_DEVICE.search(str(error)):
            raise PlaceTaken(f"a group cannot connect: {error}") from error
        raise


@contextlib.contextmanager
def _proving(rank: int) -> Iterator[None]:
    """Whatever fails here is not the script's error.

    Raises:
        PlaceTaken: a stranger may be in, or it cannot be told.
        WorldLost: the world is broken meanwhile.
    """
    try:
        yield
    except (PlaceTaken, WorldLost):
        raise
    except Exception as error:
        raise PlaceTaken(f"rank {rank} of a group cannot prove who is connected to it: {error}") from error


def _prove(store: Store, rank: int, size: int, opened: Callable[[], Sockets], listening: Sockets) -> None:
    """Compare this rank's connections with the others', and let nobody else in.

    Args:
        store: of the group.
        rank: in it.
        size: of it.
        opened: sockets that the group has by now.
        listening: those that others connect to.
    """
    claimed, missing = _compare(store, rank, size, opened, listening)
    if claimed or missing:
        place = f"rank {missing[0]}" if missing else "a rank"
        raise PlaceTaken(
            f"rank {rank} of a group may be connected to a stranger in the place of {place}: one of them has a "
            f"connection that the other does not have. The group is given up. If something between ranks changes "
            f"addresses, as a service mesh does, and keeps strangers out, set {PROVE}=0 in the training's environment"
        )


def _compare(
    store: Store, rank: int, size: int, opened: Callable[[], Sockets], listening: Sockets
) -> tuple[bool, list[int]]:
    """Returns whether a stranger may have a rank's place, and the ranks with which there is no connection."""
    ports = _ports(listening)
    connections = [ends for fd, name in opened().items() if (ends := _ends(fd, name))]
    dialled = {_digest(ends) for ends in connections if _port(ends[0]) not in ports}
    accepted = {_digest(ends) for ends in connections if _port(ends[0]) in ports}
    others = [peer for peer in range(size) if peer != rank]
    if others:
        _tell(store, rank, dialled)
    proved = {peer: _told(store, peer) & accepted for peer in others}
    _set_filters(listening, admit=False)  # Not before: others may still have been on their way.
    if others:
        store.set(f"accepted/{rank}", _bits(size, (peer for peer in others if proved[peer])))  # type: ignore[arg-type]
    missing = [peer for peer in others if not proved[peer] and not _has_accepted(store, peer, rank)]
    return _end_strangers(opened(), ports, set().union(*proved.values())), missing


def _tell(store: Store, rank: int, dialled: set[bytes]) -> None:
    """Of all connections that this rank dialled, in pieces that the store takes; the first is set last."""
    listed = sorted(dialled)
    pieces = [listed[at : at + _PIECE] for at in range(0, len(listed), _PIECE)] or [[]]
    for number, piece in reversed(list(enumerate(pieces))):
        head = _LENGTH.pack(len(pieces)) if number == 0 else b""
        store.set(f"dialled/{number}/{rank}", head + b"".join(piece))  # type: ignore[arg-type]


def _told(store: Store, peer: int) -> set[bytes]:
    first = store.get(f"dialled/0/{peer}")
    (pieces,) = _LENGTH.unpack_from(first)
    said = [first[_LENGTH.size :], *(store.get(f"dialled/{number}/{peer}") for number in range(1, pieces))]
    return {piece[at : at + _DIGEST] for piece in said for at in range(0, len(piece), _DIGEST)}


def _bits(size: int, ranks: Iterable[int]) -> bytes:
    return sum(1 << rank for rank in ranks).to_bytes(-(-size // 8), "little")


def _has_accepted(store: Store, peer: int, rank: int) -> bool:
    return bool(store.get(f"accepted/{peer}")[rank // 8] >> rank % 8 & 1)


def _end_strangers(opened: Sockets, ports: set[int], proved: set[bytes]) -> bool:
    """End all who have connected to one of these ports and are not of the group.

    Returns whether one of them has named a pair of Gloo's, so that it may have a rank's place.
    """
    strangers: dict[int, str] = {}
    claimed = False
    for fd, name in opened.items():
        ends = _ends(fd, name)
        if ends is None or _port(ends[0]) not in ports or _digest(ends) in proved:
            continue
        strangers[fd] = ends[1]
        with unless_gone(), borrowed(fd, name) as sock:
            claimed |= _bytes_received(sock) >= PAIR.size
            _disconnect(sock)
    if strangers:
        some = ", ".join(printable(address) for address in sorted(strangers.values())[:_NAMED])
        log.warning("strangers were connected to this rank; their connections are ended (%d): %s", len(strangers), some)
    return claimed


def _connects_by_gloo(group: Any) -> bool:
    backends = [group._get_backend(device) for device in group._device_types]
    return any(isinstance(backend, distributed_c10d.ProcessGroupGloo) for backend in backends)


def _listening(sockets: Sockets) -> dict[int, str]:
    found = {}
    for fd, name in sockets.items():
        with unless_gone(), borrowed(fd, name) as sock:
            if is_listening(sock):
                found[fd] = name
    return found


def _ends(fd: int, name: str) -> tuple[str, str] | None:
    """Addresses of this end and of the other, of a TCP connection; else None."""
    with unless_gone(), borrowed(fd, name) as sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
            here, there = (_text(address) for address in (sock.getsockname(), sock.getpeername()))
            return here, there
    return None


def _digest(ends: tuple[str, str]) -> bytes:
    """The same at both ends."""
    return hashlib.blake2b("|".join(sorted(ends)).encode(), digest_size=_DIGEST).digest()


def _text(address: tuple[Any, ...]) -> str:
    host = str(address[0]).removeprefix("::ffff:").partition("%")[0]
    return f"{host} {address[1]}"


def _port(end: str) -> int:
    return int(end.rpartition(" ")[2])


def _ports(listening: Sockets) -> set[int]:
    found = set()
    for fd, name in listening.items():
        with borrowed(fd, name) as sock:
            found.add(sock.getsockname()[1])
    return found


def _set_filters(listening: Sockets, *, admit: bool) -> None:
    if not set_accepting(listening, accept=admit) and not admit:
        _note_accepting()
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(_DROP))
    for fd, name in listening.items():
        with unless_gone(), borrowed(fd, name) as sock:
            try:
                if admit:
                    sock.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
                else:
                    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
            except (PermissionError, FileNotFoundError):  # Not allowed; or there is none, since it was not.
                _note_open_listeners()


@cache
def _note_open_listeners() -> None:
    log.info(
        "this system lets a process without privileges close no listener to packets: strangers can still connect to "
        "ranks once a world stands, where they are in no rank's place and receive nothing"
    )


@cache
def _note_accepting() -> None:
    log.warning(
        "this system does not let Gloo stop accepting: strangers that connect to a rank and reset their connections "
        "use up its descriptors, and end it in time. Keep them out, as a NetworkPolicy does"
    )


def _bytes_received(sock: socket.socket) -> int:
    """``tcpi_bytes_received`` of tcp(7)'s TCP_INFO (linux/tcp.h)."""
    (received,) = struct.unpack_from("=Q", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136), 128)
    return int(received)


def _disconnect(sock: socket.socket) -> None:
    """At once, with what has come and was not read, which a shutdown would leave to Gloo."""
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(sock.fileno(), unspecified, len(unspecified)):
        raise OSError(ctypes.get_errno(), "a stranger's connection could not be ended")
