"""Requests of a rank to the launcher's rendezvous, beside those of Horovod's C++ side."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

from elastic_runtime.engines.gloo_sockets import cut
from elastic_runtime.engines.horovod.rendezvous import GLOBAL, NEXT_ASSIGNMENT, ROLL_CALL
from elastic_runtime.engines.horovod.rendezvous_http import TOKEN, authorization

while_waiting: list[Callable[[], None]] = []
"""Called every :data:`LOOK` seconds while this rank waits for the next world, connected to nobody."""
LOOK = 0.1
"""Seconds between two calls of :data:`while_waiting`."""


def still_assigned() -> bool:
    """Wait until all ranks are at the barrier of the rendezvous; whether this one is in the next world.

    Its rank there, and the like, are in the environment then.

    Raises:
        ConnectionError: the rendezvous is gone, and with it the run.
    """
    answer = _ask_and_wait(NEXT_ASSIGNMENT).split(",")
    if int(answer[0]) < 0:
        return False
    # Horovod's C++ side asks by itself, but for a newcomer whose first world was given up.
    os.environ.update(zip(_ASSIGNMENT, answer, strict=False))
    return True


def all_are_here() -> bool:
    """Wait until every rank of the world stands before ``hvd.init()``, as this one does; False: the world was given up.

    Raises:
        ConnectionError: the rendezvous is gone, and with it the run.
    """
    return "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ or _ask_and_wait(ROLL_CALL) == "go"


_ASSIGNMENT = tuple(
    f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
)


def _ask_and_wait(scope: str) -> str:
    """The rendezvous' answer to this rank, however long it takes; :data:`while_waiting` are called meanwhile."""
    host, slot = os.environ["HOROVOD_HOSTNAME"], os.environ["HOROVOD_LOCAL_RANK"]
    with contextlib.closing(_rendezvous()) as connection:
        with _rendezvous_errors():
            connection.request("GET", f"/{scope}/{host}:{slot}", headers=authorization(os.environ[TOKEN]))
        while not _readable([connection.sock], LOOK):
            for hook in while_waiting:
                hook()
        with _rendezvous_errors():
            answer = connection.getresponse()
            body = answer.read().decode("ascii")
    if answer.status != http.client.OK:
        raise ConnectionError(f"the launcher's rendezvous answered {answer.status}")
    return body


@contextlib.contextmanager
def cut_when_given_up(opened: Callable[[], dict[int, str]]) -> Iterator[None]:
    """Shut down what is opened inside, should the world be given up meanwhile.

    Inside ``hvd.init()`` a rank waits two and a half minutes (five times Gloo's time-out) for a peer that was to
    connect to it, and was lost.

    Args:
        opened: the sockets so far, as :func:`~elastic_runtime.engines.gloo_sockets.open_sockets` names them.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
        yield
        return
    over, end = socket.socketpair()

    def watch() -> None:
        with contextlib.suppress(ConnectionError):  # The rendezvous is gone: the rank will see that itself.
            while not (given_up := _is_given_up(over)):
                if given_up is None:
                    return
            while not _readable([over], LOOK):
                cut(opened())

    thread = threading.Thread(target=watch, name="given-up", daemon=True)
    thread.start()
    with over, end:
        try:
            yield
        finally:
            end.shutdown(socket.SHUT_WR)
            thread.join()


def _is_given_up(over: socket.socket) -> bool | None:
    """Whether the world is, by the answer to a key that nobody stores; None: ``over`` says that it does not matter."""
    with contextlib.closing(_rendezvous()) as connection:
        with _rendezvous_errors():
            connection.request("GET", f"/{GLOBAL}/given-up", headers=authorization(os.environ[TOKEN]))
        if over in _readable([over, connection.sock]):
            return None
        with _rendezvous_errors():
            return connection.getresponse().status == http.client.GONE


@contextlib.contextmanager
def _rendezvous_errors() -> Iterator[None]:
    try:
        yield
    except (http.client.HTTPException, OSError) as error:
        raise ConnectionError(f"the launcher's rendezvous is gone: {error!r}") from error


def _rendezvous() -> http.client.HTTPConnection:
    address, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    return http.client.HTTPConnection(address, int(port))


def _readable(sockets: Sequence[socket.socket], seconds: float | None = None) -> list[socket.socket]:
    """Those on which something comes, or the end; none if nothing does within so many seconds."""
    poll = select.poll()  # select.select() knows no descriptor above 1023
    for each in sockets:
        poll.register(each, select.POLLIN)
    found = {descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)}
    return [each for each in sockets if each.fileno() in found]
