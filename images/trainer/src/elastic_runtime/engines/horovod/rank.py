"""Corrections in every rank before the user's script runs. The table is in the package's docstring.

:func:`install` is called by the warm process that ranks are forked from; a rank that was started cold gets it by
importing :mod:`elastic_runtime.torch` or :mod:`elastic_runtime.tensorflow`. What is a framework's own is in
:mod:`~elastic_runtime.engines.horovod.torch` and :mod:`~elastic_runtime.engines.horovod.tensorflow`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from horovod.common.elastic import State, notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic import worker

from elastic_runtime.engines.gloo_sockets import GlooSockets, cut
from elastic_runtime.engines.horovod import frameworks
from elastic_runtime.engines.horovod.frameworks import MODULES, Framework, when_imported
from elastic_runtime.engines.horovod.rendezvous_server import GLOBAL, NEXT_ASSIGNMENT, ROLL_CALL, TOKEN, authorization
from elastic_runtime.engines.through_worlds import ending_with_its_word, through_worlds
from elastic_runtime.protocol.rank_link import FIXED_SIZE, LocalRankRead, shared_link
from elastic_runtime.run.observe import TRACES
from elastic_runtime.script import kept_outputs
from elastic_runtime.script.leaving import call_back

# What a rank itself asks the launcher's rendezvous, beside what Horovod's C++ side asks there.

while_waiting: list[Callable[[], None]] = []
"""Called every :data:`HOOK_INTERVAL` seconds while this rank waits for the next world, connected to nobody."""
HOOK_INTERVAL = 0.1
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
        while not _readable([connection.sock], HOOK_INTERVAL):
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
            while not _readable([over], HOOK_INTERVAL):
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


before_reset: list[Callable[[], None]] = []
"""Called at the begin of each reset, when all ranks stand at the same step and the old world is still connected."""
CONNECT_ATTEMPTS = 3
"""Worlds in a row that this rank may fail to connect to; one that is broken costs each of its ranks an attempt."""
_installed = False
LIMIT = 64 * 1024 * 1024
"""Bytes of one world's file: some hundred thousand events."""
LOOK = 1.0
"""Seconds between two looks at its size."""
BEGIN = ".begin"
"""Suffix of the file beside it that says when it begins, and with how many ranks: Horovod writes times since then."""


class Rank:
    """The adapted ``hvd.init`` and reset of this process.

    Args:
        calls: see :class:`Framework`; not adapted yet.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        self._init, self._shutdown, self._local_rank = calls.init, calls.shutdown, calls.local_rank
        self._told_local_rank = False
        self._sockets = GlooSockets(listening=True)
        self._timelines = Timelines(calls)

    def init(self, *args: Any, **kwargs: Any) -> None:
        """``hvd.init`` into the first world that can be completed; a rank that is in none ends, with success.

        Raises:
            ValueError: Horovod's, after :data:`CONNECT_ATTEMPTS`.
        """
        if self._calls.is_initialized():
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
                self._disconnect()
                if failures == CONNECT_ATTEMPTS or "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
                    raise
            if not still_assigned():
                sys.exit(0)

    def _connect(self, *args: Any, **kwargs: Any) -> None:
        """Remembering the sockets that Gloo opens."""
        with self._sockets.connecting(), cut_when_given_up(self._sockets.opened):
            self._init(*args, **kwargs)
        self._sockets.notice_silence()
        self._timelines.begin()
        self._told_local_rank = False

    def local_rank(self) -> int:
        """``hvd.local_rank``, which is 0 in every rank; the launcher hears once in a world that the script asks."""
        number: int = self._local_rank()
        if not self._told_local_rank:
            self._told_local_rank = True
            shared_link().send(LocalRankRead())
        return number

    def reset(self) -> None:
        """From one world to the next; a rank that was taken out ends here, with success."""
        for hook in before_reset:
            hook()
        self._timelines.end()
        self._disconnect()
        if not still_assigned():
            sys.exit(0)
        if _autotunes():
            # Each process tunes on from where it is: with a newcomer among them, they hang or crash.
            sys.exit("Horovod cannot tune over two worlds: this rank starts anew, from the newest durable checkpoint")
        self.init()

    def _disconnect(self) -> None:
        self._shutdown()
        self._sockets.cut()
        self._sockets.forget()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """``hvd.elastic.run``, whose recovery also covers the sync and the reset callbacks; with two words to the state.

    After the function a state that has a word for its end (``on_run_end``) may say it: should a rank be lost meanwhile,
    the others come back to it. And while the rank waits for a world, a state that has something to do then
    (``on_wait``) may do it.
    """

    @functools.wraps(func)
    def elastic(state: Any, *args: Any, **kwargs: Any) -> Any:
        train = ending_with_its_word(state, functools.partial(func, state, *args, **kwargs))
        hooks = [state.on_wait] if hasattr(state, "on_wait") else []
        notification_manager.init()
        notification_manager.register_listener(state)
        while_waiting.extend(hooks)
        try:
            return through_worlds(state, train, HostsUpdatedInterrupt, _is_loss, _reset)
        finally:
            for hook in hooks:
                while_waiting.remove(hook)
            notification_manager.remove_listener(state)

    return elastic


def _autotunes() -> bool:
    return os.environ.get("HOROVOD_AUTOTUNE", "0").lower() in ("1", "true")


def _is_loss(error: Exception) -> bool:
    own = isinstance(error, HorovodInternalError)
    return own or any(framework.is_loss(error) for framework in frameworks.imported())


def _reset() -> None:
    framework = frameworks.current()
    assert framework is not None, "a script that resets has imported it"
    _ranks[framework].reset()


_ranks: dict[Framework, Rank] = {}


def install() -> None:
    """Adapt this process, each framework as it is imported; once, and only where an agent's rendezvous is.

    Raises:
        SystemExit: the environment asks for something that cannot work with elastic runs.
    """
    global _installed
    if _installed:
        return
    if _autotunes() and FIXED_SIZE not in os.environ:
        sys.exit(
            "HOROVOD_AUTOTUNE hangs when rank 0 leaves an elastic run (horovod#2835): unset it, or fix the run's size"
        )
    if TOKEN in os.environ and not hasattr(worker, TOKEN):
        sys.exit(
            "This image's Horovod shows the rendezvous no token, and would be refused there: build it with "
            "images/trainer/build-horovod.sh, which amends it"
        )
    _installed = True
    _have_notices_heard()
    for theirs, ours in MODULES.items():
        when_imported(theirs, functools.partial(_adapt, ours))


def _have_notices_heard() -> None:
    """By a script whose state is Horovod's own, and by a rank that is between two worlds."""
    check = State.check_host_updates

    @functools.wraps(check)
    def check_host_updates(self: State) -> None:
        call_back()
        check(self)

    State.check_host_updates = check_host_updates
    before_reset.extend((call_back, kept_outputs.world_ends))
    while_waiting.append(call_back)


