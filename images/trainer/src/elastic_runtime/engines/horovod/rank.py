"""Corrections in every rank before the user's script runs. The table is in the package's docstring.

:func:`install` is called by the warm process that ranks are forked from; in a rank that was started cold, by the import
of Horovod, or of :mod:`elastic_runtime.torch` or :mod:`elastic_runtime.tensorflow`. What is a framework's own is in
:mod:`~elastic_runtime.engines.horovod.torch` and :mod:`~elastic_runtime.engines.horovod.tensorflow`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import horovod
from horovod.common.elastic import State, notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.runner.elastic.worker import HostUpdateResult
from typing_extensions import override

from elastic_runtime.engines.gloo_sockets import GlooSockets
from elastic_runtime.engines.horovod import frameworks
from elastic_runtime.engines.horovod.environment import PLACE, RESTARTS, place_of
from elastic_runtime.engines.horovod.frameworks import MODULES, Framework, when_complete, when_imported
from elastic_runtime.engines.horovod.store import LoopbackStore
from elastic_runtime.engines.through_worlds import ending_with_its_word, through_worlds
from elastic_runtime.engines.torch.channel import Channel, WorldLost
from elastic_runtime.engines.torch.messages import AnotherWanted, Offered
from elastic_runtime.protocol.rank_link import FIXED_SIZE, LocalRankRead, RankLink, shared_link
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET
from elastic_runtime.run.observe import TIMELINE_SAMPLES, TRACES
from elastic_runtime.run.waits import LONGEST_COLLECTIVE
from elastic_runtime.script import kept_outputs
from elastic_runtime.script.giving_way import give_way
from elastic_runtime.script.leaving import call_back
from elastic_runtime.script.standing import ledger
from elastic_runtime.script.unjoined import StepsWithout

while_waiting: list[Callable[[], None]] = []
"""Called every :data:`HOOK_INTERVAL` seconds while this rank waits for the next world, connected to nobody."""
HOOK_INTERVAL = 0.1
"""Seconds between two calls of :data:`while_waiting`."""


class Meeting:
    """How this process meets the others: by what its agent brings, which Horovod's C++ side asks for.

    Args:
        link: to the agent.
    """

    def __init__(self, link: RankLink) -> None:
        self._link, self._channel = link, Channel(link, self._another, self._broken)
        self._channel.on_offered = self._offered
        self._sockets = GlooSockets(listening=True)
        self._store: LoopbackStore | None = None
        self._changes = 0
        self.same_state = False
        """Whether all ranks of the present world have left the one before at one commit."""

    def next_world(self) -> None:
        """Wait for the next world; a rank that is in none ends, with success. Its place is in the environment then.

        Raises:
            ConnectionError: the agent is gone, and with it the run.
        """
        place = self._channel.next_world(_call_hooks, HOOK_INTERVAL)
        if place is None:
            give_way(self._link)
            sys.exit(0)
        self._changes, self.same_state = 0, place.same_state
        os.environ.update(place_of(place.rank, place.size))

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """Remembering the sockets that Gloo opens, and shutting them down should the world break meanwhile.

        Inside ``hvd.init()`` a rank waits two and a half minutes (five times Gloo's time-out) for a peer that was to
        connect to it, and was lost.
        """
        store = self._store = LoopbackStore(self._channel.offer, ",".join(os.environ[name] for name in PLACE))
        os.environ.update(store.environment)
        over = threading.Event()
        thread = threading.Thread(target=self._cut_when_broken, args=(over,), name="given-up", daemon=True)
        thread.start()
        is_connected = False
        try:
            with self._sockets.connecting():
                yield
            is_connected = True
        finally:
            over.set()
            thread.join()
            if not is_connected or not _is_set("HOROVOD_DYNAMIC_PROCESS_SETS"):
                store.stop()
        self._sockets.notice_silence()
        self._channel.connected()

    def disconnect(self) -> None:
        """Horovod is shut down: so are the sockets on which it would wait still."""
        self._sockets.cut()
        self._sockets.forget()
        if self._store is not None:
            self._store.stop()

    def synced(self) -> None:
        """This rank has the state. What was told of changes while it came to it, and was forgotten, is told again."""
        self._channel.synced()
        if self._changes:
            self._tell(self._changes)

    def static(self) -> None:
        """The script trains without a state."""
        self._channel.static()

    def done(self) -> None:
        """The training of this rank is over: wait until all others' is."""
        self._channel.done()

    @property
    def breaks_again_and_again(self) -> bool:
        """Whether world after world has, though no rank was lost: by an error that going on does not mend."""
        return self._channel.breaks_again_and_again

    def peer_lost(self) -> None:
        """Something with the others has failed here: have them hear it."""
        self._channel.peer_lost()

    def _another(self, wanted: AnotherWanted) -> None:
        self._changes = wanted.serial
        self._tell(wanted.serial)

    def _tell(self, serial: int) -> None:
        # Mixed, whatever it is: no rank skips by it the sync that others wait in; see _reset.
        notification_manager.handle_hosts_updated(float(serial), HostUpdateResult.mixed)

    def _broken(self) -> None:
        if self._store is not None:
            self._store.refuse()
        self._sockets.cut()

    def _offered(self, said: Offered) -> None:
        if self._store is not None:
            self._store.offered(said)

    def _cut_when_broken(self, over: threading.Event) -> None:
        """Again and again: a connection may be made just after."""
        while not over.wait(HOOK_INTERVAL):
            if self._channel.is_broken:
                self._sockets.cut()


class OneMeeting(Meeting):
    """Of a process that is in one world alone, the one that its environment names: a loss ends it."""

    breaks_again_and_again = True

    def begin(self) -> None:
        """The script begins."""
        ledger()  # Which answers where this rank stands.
        self._channel.connected()

    @override
    def next_world(self) -> None:
        """Stay: a script may end Horovod, and begin anew."""

    @override
    def synced(self) -> None:
        """Nobody asks."""

    @override
    def done(self) -> None:
        """Its process ends next."""

    @override
    def peer_lost(self) -> None:
        """Its process ends, which is heard."""


def _call_hooks() -> None:
    for hook in while_waiting:
        hook()


@cache
def meeting() -> Meeting | None:
    """That of this process; None: no agent has started it, so that it meets whom Horovod's own environment says.

    Raises:
        ConnectionError: a rank has started it, and has ended.
    """
    link = shared_link()
    link.connect()
    if not link.connected:
        return None
    return OneMeeting(link) if _one_world else Meeting(link)


before_reset: list[Callable[[], None]] = []
"""Called at the begin of each reset, when all ranks stand at the same step and the old world is still connected."""
CONNECT_ATTEMPTS = 3
"""Worlds in a row that this rank may fail to connect to; one that is broken costs each of its ranks an attempt."""
_installed = _one_world = _is_elastic = False
LIMIT = 64 * 1024 * 1024
"""Bytes of one world's timeline: some hundred thousand events."""
LOOK = 0.25
"""Seconds between two looks at its size."""
SAMPLE, SAMPLE_SECONDS = 4 * 1024 * 1024, 10.0
"""Bytes and seconds of a sample: it ends with the first of them."""
FIRST_PAUSE = 60.0
"""Seconds after the first sample of a world; the later ones follow after twice the time, each."""
MOST_SAMPLES = 30
"""Of one world: the last is a thousand years after the first."""
BEGIN = ".begin"
"""Suffix of the file beside it that says when its world began, and with how many ranks: Horovod writes times since."""


class Rank:
    """The adapted ``hvd.init`` and reset of this process.

    Args:
        calls: see :class:`Framework`; not adapted yet.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        self._init, self._shutdown, self._local_rank = calls.init, calls.shutdown, calls.local_rank
        self._told_local_rank = False
        self._without_state = StepsWithout(lambda: _is_elastic, self._tell_static)
        self._timelines = Timelines(calls)

    def init(self, *args: Any, **kwargs: Any) -> None:
        """``hvd.init`` into the first world that can be completed; a rank that is in none ends, with success.

        Raises:
            ValueError: Horovod's, after :data:`CONNECT_ATTEMPTS`.
        """
        met = None if self._calls.is_initialized() else meeting()
        if met is None:
            self._init(*args, **kwargs)
            return
        # Without it, the others wait without end for a rank that the launcher cannot find: before the first commits.
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", f"{LONGEST_COLLECTIVE:.0f}")
        met.next_world()
        self._connect(met, *args, **kwargs)

    def _connect(self, met: Meeting, *args: Any, **kwargs: Any) -> None:
        """To the others of the present world, or of the next that can be completed."""
        for attempt in range(CONNECT_ATTEMPTS):
            if attempt:
                met.next_world()
            try:
                with met.connecting():
                    self._init(*args, **kwargs)
                break
            except ValueError:  # A rank was lost on the way in.
                met.peer_lost()
                self._disconnect(met)
                if attempt + 1 == CONNECT_ATTEMPTS:
                    raise
        ledger().counts.connected()
        self._timelines.begin()
        self._told_local_rank = False

    def local_rank(self) -> int:
        """``hvd.local_rank``, which is 0 in every rank; the launcher hears once in a world that the script asks."""
        number: int = self._local_rank()
        if not self._told_local_rank:
            self._told_local_rank = True
            shared_link().send(LocalRankRead())
        return number

    def stepped(self, steps: int = 1) -> None:
        """The script has trained so many steps, in a world or not."""
        if _one_world:  # There are no commits at which to call what on_notice was given.
            call_back()
        elif self._calls.is_initialized():
            self._without_state.stepped(steps)

    def _tell_static(self) -> None:
        if met := meeting():
            met.static()

    def reset(self) -> bool:
        """From one world to the next; a rank that was taken out ends here, with success.

        Returns:
            Whether all ranks there have left their world at one commit.
        """
        for hook in before_reset:
            hook()
        self._timelines.end()
        met = meeting()
        assert met is not None, "or nothing is a loss, and no world changes"
        self._disconnect(met)
        met.next_world()
        if _autotunes():
            # Each process tunes on from where it is: with a newcomer among them, they hang or crash.
            sys.exit("Horovod cannot tune over two worlds: this rank starts anew, from the newest durable checkpoint")
        self._connect(met)
        return met.same_state

    def _disconnect(self, met: Meeting) -> None:
        self._shutdown()
        met.disconnect()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """``hvd.elastic.run``, whose recovery also covers the sync and the reset callbacks; with two words to the state.

    After the function a state that has a word for its end (``on_run_end``) may say it: should a rank be lost meanwhile,
    the others come back to it. And while the rank waits for a world, a state that has something to do then
    (``on_wait``) may do it.
    """
    global _is_elastic
    _is_elastic = True

    @functools.wraps(func)
    def elastic(state: Any, *args: Any, **kwargs: Any) -> Any:
        whole = ending_with_its_word(state, functools.partial(func, state, *args, **kwargs))
        met = meeting()

        def train() -> Any:
            result = whole()
            if met:
                met.done()
            return result

        hooks = [state.on_wait] if hasattr(state, "on_wait") else []
        notification_manager.register_listener(state)
        while_waiting.extend(hooks)
        try:
            synced = met.synced if met else lambda: None
            reset = functools.partial(_reset, state)
            return through_worlds(state, train, HostsUpdatedInterrupt, _is_loss, reset, synced)
        finally:
            for hook in hooks:
                while_waiting.remove(hook)
            notification_manager.remove_listener(state)

    return elastic


def _autotunes() -> bool:
    return _is_set("HOROVOD_AUTOTUNE")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0").lower() in ("1", "true")


def _is_loss(error: Exception) -> bool:
    met = meeting()
    own = isinstance(error, HorovodInternalError | WorldLost)
    if met is None or not (own or any(framework.is_loss(error) for framework in frameworks.imported())):
        return False
    if met.breaks_again_and_again and not isinstance(error, WorldLost):
        return False
    met.peer_lost()
    return True


def _reset(state: Any) -> bool:
    """Returns whether there is nothing to sync. States of Horovod's own may hold what differs among ranks: samplers."""
    framework = frameworks.current()
    assert framework is not None, "a script that resets has imported it"
    return _ranks[framework].reset() and getattr(state, "is_replicated", False)


_ranks: dict[Framework, Rank] = {}


def install(*, one_world: bool = False) -> None:
    """Adapt this process, each framework as it is imported; once.

    Args:
        one_world: its processes are started anew for each world.

    Raises:
        SystemExit: the environment asks for something that cannot work with elastic runs.
    """
    global _installed, _one_world
    if _installed:
        return
    if _autotunes() and FIXED_SIZE not in os.environ and not one_world:
        sys.exit(
            "HOROVOD_AUTOTUNE hangs when rank 0 leaves an elastic run (horovod#2835): unset it, or fix the run's size"
        )
    if RANK_SOCKET in os.environ and not hasattr(horovod, "SHOWS_TOKEN"):
        sys.exit(
            "This image's Horovod shows the rendezvous no token, and would be refused there: build it with "
            "images/trainer/build-horovod.sh, which amends it"
        )
    _installed, _one_world = True, one_world
    if RANK_SOCKET in os.environ:
        notification_manager.init = lambda *_: None  # The agent brings word of changes.
    _have_notices_heard()
    for theirs, ours in MODULES.items():
        when_imported(theirs, functools.partial(when_complete, ours, _adapt))
    if one_world and isinstance(met := meeting(), OneMeeting):
        met.begin()


def _have_notices_heard() -> None:
    """By a script whose state is Horovod's own, and by a rank that is between two worlds."""
    check = State.check_host_updates

    @functools.wraps(check)
    def check_host_updates(self: State) -> None:
        ledger().commits()
        call_back()
        check(self)

    State.check_host_updates = check_host_updates
    before_reset.extend((call_back, kept_outputs.world_ends))
    while_waiting.append(call_back)


def _adapt(framework: Framework) -> None:
    rank = _ranks[framework] = Rank(framework.calls)
    framework.adapt(rank.init, rank.reset, run, rank.stepped)
    for module in framework.modules:
        module.local_rank = rank.local_rank


# Horovod's timeline, one file for each world of which this process is rank 0, or for each of its samples.
#
# Upstream starts one file with ``hvd.init``, again at each reset, so that the last world is all that is left. Here
# Horovod waits to be told (``DYNAMIC``), and is told of another file after each reset. A timeline that grows beyond
# :data:`LIMIT` is stopped until the next world.


class Timelines:
    """Timelines of this process. Does nothing unless ``HOROVOD_TIMELINE`` names a file, or :data:`.TIMELINE_SAMPLES`.

    Samples need a Horovod whose writer sleeps: upstream's takes a core, also between samples.

    Args:
        calls: Horovod's module with ``rank``, ``size``, ``start_timeline`` and ``stop_timeline``.
    """

    def __init__(self, calls: Any) -> None:
        self._calls = calls
        path = os.environ.get("HOROVOD_TIMELINE")
        samples = None if path else os.environ.get(TIMELINE_SAMPLES)
        self._sampled = samples is not None and getattr(horovod, "TIMELINE_SLEEPS", False)
        if self._sampled:
            path = samples
        self._path = None if not path or path == "DYNAMIC" else Path(path)
        if self._path:
            os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        self._lock = threading.Lock()
        self._over: threading.Event | None = None
        self._runs = False
        self._generation = int(os.environ.get(RESTARTS, "0"))
        self._begin: dict[str, int] = {}

    def begin(self) -> None:
        """A world is connected."""
        self._generation += 1
        if not self._path or self._calls.rank() != 0:
            return
        self._begin = {"time": time.time_ns() // 1000, "size": self._calls.size()}
        self._over = threading.Event()
        words = self._start(self._path, 0), self._path, self._over
        threading.Thread(target=self._watch, args=words, name="timeline", daemon=True).start()

    def end(self) -> None:
        """The world is about to be left."""
        with self._lock:
            if self._over:
                self._over.set()
                self._stop()

    def _start(self, path: Path, sample: int) -> Path:
        host = os.environ.get("HOROVOD_HOSTNAME", "host")
        number = MOST_SAMPLES * self._generation + sample if self._sampled else self._generation
        file = path.with_name(f"{path.stem}.{host}.{number}{path.suffix}")
        if os.environ.get(TRACES):
            file.with_suffix(BEGIN).write_text(json.dumps(self._begin), encoding="utf-8")
        self._calls.start_timeline(str(file))
        self._runs = True
        return file

    def _stop(self) -> None:
        # Or, with events not written yet, the next start_timeline() replaces a running std::thread: abort.
        if self._runs:
            self._calls.stop_timeline()
            self._runs = False

    def _watch(self, file: Path, path: Path, over: threading.Event) -> None:
        """Stop what is full, and begin the next samples, each after twice the time."""
        for sample in range(1, MOST_SAMPLES):
            self._wait_until_full(file, over)
            with self._lock:
                if over.is_set():
                    return
                self._stop()
            if not self._sampled or over.wait(FIRST_PAUSE * 2 ** (sample - 1)):
                return
            with self._lock:
                if over.is_set():
                    return
                file = self._start(path, sample)

    def _wait_until_full(self, file: Path, over: threading.Event) -> None:
        most, seconds = (SAMPLE, SAMPLE_SECONDS) if self._sampled else (LIMIT, math.inf)
        until = time.monotonic() + seconds
        while not over.wait(LOOK) and time.monotonic() < until:
            with contextlib.suppress(OSError):  # Horovod makes it in a thread of its own.
                if file.stat().st_size > most:
                    return
