"""The warm process of a pool, in which the agents of workers are forked.

One import of torch is enough for as many agents as are forked, as in a run without a pool. A keeper tells it what to
fork. It outlives the keeper, so that runs train on without one. It ends when it is told to; by SIGTERM with a notice to
its agents; or, on a machine, when there has been neither a keeper nor an agent for a while.

``python -m elastic_runtime.pool.host FOLDER`` is that of a pool on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastic_runtime.agent.devices import Pools, WorkerShares, most_devices, pools
from elastic_runtime.agent.orphans import adopt_orphans, end_orphans
from elastic_runtime.agent.zygote import ZygoteClient
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.pool.connection import AGAIN, receive
from elastic_runtime.pool.folder import PoolDir
from elastic_runtime.pool.machine import MachineHostPlace
from elastic_runtime.pool.messages import (
    AGENT_FILES,
    FROM_KEEPER,
    TO_KEEPER,
    AgentEnded,
    Busy,
    EndHost,
    ForkAgent,
    HostHello,
    HostLeaves,
    KillAgent,
    Refused,
    ToKeeper,
)
from elastic_runtime.pool.place import HostPlace
from elastic_runtime.pool.processes import start_log
from elastic_runtime.pool.settings import MOST_WORKERS, PoolSettings
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry
from elastic_runtime.run.locking import take

log = logging.getLogger(__name__)

ACCEPTED = 1.0
"""Seconds after which a keeper that has not ended a connection keeps it."""
WARMING = 600.0
"""Seconds for the import of the frameworks."""
ENGINES = ("torchrun", "horovodrun")
"""Engines for whose ranks it has imported what they need, as far as it is installed: these need all that ours do."""


class Host:
    """What stands for workers.

    Args:
        place: that it is in.
        capacity: most workers that it can stand for.
        shares: of the GPUs here, for each of them.
        grace: seconds that agents have after SIGTERM, before they are killed; 0: they are killed at once.
    """

    def __init__(self, place: HostPlace, capacity: int, shares: WorkerShares, grace: float = 0.0) -> None:
        self._place, self._capacity, self._shares, self._grace = place, capacity, shares, grace
        self._agents: dict[str, Busy] = {}
        """By the name that the warm process has for them."""
        self._queued: list[ForkAgent] = []
        """Told before there was a warm process that is ready."""
        self._zygote: ZygoteClient | None = None
        self._ready = self._leaves = False
        self._writer: asyncio.StreamWriter | None = None
        self._ends, self._warm_or_ends = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Until it is told to end, or is alone. Raises OSError."""
        adopt_orphans()
        shutil.rmtree(self._place.agents, ignore_errors=True)
        self._place.agents.mkdir(mode=0o700)
        loop, retry = asyncio.get_running_loop(), Retry(AGAIN)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        self._start_zygote()
        alone = loop.time()
        try:
            if self._place.connects_warm:
                await self._become_warm()
            while not self._ends.is_set():
                begun = loop.time()
                if await self._with_keeper():
                    if loop.time() - begun > ACCEPTED:  # Else it was refused.
                        retry.succeeded()
                    alone = loop.time()
                if not self._ends.is_set():
                    self._place.keeper_is_away()
                if self._agents:
                    alone = loop.time()
                elif (longest := self._place.idle_limit) is not None and loop.time() - alone > longest:
                    return log.warning("no keeper for %.0f s, and no agent: the warm process ends", longest)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(retry.failed()):
                        await self._ends.wait()
        finally:
            if self._zygote:
                await self._zygote.close()
            self._zygote = None
            self._end_orphans()
            shutil.rmtree(self._place.agents, ignore_errors=True)

    async def _become_warm(self) -> None:
        try:
            async with asyncio.timeout(WARMING):
                await self._warm_or_ends.wait()
        except TimeoutError:
            log.error("the frameworks are not imported after %.0f s: this host ends, and is started again", WARMING)
            self._end()

    def _leave(self) -> None:
        """Have the agents leave, as their machine will be taken, and end after them."""
        if self._leaves or not self._agents or not self._grace:
            self._end()
            return
        self._leaves = True
        log.info("this host leaves, with its agents, within %.0f s", self._grace)
        self._say(HostLeaves())
        queued, self._queued = self._queued, []
        for order in queued:
            self._ended(_key(order.uid, order.worker), -signal.SIGTERM)
        for key in self._agents:
            assert self._zygote is not None  # it has forked them
            self._zygote.signal(key, signal.SIGTERM, alone=True)
        asyncio.get_running_loop().call_later(self._grace, self._end)

    def _end(self) -> None:
        self._ends.set()
        self._warm_or_ends.set()

    def _end_orphans(self) -> None:
        ours = [self._zygote.pid] if self._zygote else []
        end_orphans([*ours, *self._place.children()])

    async def _with_keeper(self) -> bool:
        """Returns at the end of a connection whether there was one."""
        try:
            reader, writer = await self._place.connect()
        except ClusterUnavailable:
            return False
        self._writer = writer
        self._say(HostHello(self._place.name, self._capacity, tuple(self._agents.values())))
        if self._leaves:
            self._say(HostLeaves())
        obeying, ending = asyncio.create_task(self._obey(reader)), asyncio.create_task(self._ends.wait())
        try:
            await asyncio.wait((obeying, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writer = None
            for task in (obeying, ending):
                task.cancel()
            results = await asyncio.gather(obeying, ending, return_exceptions=True)
            writer.transport.abort()
        if isinstance(results[0], InvalidDocument):
            log.warning("the keeper: %s", printable(results[0]))
        elif isinstance(results[0], Exception):
            raise results[0]
        return True

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader, FROM_KEEPER)) is not None:
            match message:
                case ForkAgent():
                    self._fork(message)
                case KillAgent(uid, worker):
                    self._kill(_key(uid, worker))
                case EndHost() if not self._agents:
                    self._end()
                case Refused(reason):
                    log.warning("the keeper refuses this host: %s", printable(reason))
                case _:
                    log.warning("%s is not for a host, or comes too early", type(message).__name__)

    def _kill(self, key: str) -> None:
        if any(_key(each.uid, each.worker) == key for each in self._queued):
            self._queued = [each for each in self._queued if _key(each.uid, each.worker) != key]
            self._ended(key, -signal.SIGKILL)
        elif self._zygote and key in self._agents:
            self._zygote.signal(key, signal.SIGKILL)

    def _fork(self, order: ForkAgent) -> None:
        key = _key(order.uid, order.worker)
        self._agents[key] = Busy(order.place, order.uid, order.worker)
        if self._leaves:
            self._ended(key, -signal.SIGTERM)
            return
        if not self._ready:
            self._queued.append(order)
            return
        assert self._zygote is not None  # or nothing would be ready
        try:
            tls = self._lay_certificates(order)
        except (OSError, InvalidDocument) as error:
            log.warning("no agent for %s: %s", printable(key), printable(error))
            self._ended(key, 1)
            return
        launch = order.launch
        command = [
            *(sys.executable, "-m", "elastic_runtime.agent", *launch.arguments),
            *("--worker", order.worker, "--tls", str(tls), *self._place.arguments(order.worker, launch.notices)),
        ]
        environment = {**launch.environment, **self._shares.environment(order.place)}
        with open(os.devnull, "rb") as no_link:
            self._zygote.start(key, command, environment, launch.directory or os.getcwd(), (1, 2, no_link.fileno()))

    def _lay_certificates(self, order: ForkAgent) -> Path:
        tls = self._place.agents / order.uid
        if order.uid != tls.name or order.uid.startswith(".") or set(order.launch.certificates) != set(AGENT_FILES):
            raise InvalidDocument("the run's certificates are not what they have to be")
        tls.mkdir(mode=0o700, exist_ok=True)
        for name, content in order.launch.certificates.items():
            path = tls / name
            path.touch(mode=0o600)
            path.write_text(content)
        return tls

    def _say(self, message: ToKeeper) -> None:
        if self._writer and not self._writer.is_closing():
            self._writer.write(TO_KEEPER.write(message))

    # The warm process.

    def _start_zygote(self) -> None:
        self._ready = False
        self._zygote = ZygoteClient(self._zygote_says, self._zygote_ended)
        self._zygote.execute(os.environ, ("elastic_runtime.agent.agent", *dict.fromkeys(preloads())))

    def _zygote_says(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready = True
            self._warm_or_ends.set()
            log.info("workers start %s%s", "warm" if message["ready"] else "cold: ", printable(message["detail"]))
            queued, self._queued = self._queued, []
            for order in queued:
                self._fork(order)
        elif "exited" in message:
            self._end_orphans()
            self._ended(message["exited"], message["code"])

    def _zygote_ended(self) -> None:
        """It was killed, and the kernel has killed its agents: begin again."""
        log.warning("the process that workers are forked from has ended")
        if self._zygote is not None:
            os.waitpid(self._zygote.pid, 0)
            self._zygote.pid = 0
        self._end_orphans()
        was_ready, self._queued = self._ready, []
        for key in list(self._agents):
            self._ended(key, -signal.SIGKILL)
        if was_ready:
            self._start_zygote()
        else:  # The keeper starts another host, after a while.
            self._zygote = None
            self._end()

    def _ended(self, key: str, code: int) -> None:
        busy = self._agents.pop(key)
        if all(each.uid != busy.uid for each in self._agents.values()):
            shutil.rmtree(self._place.agents / busy.uid, ignore_errors=True)
        self._say(AgentEnded(busy.place, busy.uid, busy.worker, code))
        if self._leaves and not self._agents:
            self._end()


def places(settings: PoolSettings, here: Pools) -> tuple[int, WorkerShares]:
    """Return the most workers of a pool that a machine can have, and their GPUs, which stay if the pool is resized.

    Args:
        settings: of the pool.
        here: the machine's GPUs.
    """
    if settings.gpus:
        capacity = max(1, most_devices(here) // settings.gpus)
        return capacity, WorkerShares(here, capacity, settings.gpus)
    first = settings.first.maximum
    return first if here else MOST_WORKERS, WorkerShares(here, first, 1)


def preloads() -> Iterator[str]:
    """Modules that ranks need, of all engines that are installed here."""
    for name in ENGINES:
        with contextlib.suppress(InvalidSettings):
            modules = find_engine(name).preload
            if all(_is_here(module.partition(".")[0]) for module in modules):
                yield from modules


def _is_here(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _key(uid: str, worker: str) -> str:
    return f"{uid}/{worker}"


async def stand(folder: PoolDir) -> None:
    """Be the host of this machine. Raises ElasticError or OSError."""
    await Host(MachineHostPlace(folder), *places(folder.settings(), pools(os.environ))).run()


def main() -> None:
    """Exit status 0 at the end, or if another host is there; 1 when it cannot be one."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m elastic_runtime.pool.host FOLDER")
    start_log("host")
    folder = PoolDir(Path(sys.argv[1]).resolve())
    try:
        with folder.host_lock.open("a") as lock:
            if not take(lock.fileno()):
                return
            os.set_inheritable(lock.fileno(), False)
            asyncio.run(stand(folder))
    except (ElasticError, OSError) as error:
        sys.exit(f"host: {error}")


if __name__ == "__main__":
    main()
