"""Corrections in every rank before the user's script runs. The table is in the package's docstring.

:func:`install` is called by the warm process that ranks are forked from; a rank that was started cold gets it by
importing :mod:`elastic_runtime.torch` or :mod:`elastic_runtime.tensorflow`. What is a framework's own is in
:mod:`~elastic_runtime.engines.horovod.torch` and :mod:`~elastic_runtime.engines.horovod.tensorflow`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from horovod.common.elastic import State, notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic import worker

from elastic_runtime.engines.gloo_sockets import GlooSockets
from elastic_runtime.engines.horovod import frameworks
from elastic_runtime.engines.horovod.frameworks import MODULES, Framework, when_imported
from elastic_runtime.engines.horovod.rendezvous_client import (
    all_are_here,
    cut_when_given_up,
    still_assigned,
    while_waiting,
)
from elastic_runtime.engines.horovod.rendezvous_http import TOKEN
from elastic_runtime.engines.through_worlds import ending_with_its_word, through_worlds
from elastic_runtime.protocol.rank_link import FIXED_SIZE, LocalRankRead, shared_link
from elastic_runtime.run.observe import TRACES
from elastic_runtime.script import kept_outputs
from elastic_runtime.script.leaving import call_back

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
