"""The agent's side of its warm process: start ranks, signal them, read what they write, hear how they end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import re
import shutil
import signal
import socket
import struct
import termios
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.agent.hardware import is_stopped
from elastic_runtime.agent.memory import oom_kills
from elastic_runtime.agent.rank_links import RankLinks
from elastic_runtime.agent.work_folder import new_folder
from elastic_runtime.agent.zygote import LEFTOVER_GRACE, ZygoteClient
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import write_atomically
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.protocol.plausible import LINES, check_rank, is_address
from elastic_runtime.protocol.rank_link import (
    HOSTFILE,
    OUTPUTS,
    AgentWord,
    AskStanding,
    Standing,
    decode_rank_message,
    encode_rank_message,
    plain_rank_message,
)
from elastic_runtime.protocol.rank_names import rank_id_of
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET
from elastic_runtime.protocol.wire import (
    AgentMessage,
    Host,
    Hosts,
    Output,
    RankExited,
    RankSaid,
    RankStarted,
    RankState,
    Ready,
)
from elastic_runtime.run.jobs import NOTICE_TO_ALL
from elastic_runtime.script.stacks import SIGNAL as STACK_SIGNAL

# Lines of a rank's output, with those of a progress bar among them, which never ends its line but rewrites it. Pure.
#
# A carriage return begins the line anew, and so does the cursor's way up (``ESC [ A``) that nested bars end with. What
# the line shows then is a *frame*. Of frames the newest is told now and then; a line that ends is told in any case.

EVERY = 5.0
"""Seconds between two frames of a stream that are told, at least: a bar may be drawn ten times a second, for days."""
_UP, _LONGEST_UP = re.compile(rb"(?:\x1b\[\d{0,3}A)+\Z"), 64


def _without_up(text: bytes) -> bytes:
    """What is drawn, without the cursor's way up after it."""
    found = _UP.search(text, max(0, len(text) - _LONGEST_UP))
    return text[: found.start()] if found else text


class OutputLines:
    """Cuts one stream of a rank into lines; however small the pieces, each byte is looked at once.

    Args:
        longest: bytes. A longer line comes in parts of this size.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = bytearray()
        """Of the line, since it was begun anew."""
        self._frame = b""
        """The newest that was overwritten, not yet by anything that can be seen."""
        self._redrawn = False
        """The line was begun anew, so it shows a frame."""
        self._told: bytes | None = None
        """Of this line."""
        self._due = float("-inf")
        """When a frame may be told next."""

    def feed(self, piece: bytes, now: float) -> list[bytes]:
        """Return the lines to send now, without their ends.

        Args:
            piece: of the stream.
            now: monotonic seconds.
        """
        found: list[bytes] = []
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._draw(end, found)
            self._end_line(found)
        self._draw(rest, found)
        return [*found, *self.tick(now)]

    def wait(self, now: float) -> float | None:
        """Seconds until :meth:`tick` has something to tell; None: nothing but more of the stream can change that."""
        return max(0.0, self._due - now) if self._untold else None

    def tick(self, now: float) -> list[bytes]:
        """The newest frame, where it is time for one."""
        if not self._untold or now < self._due:
            return []
        self._told, self._due = self._shown, now + EVERY
        return [self._told]

    def end(self) -> list[bytes]:
        """Return the last line, if it has no end."""
        shown = self._shown
        return [shown] if shown and shown != self._told else []

    @property
    def _shown(self) -> bytes:
        return _without_up(bytes(self._rest)) or self._frame

    @property
    def _untold(self) -> bool:
        return self._redrawn and self._shown != self._told and bool(self._shown.strip())

    def _draw(self, text: bytes, found: list[bytes]) -> None:
        """More of the line, without its end."""
        before, redrawn, after = text.rpartition(b"\r")
        if redrawn:
            self._redrawn = True
            first, _, others = before.partition(b"\r")
            self._rest += first
            newest = next((each for each in (*reversed(others.split(b"\r")), bytes(self._rest)) if each), b"")
            self._frame = _without_up(newest) or self._frame
            self._rest.clear()
        self._rest += after
        while len(self._rest) > self._longest:
            found.append(bytes(self._rest[: self._longest]))
            del self._rest[: self._longest]

    def _end_line(self, found: list[bytes]) -> None:
        if len(_without_up(bytes(self._rest))) < len(
            self._rest
        ):  # The bar above is drawn next; this one again after it.
            self._frame, self._redrawn = self._shown, True
            self._rest.clear()
            return
        shown = self._shown
        if self._told is None or shown != self._told:
            found.append(shown)
        self._rest.clear()
        self._frame, self._redrawn, self._told = b"", False, None


log = logging.getLogger(__name__)

STACKS_TIME = 2.0
"""Seconds that a rank has to write where it stands, before it is signalled, or stopped."""
OUTPUT_DRAIN = 2.0
"""Seconds to read a rank's output after its own end, at most. Its process group ends with it (see
:mod:`~elastic_runtime.agent.zygote`); a process in a session of its own may write for ever."""
_CHUNK = 65536
_LOOK = 0.02
"""Seconds between two looks at whether all that a rank wrote is read."""


@dataclass(slots=True)
class _Stream:
    """One of a rank's outputs."""

    pipe: int
    task: asyncio.Task[None] = field(init=False)
    transport: asyncio.ReadTransport | None = None
    waits: bool = False
    """All that was read is passed on."""

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to read now."""
        if self.task.done():
            return True
        if self.transport and self.transport.is_closing():  # At its end, which the task has not seen yet.
            return False
        return self.waits and not struct.unpack("i", fcntl.ioctl(self.pipe, termios.FIONREAD, b"\0" * 4))[0]


@dataclass(slots=True)
class _Rank:
    rank_id: str
    links: RankLinks
    streams: list[_Stream] = field(default_factory=list)
    pid: int | None = None
    kills: int = 0
    """:func:`.memory.oom_kills` when it began."""
    asked: bool = False
    """For its stacks, without an answer so far."""
    stopped: bool = False
    """Its end was asked for."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


