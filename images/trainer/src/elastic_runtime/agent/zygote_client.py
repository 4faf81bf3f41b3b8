"""Driving a :mod:`~elastic_runtime.agent.zygote` from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from elastic_runtime.agent.zygote import MAX_MESSAGE

log = logging.getLogger(__name__)

ANSWER = 30.0
"""Seconds in which a zygote does what it is asked for. One that does not is stopped, or hangs, and is killed: whoever
has it starts another, or ends."""

KEEPER_END = 5.0
"""Seconds that a closed zygote's keeper has to kill what ranks have left behind: milliseconds, on a machine at rest."""


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
                env=dict(environment),
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
            if "started" in message or "signalled" in message:
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
