"""A warm process: imports what ranks need once, then forks a rank whenever it is told to.

A joining rank so pays no import: those of torch take seconds. The process runs none of the code that it imports, and no
thread but OpenBLAS's, which expects forks, so forking is safe. What to import is its client's to say; in a rank, the
world that its environment names is prepared before the user's script runs. Commands that are not Python, or not this
Python, are executed cold from the same fork.

Each worker has one. On this machine, one more for the whole run forks the agents, which inherit the imports and fork
their own from themselves (:func:`fork_ahead`): a worker more costs milliseconds.

It speaks JSON with its client, one datagram a message, over the socket whose descriptor is its first argument::

    client: {"start": NAME, "command": […], "environment": {…}, "directory": …} with three descriptors:
                                                                                stdout, stderr, rank link
            {"signal": NAME, "number": N, "alone": …}    to the process group of what runs under that name, or to its
                                                     own process alone
    zygote: {"ready": WARM, "detail": …} once;  {"started": NAME, "pid": …};  {"exited": NAME, "code": …}
            {"exited": NAME, "code": …, "never_started": true}    instead of "started", if it cannot be forked
            {"signalled": NAME}    when that is done, whether or not there was anything to signal

It ends with its parent, and what it forked ends with it, however that ended: the kernel sees to it. Processes that a
rank leaves behind in its process group (a DataLoader's workers, a shell's background jobs) are killed: at once when a
signal ended the rank, else after :data:`LEFTOVER_GRACE`. If this process is killed itself, a :class:`Keeper` kills
them. A process in a session of its own is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from elastic_runtime.agent.rank_process import CANNOT_START, Rank, become
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.world import WORLD

log = logging.getLogger(__name__)

# Driving it from an event loop, in another process.

ANSWER = 30.0
"""Seconds in which a zygote does what it is asked for. One that does not is stopped, or hangs, and is killed: whoever
has it starts another, or ends."""

KEEPER_END = 5.0
"""Seconds that a closed zygote's keeper has to kill what ranks have left behind: milliseconds, on a machine at rest."""


_ANSWERS = frozenset({"started", "never_started", "signalled"})
"""Each request has one message with one of these."""