async def _at_once() -> None:
    """Return immediately: the default of ``drained``, for senders without backpressure."""


class Ranks:
    """Ranks of one worker, started through one warm process.

    Args:
        send: called with every message for the launcher, in order.
        environment: of the warm process, and so of every rank.
        preload: modules to import ahead; None: ranks start cold.
        drained: returns once the launcher has taken most of what was sent; ranks that write more than it takes wait.
        scratch: where the folder is made in which each rank has its folder of outputs; None: for temporary files.
        hostfile: path at which the hosts of each world are kept; None: in that folder.
        oom_kills: as :func:`.memory.oom_kills`.
    """

    def __init__(
        self,
        send: Callable[[AgentMessage], None],
        environment: Mapping[str, str],
        preload: Sequence[str] | None,
        drained: Callable[[], Awaitable[None]] = _at_once,
        scratch: Path | None = None,
        hostfile: str | None = None,
        oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        self._send, self._drained = send, drained
        self._limited_log = RateLimitedLog(log)
        self._environment = dict(environment)
        self._ends_by = signal.SIGHUP if NOTICE_TO_ALL in environment else signal.SIGTERM
        self._preload = preload
        self._scratch, self._outputs, self._oom_kills = scratch, Path(), oom_kills
        self._hostfile = Path(hostfile) if hostfile else None
        self._ranks: dict[str, _Rank] = {}
        self._numbers = itertools.count()
        self._endings: set[asyncio.Task[None]] = set()
        self._ready: Ready | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.orphaned = asyncio.Event()
        """The warm process has ended by itself: no rank can start here any more."""
        self._zygote = ZygoteClient(self._handle_zygote_message, self._zygote_ended)

    @property
    def running(self) -> list[str]:
        """Names of the ranks whose processes run, or have something left to say."""
        return [rank_id_of(process) for process in self._ranks]

    @property
    def pids(self) -> list[int]:
        """Process ids of the warm process and of every rank that has not ended."""
        ranks = (rank.pid for rank in self._ranks.values() if not rank.ended.is_set())
        return [self._zygote.pid, *(pid for pid in ranks if pid is not None)]

    def start(self, ahead: tuple[socket.socket, int] | None) -> None:
        """Start the warm process, or take over the one that was forked ahead; :class:`Ready` is sent once it is.

        Raises:
            ClusterUnavailable: there is no place for a folder.
        """
        self._outputs = new_folder("outputs-", self._scratch)
        if ahead:
            self._zygote.adopt(*ahead)
        else:
            self._zygote.execute(self._environment, self._preload)

    def announce(self) -> None:
        """Say again that ranks can start here, to a launcher that has not heard it."""
        if self._ready:
            self._send(self._ready)

    def start_rank(
        self, rank_id: str, command: Sequence[str], environment: Mapping[str, str], directory: str | None
    ) -> None:
        """Fork a rank; :class:`RankStarted` and in the end :class:`RankExited` are sent."""
        ours, theirs = socket.socketpair()
        joining = self._outputs.resolve() / f"link-{next(self._numbers)}"
        rank = self._ranks[rank_id] = _Rank(rank_id, self._links(rank_id, ours, joining), kills=self._oom_kills())
        self._idle.clear()
        outputs = [os.pipe(), os.pipe()]
        with theirs:
            descriptors = (outputs[0][1], outputs[1][1], theirs.fileno())
            told = {**environment, OUTPUTS: str(self._outputs), HOSTFILE: str(self._hosts), RANK_SOCKET: str(joining)}
            if not self._zygote.start(rank_id, command, told, directory, descriptors):
                self._end(rank, -signal.SIGKILL)
            for _, write in outputs:
                os.close(write)
        loop = asyncio.get_running_loop()
        for name, (read, _) in zip(("stdout", "stderr"), outputs, strict=True):
            rank.streams.append(stream := _Stream(read))
            stream.task = loop.create_task(self._forward(rank_id, name, stream))

    def _links(self, rank_id: str, first: socket.socket, joining: Path) -> RankLinks:
        def refused(error: InvalidDocument) -> None:
            self._limited_log.warning("rank %s is not listened to any more: %s", rank_id, printable(error))

        return RankLinks(first, joining, lambda plain: self._check(rank_id, plain), refused, self._drained)

    def signal(self, rank_id: str, number: int, *, alone: bool = False) -> None:
        """Send a signal to a rank's process group, or its own process; a rank that has ended is left alone."""
        if rank_id in self._ranks:
            self._zygote.signal(rank_id, number, alone=alone)

    def dump_stacks(self, *, ask: bool = False, quiet: bool = False) -> None:
        """Have every rank write on stderr where it stands, as far as it can; see :class:`~.wire.DumpStacks`.

        Ranks do that themselves before they answer. Those that do not answer within :data:`STACKS_TIME` are signalled,
        which is less safe: see :mod:`~elastic_runtime.script.stacks`.
        """
        for rank_id, rank in self._ranks.items():
            rank.asked = not quiet
            if ask:
                self._send(RankState(rank_id, rank.pid is not None and is_stopped(rank.pid)))
        self.tell(AskStanding(quiet))
        if not quiet:
            asyncio.get_running_loop().call_later(STACKS_TIME, self._signal_the_mute)

    def _signal_the_mute(self) -> None:
        for rank_id, rank in self._ranks.items():
            if rank.asked:
                rank.asked = False
                self.signal(rank_id, STACK_SIGNAL)

    def in_world(self, world: Hosts) -> None:
        """Have every rank find these in the hostfile."""
        write_hostfile(self._hosts, world.hosts)

    @property
    def _hosts(self) -> Path:
        return self._hostfile or self._outputs.resolve() / "hostfile"

    async def stop_rank(self, rank_id: str, grace: float, interrupt: int = 0, *, stacks: bool = False) -> None:
        """SIGTERM, or what ``interrupt`` says to its own process alone, and after ``grace`` seconds SIGKILL.

        In place of SIGTERM, SIGHUP for those that ignore it (:data:`NOTICE_TO_ALL`).

        A process that is stopped (SIGSTOP) handles no other signal, and has no grace.
        """
        if rank := self._ranks.get(rank_id):
            rank.stopped = True
        if rank and rank.pid is not None and is_stopped(rank.pid):
            grace, stacks = 0.0, False
        if stacks and rank:
            self.signal(rank_id, STACK_SIGNAL, alone=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STACKS_TIME):
                    await rank.ended.wait()
        self.signal(rank_id, interrupt or self._ends_by, alone=bool(interrupt))
        if rank:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await rank.ended.wait()
        self.signal(rank_id, signal.SIGKILL)

    def tell(self, word: AgentWord) -> None:
        """Say it to every rank; one that does not listen is no error."""
        for rank in self._ranks.values():
            with contextlib.suppress(OSError):
                rank.links.tell(encode_rank_message(word))

    def tell_one(self, rank_id: str, word: AgentWord) -> None:
        """Say it to one rank; one that has ended is no error. One that does not take it has hung up, as it will see."""
        if rank := self._ranks.get(rank_id):
            try:
                if rank.links.tell(encode_rank_message(word)):
                    return
            except OSError as error:
                log.debug("rank %s takes no word: %s", rank_id, error)
            with contextlib.suppress(OSError):
                rank.links.hang_up()

    async def stop(self) -> None:
        """End every rank at once, and wait until they are gone."""
        await asyncio.gather(*(self.stop_rank(rank_id, 0.0) for rank_id in list(self._ranks)))
        await self._idle.wait()

    async def close(self) -> None:
        """End every rank and the warm process, and wait until they are gone."""
        await self.stop()
        await self._zygote.close()
        if self._outputs != Path():
            await asyncio.to_thread(shutil.rmtree, self._outputs, ignore_errors=True)

    def _zygote_ended(self) -> None:
        """The kernel has killed its ranks."""
        self.orphaned.set()
        for rank in list(self._ranks.values()):
            self._end(rank, -signal.SIGKILL)

    def _handle_zygote_message(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready = Ready(message["ready"], message["detail"])
            self._send(self._ready)
        elif "started" in message:
            self._ranks[message["started"]].pid = message["pid"]
            self._send(RankStarted(message["started"], message["pid"]))
        elif rank := self._ranks.get(message["exited"]):
            self._end(rank, message["code"])

    def _end(self, rank: _Rank, code: int) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(rank, code))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _finish(self, rank: _Rank, code: int) -> None:
        if rank.ended.is_set():
            return
        rank.ended.set()
        by_itself = not rank.stopped
        ended, starved = time.monotonic(), code != 0 and self._oom_kills() > rank.kills
        await self._drain(rank, 0.0 if code < 0 else LEFTOVER_GRACE)
        await rank.links.close()
        del self._ranks[rank.rank_id]
        if code == -self._ends_by:
            code = -signal.SIGTERM  # As the launcher knows it.
        self._send(RankExited(rank.rank_id, code, round(time.monotonic() - ended, 3), starved, by_itself))
        if not self._ranks:
            self._idle.set()

    async def _drain(self, rank: _Rank, grace: float) -> None:
        """Pass on the rest of its output: to the end, or after ``grace`` seconds as far as there is any."""
        ended, quiet = time.monotonic(), 0
        while running := [stream.task for stream in rank.streams if not stream.task.done()]:
            await asyncio.wait(running, timeout=_LOOK)
            # Twice, since what was read at the first look may not be passed on yet.
            quiet = quiet + 1 if all(stream.quiet for stream in rank.streams) else 0
            passed = time.monotonic() - ended
            if passed >= OUTPUT_DRAIN or (passed >= grace and quiet > 1):
                for task in running:
                    task.cancel()
                break

    def _check(self, rank_id: str, plain: Mapping[str, Any]) -> None:
        try:
            if message := decode_rank_message(plain):
                check_rank(message)
                if isinstance(message, Standing) and (rank := self._ranks.get(rank_id)):
                    rank.asked = False
                self._send(RankSaid(rank_id, plain_rank_message(message)))
        except InvalidDocument as error:
            self._limited_log.warning("what rank %s says is left out: %s", rank_id, printable(error))

    async def _forward(self, rank_id: str, name: str, stream: _Stream) -> None:
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        pipe = os.fdopen(stream.pipe, "rb", buffering=0)  # closed with its transport
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        stream.transport = transport
        lines, data = OutputLines(_CHUNK), None
        try:
            while data != b"":
                stream.waits, data = True, None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(lines.wait(loop.time())):
                        data = await reader.read(_CHUNK)
                stream.waits = False
                now = loop.time()
                self._lines(rank_id, name, lines.feed(data, now) if data else lines.tick(now))
                await self._drained()
        finally:
            self._lines(rank_id, name, lines.end())
            transport.close()

    def _lines(self, rank_id: str, stream: str, lines: list[bytes]) -> None:
        texts = tuple(line.decode(errors="replace") for line in lines)
        for begin in range(0, len(texts), LINES):
            self._send(Output(rank_id, stream, texts[begin : begin + LINES], utc_now()))


# The worker's file with the hosts of the present world, new for each world.
#
# One line a host, ``ADDRESS slots=N``, by the lowest rank there; ``N`` counts the ranks of the world, not all that
# would fit. Workers with one address (those of this machine) are one host, since DeepSpeed takes each host once.


def write_hostfile(path: Path, hosts: Iterable[Host]) -> None:
    """Replace it, whole. What cannot be written is a warning: training goes on without.

    Args:
        path: of the file, in a folder that is made if need be. A link in its place is replaced and not followed; a
            folder that is reached by one is refused.
        hosts: as the launcher has said.
    """
    text = "".join(f"{each.address} slots={each.slots}\n" for each in hosts if is_address(each.address))
    try:
        if path.parent.resolve() != path.parent:
            raise OSError(f"{path.parent} is, or is behind, a link to {path.parent.resolve()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, 0o644)
    except OSError as error:
        log.warning("no hostfile: %s cannot be written: %s", printable(path), printable(error))
