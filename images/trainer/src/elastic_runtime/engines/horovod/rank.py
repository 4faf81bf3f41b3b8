"""What is put right in every rank, before the user's script runs; the table is in the package's docstring.

:func:`install` is called by the warm process that ranks are forked from; a rank that was started cold gets it by
importing :mod:`elastic_runtime.torch`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import select
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import horovod.torch
import horovod.torch.elastic
import horovod.torch.elastic.state as elastic_state
import horovod.torch.mpi_ops
import torch
from horovod.common.elastic import run_fn

from elastic_runtime.engines.horovod.rendezvous import NEXT_ASSIGNMENT, ROLL_CALL
from elastic_runtime.rank_link import PEER_SILENCE
from elastic_runtime.sockets import end_when_silent

DEFAULT_SILENCE = 10.0
"""Seconds; see :data:`elastic_runtime.rank_link.PEER_SILENCE`."""
before_reset: list[Callable[[], None]] = []
"""Called at the begin of each reset, when all ranks stand at the same step and the old world is still connected."""
while_waiting: list[Callable[[], None]] = []
"""Called every :data:`LOOK` seconds while this rank waits for the next world, connected to nobody."""
CONNECT_ATTEMPTS = 3
"""Worlds in a row that this rank may fail to connect to; one that is broken costs each of its ranks an attempt."""
LOOK = 0.1
"""See :data:`while_waiting`."""


class _PythonSockets:
    """Notes the sockets that Python code opens while :attr:`watching`: those are not Gloo's."""

    def __init__(self) -> None:
        self.watching = False
        self._seen: list[Any] = []
        sys.addaudithook(self._hear)  # For good: audit hooks cannot be removed. It costs nothing while not watching.

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watching and event == "socket.__new__":
            self._seen.append(arguments[0])

    def take(self) -> set[int]:
        """File descriptors of the sockets seen, and forget them."""
        found = {sock.fileno() for sock in self._seen}
        self._seen.clear()
        return found


