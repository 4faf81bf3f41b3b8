"""The agent itself: what it is told, its connection to the launcher, one worker's ranks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import signal
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import psutil

from elastic_runtime.agent import devices, hardware, notices
from elastic_runtime.agent.hardware import Gpus
from elastic_runtime.agent.notices.clouds import NO_METADATA, Metadata
from elastic_runtime.agent.ranks import Ranks
from elastic_runtime.agent.saving import Saving
from elastic_runtime.agent.scripts import Scripts
from elastic_runtime.agent.work_folder import WorkFolder, remove_abandoned
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json
from elastic_runtime.engines.base import Engine
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.net.certificates import LAUNCHER, agent_context
from elastic_runtime.net.framing import MAX_LINE, decode_line
from elastic_runtime.net.sockets import end_when_silent, named_addresses
from elastic_runtime.printable import printable
from elastic_runtime.protocol import rank_link
from elastic_runtime.protocol.plausible import TOKEN
from elastic_runtime.protocol.rank_link import OWN_LOCAL_RANK, CommitDeadline, EngineWord, Handover, MayEnd
from elastic_runtime.protocol.wire import (
    AgentMessage,
    DumpStacks,
    GiveShard,
    Heartbeat,
    Hello,
    Hosts,
    LetEnd,
    Message,
    NamedElsewhere,
    Release,
    SaveTraces,
    StartRank,
    StopRank,
    TellRank,
    TracesSaved,
    Welcome,
    decode,
    encode,
)
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.join import BY_NAME
from elastic_runtime.run.rundir import ReclaimNotice
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.world import WORLD

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What one worker's agent is told by whoever starts it."""

    worker: str
    """Name of this worker, unique in the run, new with each incarnation."""
    launcher: tuple[str, int]
    """Address and port to dial."""
    tls: Path
    """Folder with ``ca.crt``, ``agent.crt`` and ``agent.key``."""
    slots: int = 1
    """Ranks that fit here."""
    node: str = ""
    """Machine that this worker is on."""
    interface: str = "lo"
    """Network interface of the ranks' own traffic."""
    address: str = ""
    """Address of this worker in that traffic. Empty: not known."""
    grace: float = 30.0
    """Seconds from SIGTERM to the end of this worker."""
    notice_file: Path | None = None
    """Path at which a reclaim notice may appear."""
    metadata: Metadata = NO_METADATA
    """Metadata service of the cloud, to be asked for reclaim notices."""
    max_wait: float = 30.0
    """Seconds to keep dialling a launcher that does not answer."""
    scratch: Path | None = None
    """Where folders for files and outputs of the run are made; None: in one for temporary files."""
    hostfile: str | None = None
    """Path at which the hosts of the world are kept, unless the run says another; None: in a folder of the agent's."""
    identity: Path | None = None
    """File with a token that proves which pod this is, and that changes; None: the launcher asks for none."""
    directory: str | None = None
    """Working directory of the ranks; None: as the run says."""
    redial: bool = False
    """Outlive the launcher: dial again, for ever, whenever it hangs up; and end only when terminated, for whoever
    started this agent would start it again."""