def _adapt(ours: str) -> None:
    framework: Framework = import_module(ours).FRAMEWORK
    rank = _ranks[framework] = Rank(framework.calls)
    framework.adapt(rank.init, rank.reset, run)
    for module in framework.modules:
        module.local_rank = rank.local_rank


# Horovod's timeline, one file for each world of which this process is rank 0.
#
# Upstream starts one file with ``hvd.init``, again at each reset, so that the last world is all that is left. Here
# Horovod waits to be told (``DYNAMIC``), and is told of another file after each reset. A timeline that grows beyond
# :data:`LIMIT` is stopped until the next world.


class Timelines:
    """Timelines of this process. Does nothing unless ``HOROVOD_TIMELINE`` names a file.

    Args:
        calls: Horovod's module with ``rank``, ``size``, ``start_timeline`` and ``stop_timeline``.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        path = os.environ.get("HOROVOD_TIMELINE")
        self._path = None if not path or path == "DYNAMIC" else Path(path)
        if self._path:
            os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        self._lock = threading.Lock()
        self._over: threading.Event | None = None
        self._generation = 0

    def begin(self) -> None:
        """A world is connected."""
        self._generation += 1
        if not self._path or self._calls.rank() != 0:
            return
        host = os.environ.get("HOROVOD_HOSTNAME", "host")
        path = self._path.with_name(f"{self._path.stem}.{host}.{self._generation}{self._path.suffix}")
        if os.environ.get(TRACES):
            begin = {"time": time.time_ns() // 1000, "size": self._calls.size()}
            path.with_suffix(BEGIN).write_text(json.dumps(begin), encoding="utf-8")
        self._calls.start_timeline(str(path))
        self._over = threading.Event()
        threading.Thread(target=self._watch, args=(path, self._over), name="timeline", daemon=True).start()

    def end(self) -> None:
        """The world is about to be left."""
        with self._lock:
            if self._over and not self._over.is_set():
                self._over.set()
                # Or, with events not written yet, the next start_timeline() replaces a running std::thread: abort.
                self._calls.stop_timeline()

    def _watch(self, path: Path, over: threading.Event) -> None:
        while not over.wait(LOOK):
            try:
                full = path.stat().st_size > LIMIT
            except OSError:  # Horovod makes it in a thread of its own.
                continue
            with self._lock:
                if full and not over.is_set():
                    over.set()
                    self._calls.stop_timeline()