def open_sockets() -> dict[int, str]:
    """File descriptor to identity, of every socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def cut(sockets: dict[int, str]) -> int:
    """Shut down those of these sockets that are still open. Returns how many that were.

    The identity is compared, since a descriptor may be somebody else's by now.
    """
    present = open_sockets()
    count = 0
    for descriptor, identity in sockets.items():
        if present.get(descriptor) != identity:
            continue
        try:
            with socket.socket(fileno=os.dup(descriptor)) as sock:
                sock.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError:
            continue  # closed meanwhile, or not connected: nobody waits on it
    return count


def notice_silence(sockets: Iterable[int], seconds: float) -> None:
    """Bound the silence of these connections: see :func:`~elastic_runtime.sockets.end_when_silent`.

    What a rank that is busy or stopped has to read, its kernel answers for: Gloo bounds that by its own time-out
    (``HOROVOD_GLOO_TIMEOUT_SECONDS``, 30).

    Args:
        sockets: file descriptors; those that are not TCP are left as they are.
        seconds: of silence; at least 1.
    """
    for descriptor in sockets:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
            end_when_silent(sock, seconds)


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
    connection = http.client.HTTPConnection(
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    )
    with contextlib.closing(connection):
        with _rendezvous_errors():
            connection.request("GET", f"/{scope}/{host}:{slot}")
        while not _has_come(connection, LOOK):
            for hook in while_waiting:
                hook()
        with _rendezvous_errors():
            answer = connection.getresponse()
            body = answer.read().decode("ascii")
    if answer.status != http.client.OK:
        raise ConnectionError(f"the launcher's rendezvous answered {answer.status}")
    return body


@contextlib.contextmanager
def _rendezvous_errors() -> Iterator[None]:
    try:
        yield
    except (http.client.HTTPException, OSError) as error:
        raise ConnectionError(f"the launcher's rendezvous is gone: {error!r}") from error


def _has_come(connection: http.client.HTTPConnection, seconds: float) -> bool:
    """Whether an answer, or the connection's end, comes within so many seconds."""
    poll = select.poll()  # select.select() knows no descriptor above 1023
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class _Rank:
    """The adapted ``hvd.init`` and reset of this process."""

    def __init__(self) -> None:
        self._init, self._shutdown = horovod.torch.mpi_ops.init, horovod.torch.mpi_ops.shutdown
        self._python_sockets = _PythonSockets()
        self._gloo_sockets: dict[int, str] = {}
        self._timeline = self._take_over_timeline()
        self._tracing = False
        self._generation = 0

    @staticmethod
    def _take_over_timeline() -> str | None:
        path = os.environ.get("HOROVOD_TIMELINE")
        if not path or path == "DYNAMIC":
            return None
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        return path

    def init(self, *args: Any, **kwargs: Any) -> None:
        """``hvd.init`` into the first world that can be completed; a rank that is in none ends, with success.

        Raises:
            ValueError: Horovod's, after :data:`CONNECT_ATTEMPTS`.
        """
        if horovod.torch.mpi_ops.is_initialized():
            self._init(*args, **kwargs)
            return
        failures = 0
        while True:
            try:
                if all_are_here():
                    self._connect(*args, **kwargs)
                    return
            except ValueError:  # A rank was lost on the way in.
                failures += 1
                self._shutdown()
                if failures == CONNECT_ATTEMPTS or "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
                    raise
            if not still_assigned():
                sys.exit(0)

    def _connect(self, *args: Any, **kwargs: Any) -> None:
        """Remembering the sockets that Gloo opens."""
        before = open_sockets()
        self._python_sockets.watching = True
        try:
            self._init(*args, **kwargs)
        finally:
            self._python_sockets.watching = False
            others = self._python_sockets.take()
            after = open_sockets()
        self._gloo_sockets = {fd: name for fd, name in after.items() if before.get(fd) != name and fd not in others}
        notice_silence(self._gloo_sockets, float(os.environ.get(PEER_SILENCE, DEFAULT_SILENCE)))
        self._generation += 1
        if self._timeline and horovod.torch.mpi_ops.rank() == 0:
            path = Path(self._timeline)
            generation = f"{path.stem}.{os.environ.get('HOROVOD_HOSTNAME', 'host')}.{self._generation}{path.suffix}"
            horovod.torch.mpi_ops.start_timeline(str(path.with_name(generation)))
            self._tracing = True

    def reset(self) -> None:
        """From one world to the next; a rank that was taken out ends here, with success."""
        for hook in before_reset:
            hook()
        if self._tracing:
            # Or events that are not written yet have the next start_timeline() replace a running std::thread: abort.
            horovod.torch.mpi_ops.stop_timeline()
            self._tracing = False
        self._shutdown()
        cut(self._gloo_sockets)
        self._gloo_sockets = {}
        if not still_assigned():
            sys.exit(0)
        self.init()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """``hvd.elastic.run``, after which a state that has a word for its end (``on_run_end``) may say it.

    It is said inside upstream's loop: should a rank be lost meanwhile, the others come back to it. And while the rank
    waits for a world, a state that has something to do then (``on_wait``) may do it.
    """

    @functools.wraps(func)
    def to_the_end(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(state, *args, **kwargs)
        on_run_end = getattr(state, "on_run_end", None)
        if on_run_end is not None:
            on_run_end()
        return result

    wrapped: Callable[..., Any] = run_fn(to_the_end, _current_reset)

    @functools.wraps(func)
    def with_hook(state: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = [hook for hook in [getattr(state, "on_wait", None)] if hook is not None]
        while_waiting.extend(hooks)
        try:
            return wrapped(state, *args, **kwargs)
        finally:
            for hook in hooks:
                while_waiting.remove(hook)

    return with_hook


def _current_reset() -> None:
    horovod.torch.elastic._reset()


_installed: _Rank | None = None


def install() -> None:
    """Adapt this process; once, and only where an agent's rendezvous is.

    Raises:
        SystemExit: the environment asks for something that cannot work with elastic runs.
    """
    global _installed
    if _installed is not None:
        return
    if os.environ.get("HOROVOD_AUTOTUNE", "0").lower() in ("1", "true"):
        sys.exit("HOROVOD_AUTOTUNE hangs when rank 0 leaves an elastic run (horovod#2835): unset it")
    _installed = rank = _Rank()
    for module in (horovod.torch.mpi_ops, horovod.torch, horovod.torch.elastic):
        module.init = rank.init
    horovod.torch.elastic._reset = rank.reset
    horovod.torch.elastic.run = run
    # Only now: to import that package in a cold rank is to call this function.
    from elastic_runtime.torch.state.handlers import StateDictHandler

    schedulers = (torch.optim.lr_scheduler.LRScheduler, StateDictHandler)
    optimizers = (torch.optim.Optimizer, StateDictHandler)  # The first that fits is taken.
    elastic_state.set_handler_registry([optimizers, *elastic_state.get_handler_registry(), schedulers])