RETRY = RetryPolicy(first=0.2, longest=2.0)
ATTEMPT = 5.0
"""Seconds for one attempt: nobody answers for the address of a pod that is gone."""
COMPLAINT = 30.0
"""Seconds between two lines in the log about a launcher that does not answer."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def dial(launcher: tuple[str, int], tls: Path, max_wait: float | None) -> Streams:
    """Connect, as often as it takes.

    Args:
        launcher: address and port.
        tls: folder with the agent's certificate.
        max_wait: seconds to keep trying; None: no limit, and an invalid certificate does not end it either.

    Raises:
        ClusterUnavailable: nobody answered in that time, or it was a launcher of another run.
    """
    context, (host, port), loop = agent_context(tls), launcher, asyncio.get_running_loop()
    begun, complained, retry = loop.time(), loop.time(), Retry(RETRY)
    while True:
        try:
            async with asyncio.timeout(ATTEMPT):
                return await asyncio.open_connection(host, port, ssl=context, server_hostname=LAUNCHER, limit=MAX_LINE)
        except OSError as error:  # ssl.SSLError and TimeoutError are some, too
            problem = f"no launcher at {host}:{port}: {str(error) or 'no answer'}"
            if isinstance(error, ssl.SSLError):
                problem = f"the launcher at {host}:{port} is not this run's: {error}"
            final = isinstance(error, ssl.SSLError) or loop.time() - begun > (max_wait or 0.0)
            if max_wait is not None and final:
                raise ClusterUnavailable(problem) from error
        if loop.time() - complained > COMPLAINT:
            complained = loop.time()
            log.warning("%s; still trying", printable(problem))
        await retry.pause()


def interface_of(address: str) -> str:
    """The network interface that has this address.

    Raises:
        InvalidSettings: none has.
    """
    wanted = ipaddress.ip_address(address)
    found = psutil.net_if_addrs()
    for interface, addresses in found.items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                own = ipaddress.ip_address(each.address.partition("%")[0])
                if own == wanted:
                    return interface
    remedy = f"Give an address of one of {', '.join(found)}"
    raise InvalidSettings("--address", f"no network interface here has the address {address}", remedy)


def address_towards(host: str, port: int) -> str:
    """Return the address from which this machine reaches another one; nothing is sent.

    Raises:
        InvalidSettings: it is not known how to reach it.
    """
    try:
        family, kind, _, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(there)
            return str(sock.getsockname()[0])
    except OSError as error:
        problem, remedy = f"{host} cannot be reached from here: {error}", "Have this machine reach the launcher's"
        raise InvalidSettings("--launcher", problem, remedy) from error


def address_of(interface: str) -> str:
    """The IP address by which others reach this one, IPv4 if there is any; empty when there is none."""
    own = [
        each for each in psutil.net_if_addrs().get(interface, ()) if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    own.sort(key=lambda each: each.family != socket.AF_INET)
    return own[0].address.partition("%")[0] if own else ""


WELCOME = 10.0
"""Seconds that a launcher has to answer a hello."""
STILL_HERE = timedelta(seconds=90)
"""A worker that is still there so long after its deadline was not taken: false alarms happen. Longer than
:data:`.notices.clouds.STALE`, after which an announcement of the same deadline does not count any more."""
REST = timedelta(minutes=15)
"""After which a worker that was released for no reason of its own offers itself again: its node may be cleared."""
THE_RUNS_OWN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
"""Variables of which an engine gives no more than a default."""


class Parting(StrEnum):
    """Reason why a connection to the launcher ended."""

    DISCONNECTED = "disconnected"
    """The launcher is gone, or has replaced itself."""
    RELEASED = "released"
    """It needs this worker no more."""
    TIME_IS_OVER = "time is over"
    """The deadline of a notice is here."""


class Agent:
    """A worker's agent: ends when the launcher releases it, or hangs up for good, or the worker's time is over.

    Args:
        settings: where and who.
        ahead: socket and pid of a warm process that was forked already; None: one is started.
    """

    def __init__(self, settings: AgentSettings, ahead: tuple[socket.socket, int] | None = None) -> None:
        self._settings, self._ahead = settings, ahead
        self._name = settings.worker
        self._spec: RunSpec
        self._engine: Engine
        self._ranks: Ranks | None = None
        self._scripts: Scripts | None = None
        self._saving: Saving | None = None
        self._folder: WorkFolder | None = None
        self._writer: asyncio.StreamWriter
        self._stops: set[asyncio.Task[None]] = set()
        self._terminated = asyncio.Event()
        self._notice: ReclaimNotice | None = None

    async def run(self) -> Parting | None:
        """Serve the run until the end. No process is left behind.

        Returns:
            Why the last connection ended; None: this worker was terminated.

        Raises:
            ClusterUnavailable: the launcher never answered, or is none of this run; or the warm process is gone.
            InvalidSettings: the run's engine is not installed here.
            InvalidDocument: the files that came with the run are not what can be shipped.
        """
        # At once, and not only when there is something to lose: without a handler, process 1 of a container is deaf.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminated.set)
        removing = asyncio.create_task(asyncio.to_thread(remove_abandoned))
        try:
            while (streams := await self._dial()) is not None:
                parting = await self._connected(*streams)
                log.debug("the launcher and this worker part: %s", parting)
                if self._terminated.is_set():
                    return None
                if not self._settings.redial:
                    return parting
                if parting is not Parting.DISCONNECTED and await self._taken():
                    return None
            return None
        finally:
            await self._close_ranks()
            await removing
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    async def _taken(self) -> bool:
        """Wait, without ranks, for what was announced. Whether it has come; or this worker can be of use again."""
        await self._close_ranks()
        end = self._notice.deadline + STILL_HERE if self._notice else utc_now() + REST
        self._notice = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((end - utc_now()).total_seconds()):
                await self._terminated.wait()
                return True
        log.info("this worker was to go and is still here: it offers itself again")
        return False

    async def _dial(self) -> Streams | None:
        """None when this worker is terminated before somebody answers."""
        max_wait = None if self._settings.redial else self._settings.max_wait
        dialling = asyncio.create_task(dial(self._settings.launcher, self._settings.tls, max_wait))
        terminated = asyncio.create_task(self._terminated.wait())
        try:
            await asyncio.wait((dialling, terminated), return_when=asyncio.FIRST_COMPLETED)
            return dialling.result() if dialling.done() else None
        finally:
            dialling.cancel()
            terminated.cancel()
            await asyncio.gather(dialling, terminated, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Parting:
        self._writer = writer
        try:
            self._send(self._hello())
            welcome = await self._welcome(reader)
            if welcome is None:
                if self._settings.redial:
                    await asyncio.sleep(RETRY.first)
                    return Parting.DISCONNECTED
                raise ClusterUnavailable(f"the launcher at {self._settings.launcher} did not welcome this agent")
            self._spec, self._name = welcome.spec, welcome.worker or self._settings.worker
            log.debug("the launcher at %s calls this worker %s", self._settings.launcher[0], self._name)
            end_when_silent(writer.get_extra_info("socket"), self._spec.timing.agent_silence)
            if self._ranks is None:
                self._engine = find_engine(self._spec.engine)
                within = self._place()
                if self._spec.scripts:
                    self._scripts = Scripts.lay_down(self._spec.scripts, within)
                preload = self._engine.preload if self._spec.warm else None
                variables = {**os.environ, **self._spec.environment}
                hostfile = self._spec.hostfile or self._settings.hostfile
                self._ranks = Ranks(self._send, variables, preload, self._drained, within, hostfile)
                self._ranks.start(self._ahead)
                self._saving = Saving.of(self._spec, within, self._ranks)
                self._ahead = None  # Another one is started for ranks after these.
            else:
                self._ranks.announce()
            naming = asyncio.create_task(self._compare_name())
            try:
                return await self._serve(reader, self._ranks)
            finally:
                naming.cancel()
                await asyncio.gather(naming, return_exceptions=True)
                await self._ranks.stop()
        finally:
            self._writer.close()

    async def _close_ranks(self) -> None:
        if self._ranks:
            await self._ranks.close()
            self._ranks = None
        if self._scripts:
            await asyncio.to_thread(self._scripts.remove)
            self._scripts = None
        if self._saving:
            await self._saving.close()
            self._saving = None
        if self._folder:
            await asyncio.to_thread(self._folder.remove)
            self._folder = None

    def _place(self) -> Path:
        """Where this worker's folders are made."""
        if self._settings.scratch:
            return self._settings.scratch
        if self._folder is None:
            self._folder = WorkFolder()
        return self._folder.path

    async def _welcome(self, reader: asyncio.StreamReader) -> Welcome | None:
        try:
            async with asyncio.timeout(WELCOME):
                message = await self._receive(reader)
        except TimeoutError:
            return None
        return message if isinstance(message, Welcome) else None

    async def _serve(self, reader: asyncio.StreamReader, ranks: Ranks) -> Parting:
        """Until the first of: the launcher hangs up or releases us; the deadline of a notice."""
        obeying = asyncio.create_task(self._obey(reader, ranks))
        heeding = asyncio.create_task(self._handle_notice())
        tasks = [
            obeying,
            heeding,
            asyncio.create_task(self._beat(ranks)),
            asyncio.create_task(self._miss_zygote(ranks)),
            *([asyncio.create_task(self._saving.watch())] if self._saving else []),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return obeying.result() if obeying in done else Parting.TIME_IS_OVER
        finally:
            for task in (*tasks, *self._stops):
                task.cancel()
            await asyncio.gather(*tasks, *self._stops, return_exceptions=True)

    def _hello(self) -> Hello:
        own, token = self._settings, read_token(self._settings.identity)
        node = own.node or os.uname().nodename
        return Hello(own.worker, node, os.getpid(), own.slots, own.interface, own.address, token)

    async def _compare_name(self) -> None:
        """Tell the launcher if ranks here are reached at one address, and some of Horovod's connections use another.

        Such are pods with hostNetwork, and machines whose /etc/hosts gives their name a loopback address.
        """
        own = self._settings.address
        if self._spec.engine not in BY_NAME or not own or ipaddress.ip_address(own).is_loopback:
            return
        named = await asyncio.to_thread(named_addresses)
        if own not in named:
            self._send(NamedElsewhere(next(iter(named), "")))

    def _send(self, message: AgentMessage) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _drained(self) -> None:
        with contextlib.suppress(OSError):  # Or the launcher is gone, and what it was told does not matter.
            await self._writer.drain()

    async def _receive(self, reader: asyncio.StreamReader) -> Message | None:
        """Return the next message; None once the launcher has disconnected."""
        try:
            line = await reader.readline()
            return decode(decode_line(line)) if line.endswith(b"\n") else None
        except (OSError, InvalidDocument) as error:
            log.warning("connection to the launcher: %s", printable(error))
            return None

    async def _obey(self, reader: asyncio.StreamReader, ranks: Ranks) -> Parting:  # noqa: C901  # one case a message
        while message := await self._receive(reader):
            match message:
                case StartRank():
                    self._start(message, ranks)
                case StopRank(rank_id, grace, interrupt, stacks):
                    stop = asyncio.create_task(ranks.stop_rank(rank_id, grace, interrupt, stacks=stacks))
                    self._stops.add(stop)
                    stop.add_done_callback(self._stops.discard)
                case Handover() | CommitDeadline():
                    ranks.tell(message)
                case TellRank(rank_id, word):
                    ranks.tell_one(rank_id, EngineWord(word))
                case LetEnd(rank_id) | GiveShard(rank_id):
                    ranks.tell_one(rank_id, message.given if isinstance(message, GiveShard) else MayEnd())
                case SaveTraces() if self._saving:
                    saving = asyncio.create_task(self._saving.obey(message, self._send))
                    self._stops.add(saving)
                    saving.add_done_callback(self._stops.discard)
                case SaveTraces():
                    self._send(TracesSaved())
                case DumpStacks(ask, quiet):
                    ranks.dump_stacks(ask=ask, quiet=quiet)
                case Hosts():
                    ranks.in_world(message)
                case Release(reason):
                    log.debug("released: %s", printable(reason))
                    return Parting.RELEASED
                case _:
                    log.warning("the launcher sent a %s, which is not an order", type(message).__name__)
        return Parting.DISCONNECTED

    def _start(self, order: StartRank, ranks: Ranks) -> None:
        environment = rank_environment(
            self._spec, order, self._name, self._settings.slots, self._devices, self._engine.world
        )
        given = order.environment.get("LOCAL_RANK")
        if given != environment.get("LOCAL_RANK", given):
            environment[OWN_LOCAL_RANK] = "1"
        if self._saving:
            environment |= self._saving.environment()
        command: Sequence[str] = self._spec.command
        directory = self._settings.directory or self._spec.working_directory
        if scripts := self._scripts:
            environment |= scripts.environment({**os.environ, **environment})
            command, directory = scripts.command(command), directory or str(scripts.folder)
        ranks.start_rank(order.rank_id, command, environment, directory)

    @functools.cached_property
    def _devices(self) -> devices.Pools:
        # What this process was given comes first: on this machine it is a part of what the run was given.
        pools = devices.pools({**self._spec.environment, **os.environ})
        if lacking := devices.lacking(slots := self._settings.slots, pools):
            log.warning("%d ranks see the same devices: %s", slots, printable(lacking, 200))
        return pools

    async def _beat(self, ranks: Ranks) -> None:
        usage, network, gpus = hardware.Usage(), hardware.Network(), Gpus(self._devices)
        try:
            while True:
                figures = *usage.measure([os.getpid(), *ranks.pids]), *network.measure()
                self._send(Heartbeat(*figures, gpus.latest()))
                await asyncio.sleep(self._spec.timing.heartbeat)
        finally:
            gpus.close()

    async def _miss_zygote(self, ranks: Ranks) -> None:
        """End a worker that is of no use any more, so that another can take its place."""
        await ranks.orphaned.wait()
        raise ClusterUnavailable("the warm process that ranks are forked from has ended")

    async def _handle_notice(self) -> None:
        """Tell of every notice, and return when the time of the first of them is over."""
        own = self._settings
        await notices.collect(
            notices.sources(self._terminated, own.grace, own.notice_file, own.metadata), self._tell_notice
        )

    def _tell_notice(self, notice: ReclaimNotice) -> None:
        self._notice = notice
        self._send(notice)


# The environment that a rank is started with, beside its agent's own.


def rank_environment(
    spec: RunSpec, order: StartRank, worker: str, slots: int, pools: devices.Pools, world: str
) -> dict[str, str]:
    """Return a rank's environment: from the run, from the engine, and for helpers in the rank.

    Args:
        spec: of the run.
        order: the launcher's.
        worker: the agent's name.
        slots: of this worker.
        pools: its devices.
        world: of the engine, as :data:`WORLD` has it.
    """
    environment = {
        **spec.environment,
        **order.environment,
        **{name: spec.environment[name] for name in THE_RUNS_OWN if name in spec.environment},
        **devices.slot_environment(order.slot, slots, pools),
        **devices.local_environment(order.environment, order.slot, slots, pools),
        WORLD: world,
        rank_link.RUN_NAME: spec.name,
        rank_link.WORKER_NAME: worker,
        rank_link.SLOT: str(order.slot),
        # As long as the launcher gives an agent: it has to miss the rank too, before the others can go on.
        rank_link.PEER_SILENCE: str(spec.timing.agent_silence),
    }
    if spec.fixed_size:
        environment[rank_link.FIXED_SIZE] = "1"
    if spec.checkpoint:
        environment[rank_link.CHECKPOINT] = to_json(spec.checkpoint)
    return environment


# What proves to the launcher which worker this is: a token in a file that the kubelet renews.


def read_token(file: Path | None) -> str:
    """The token as it is now; empty where there is no file, or none that can be read: the launcher then decides.

    It is read for each connection, since it changes. Neither log nor error holds any of it.
    """
    if file is None:
        return ""
    try:
        with file.open("rb") as stream:
            content = stream.read(TOKEN + 1).strip()
    except OSError as error:
        log.warning("cannot read this pod's token: %s", printable(error))
        return ""
    if len(content) > TOKEN or not content.isascii():
        log.warning("cannot use this pod's token: %s is not ASCII text of at most %d bytes", file, TOKEN)
        return ""
    return content.decode()