class ZygoteClient:
    """The other end of a zygote's socket; it ends when this is closed.

    Args:
        on_message: called with each of its messages but for answers to signals, in order.
        on_end: called when it has ended by itself; whatever it had forked is gone then, too.
    """

    def __init__(self, on_message: Callable[[dict[str, Any]], None], on_end: Callable[[], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._control: socket.socket
        self.pid = 0
        self._asked = 0
        """Requests that are not answered yet."""
        self._timer: asyncio.TimerHandle | None = None

    def execute(self, environment: Mapping[str, str], preload: Iterable[str] | None) -> None:
        """Start it as a new process. Its output goes where ours goes.

        Args:
            environment: of it, and of all that it forks.
            preload: modules to import, so that commands run warm; None: they run cold.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "elastic_runtime.agent.zygote"),
                    *(str(theirs.fileno()), str(os.getpid())),
                    *(("0",) if preload is None else ("1", *preload)),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Whatever started us may have imported an engine. An agent that inherits that would act as a rank.
                env={name: value for name, value in environment.items() if name != WORLD},
                start_new_session=True,
            )
        process.returncode = 0  # Reaped by pid in close(), as one that was forked ahead; keeps Popen from warning.
        self.adopt(ours, process.pid)

    def adopt(self, control: socket.socket, pid: int) -> None:
        """Take over one that is our child already."""
        self.pid = pid
        self._control = control
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._read)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str | None,
        descriptors: tuple[int, int, int],
    ) -> bool:
        """Have it fork ``command``. Returns False when the zygote is gone.

        Args:
            name: unique among what it runs.
            command: to become.
            environment: on top of its own.
            directory: to change to; None: its own.
            descriptors: standard output, standard error, and the rank link; the caller keeps its own copies.
        """
        message = {"start": name, "command": list(command), "environment": dict(environment), "directory": directory}
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], descriptors)
        except OSError:
            return False
        self._expect_answer()
        return True

    def signal(self, name: str, number: int, *, alone: bool = False) -> None:
        """Send a signal to what runs under that name, if it still does, and unless ``alone`` to its process group."""
        with contextlib.suppress(OSError):  # It is gone, and what it ran with it.
            self._control.send(json.dumps({"signal": name, "number": number, "alone": alone}).encode())
            self._expect_answer()

    async def close(self) -> None:
        """End it, and wait until it is gone with all that it had forked."""
        self._stop_listening()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)  # It may still be importing torch, and would notice only then.
            await asyncio.to_thread(os.waitpid, self.pid, 0)
            self.pid = 0
        if self._control.fileno() >= 0:
            await asyncio.to_thread(_await_end, self._control)
            self._control.close()

    def _expect_answer(self) -> None:
        self._asked += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANSWER, self._give_up)

    def _answered(self) -> None:
        self._asked -= 1
        self._stop_timer()
        if self._asked:
            self._timer = asyncio.get_running_loop().call_later(ANSWER, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        """Its socket ends with it, and so do the processes that it has forked."""
        log.warning("the warm process %d has not answered for %.0f s: it is killed", self.pid, ANSWER)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def _stop_listening(self) -> None:
        self._stop_timer()
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)

    def _read(self) -> None:
        try:
            data = self._control.recv(MAX_MESSAGE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            message = json.loads(data)
            if not _ANSWERS.isdisjoint(message):
                self._answered()
            if "signalled" not in message:
                self._on_message(message)
        else:
            self._stop_listening()
            self._control.close()
            self._on_end()


def _await_end(control: socket.socket) -> None:
    """Read to the end: its keeper has the socket, too, until it has killed what the ranks have left behind."""
    control.settimeout(KEEPER_END)
    try:
        while control.recv(MAX_MESSAGE):
            pass
    except TimeoutError:
        log.warning("what ends the processes that ranks leave behind has not ended within %.0f s", KEEPER_END)
    except OSError:
        return


_GROUP = struct.Struct("i")
"""A process group to be ended; negative: it has ended."""


class Keeper:
    """A process, forked off a warm process, that outlives it, and ends what that one's children leave behind.

    The kernel ends forked ranks with their warm process, but not the processes that ranks have started. So whoever
    kills an agent, a warm process or a launcher would leave a DataLoader's workers, or a shell's background jobs.

    Args:
        held: a descriptor that stays open until all groups are killed: the other end of a socket so hears nothing of
            the end before.
    """

    def __init__(self, held: int) -> None:
        self._held = held
        self._log = RateLimitedLog(log)
        self._groups: set[int] = set()
        self.pid = -1
        self._pipe = -1
        self._start()

    def add(self, group: int) -> None:
        """End that process group with this process."""
        self._groups.add(group)
        self._tell(group)

    def remove(self, group: int) -> None:
        """It has ended, and its number may be given to another."""
        self._groups.discard(group)
        self._tell(-group)

    def ended(self, pid: int) -> bool:
        """Whether that child was the keeper. If so, somebody has killed it, and another is there now."""
        if pid != self.pid:
            return False
        os.close(self._pipe)
        self.pid = self._pipe = -1
        self._start_again()
        return True

    def close_in_child(self) -> None:
        """In a process that was forked since: let go, or that one would hold off the end."""
        if self._pipe >= 0:
            os.close(self._pipe)

    def _start(self) -> None:
        read, write = os.pipe()
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _keep(read, self._held)
        except OSError:
            os.close(write)
            raise
        finally:
            os.close(read)
        self._pipe = write
        for group in self._groups:
            self._tell(group)

    def _start_again(self) -> None:
        """Start another, or leave it to the next group that begins or ends."""
        try:
            self._start()
        except OSError as error:
            self._log.warning("no process ends what ranks leave behind until one can be started: %s", error)

    def _tell(self, group: int) -> None:
        if self._pipe < 0:
            self._start_again()  # It is told of all groups.
            return
        with contextlib.suppress(BrokenPipeError):  # It was killed; the next one is told.
            os.write(self._pipe, _GROUP.pack(group))


def _keep(pipe: int, held: int) -> NoReturn:
    """Until the other end of the pipe is closed, which is at the warm process' end, however that comes."""
    try:
        os.setsid()  # Not in a group that anybody ends.
        low, high = sorted((pipe, held))
        for first, end in ((0, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(first, end)
        groups: set[int] = set()
        while told := os.read(pipe, _GROUP.size):  # Writes of this size are not torn.
            (group,) = _GROUP.unpack(told)
            groups.add(group) if group > 0 else groups.discard(-group)
        for group in groups:
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)


PRELOAD = "ELASTIC_RUNTIME_PRELOAD"
"""Environment variable: further modules to import, with commas between them. What a script imports beyond its engine,
every rank that joins imports while the others wait for it."""
_is_warm = False


def preload(modules: Iterable[str]) -> str:
    """Import these, and those that the environment names. Returns why that failed, or nothing."""
    global _is_warm
    further = [name for name in os.environ.get(PRELOAD, "").split(",") if name]
    collects = gc.isenabled()
    gc.disable()  # Looking for garbage takes a quarter of the time in which torch is imported, and finds none.
    try:
        if error := _import((*modules, *further)):
            return error
        gc.collect()
        gc.freeze()  # Keeps the collector from touching, and so copying, every page in the children.
    finally:
        if collects:
            gc.enable()
    _is_warm = True
    return ""


def _import(modules: Iterable[str]) -> str:
    for name in modules:
        try:
            importlib.import_module(name)
        except (ImportError, InvalidSettings) as error:  # The latter when a module will not work with what is there.
            return printable(f"cannot import {name}: {error}")
    return ""


def is_warm() -> bool:
    """Whether this process, or the one that it was forked from, has done so."""
    return _is_warm


MAX_MESSAGE = 256 * 1024
LEFTOVER_GRACE = 0.5
"""Seconds that processes left behind by a rank that ended by itself have to end, as a ``tee`` that it wrote to does."""
_LOOK = 0.05
"""Seconds between two looks at them."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux; elsewhere the agent's own clean-up must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It ended before we asked.
            os._exit(1)


class Zygote:
    """Args: control: the socket to the agent. warm: whether the imports succeeded."""

    def __init__(self, control: socket.socket, warm: bool) -> None:
        self._control = control
        self._warm = warm
        self._ranks: dict[int, str] = {}
        self._leftovers: dict[int, float] = {}
        """Process groups whose leader has ended by itself, and until when their other processes may run."""
        self._keeper = Keeper(control.fileno())
        self._log = RateLimitedLog(log)

    def serve(self) -> Rank | None:
        """Until the agent hangs up. In a forked child it returns what that child has to run."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            wait = _LOOK if self._leftovers else None
            readable, _, _ = select.select([self._control.fileno(), wake_read], [], [], wait)
            self._end_leftovers()
            if wake_read in readable:
                os.read(wake_read, 4096)
                self._reap()
            if self._control.fileno() in readable:
                data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 3)
                if not data:
                    return None
                message = json.loads(data)
                if "signal" in message:
                    self._signal(message["signal"], message["number"], os.kill if message["alone"] else os.killpg)
                    self._say(signalled=message["signal"])
                elif child := self._fork(message, descriptors):
                    for descriptor in (wake_read, wake_write):
                        os.close(descriptor)
                    return child

    def _say(self, **message: Any) -> None:
        self._control.send(json.dumps(message).encode())

    def _reap(self) -> None:
        while pid_and_status := _ended_child():
            pid, status = pid_and_status
            if self._keeper.ended(pid) or pid not in self._ranks:  # The latter was started by a module at its import.
                continue
            code = os.waitstatus_to_exitcode(status)
            self._leftovers[pid] = time.monotonic() + (LEFTOVER_GRACE if code >= 0 else 0.0)
            self._end_leftovers()  # Before anybody is told, who might start the next rank.
            self._say(exited=self._ranks.pop(pid), code=code)

    def _end_leftovers(self) -> None:
        """Kill those whose time is over. The number of a group is not given away while it has a process."""
        now = time.monotonic()
        for group, until in list(self._leftovers.items()):
            due = now >= until
            try:
                os.killpg(group, signal.SIGKILL if due else 0)
            except OSError:  # None is left, or it is not ours.
                due = True
            if due:
                del self._leftovers[group]
                self._keeper.remove(group)

    def _signal(self, rank_id: str, number: int, send: Callable[[int, int], None]) -> None:
        for pid, name in self._ranks.items():
            if name == rank_id:  # Not reaped yet, so the pid is still this rank's.
                try:
                    send(pid, number)
                except OSError as error:  # It runs as another user, say.
                    self._log.warning("signal %d cannot be sent to %s: %s", number, printable(name), error)

    def _fork(self, message: dict[str, Any], descriptors: list[int]) -> Rank | None:
        rank_id = message["start"]
        zygote = os.getpid()
        # A SIGTERM that is ignored here must not be lost in the child: it is kept until the child is ready for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            self._refuse(rank_id, descriptors, error)
            return None
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            with contextlib.suppress(OSError):  # The child was first, and has been executing something else since.
                os.setpgid(pid, pid)  # Also called in the child, so that the group exists before the first signal.
            for descriptor in descriptors:
                os.close(descriptor)
            self._ranks[pid] = rank_id
            self._keeper.add(pid)
            self._say(started=rank_id, pid=pid)
            return None
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        die_with_parent(zygote)
        self._control.close()
        self._keeper.close_in_child()
        return Rank(message["command"], message["environment"], message["directory"], descriptors, self._warm)

    def _refuse(self, rank_id: str, descriptors: list[int], error: OSError) -> None:
        """Say on the rank's stderr why it cannot be forked, and that it has failed. The other ranks go on."""
        reason = (
            f"cannot start {rank_id}: no process can be forked: {error}. Are the limits of processes or memory reached?"
        )
        with contextlib.suppress(OSError, IndexError):  # The limit of open files may be reached, too.
            os.write(descriptors[1], f"{printable(reason)}\n".encode())
        for descriptor in descriptors:
            os.close(descriptor)
        self._say(exited=rank_id, code=CANNOT_START, never_started=True)


def _ended_child() -> tuple[int, int] | None:
    """Its pid and status; None: no child has ended since."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def fork_ahead() -> tuple[socket.socket, int]:
    """Fork a zygote off this process, which is warm and has started no thread. Returns its socket and its pid."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        die_with_parent(agent)
        serve(theirs, warm=True, detail="")
    theirs.close()
    return ours, pid


def serve(control: socket.socket, warm: bool, detail: str) -> NoReturn:
    """Be a zygote; in a forked child, what it forked that child for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A ctrl-C is the client's to handle.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # So is an end of the whole pod.
    with control:
        control.send(json.dumps({"ready": warm, "detail": detail}).encode())
        rank = Zygote(control, warm).serve()
    if rank is not None:
        become(rank)
    os._exit(0)


def main() -> None:
    """``python -m elastic_runtime.agent.zygote CONTROL_DESCRIPTOR PARENT_PID WARM(0|1) [MODULE…]``."""
    control, parent, warm, *modules = sys.argv[1:]
    die_with_parent(int(parent))
    wanted = warm == "1"
    problem = preload(modules) if wanted else ""
    serve(socket.socket(fileno=int(control)), wanted and not problem, problem)


if __name__ == "__main__":
    # An agent that is forked from here asks the module of that name whether it is warm.
    from elastic_runtime.agent import zygote  # noqa: PLW0406

    zygote.main()
