"""``python -m elastic_runtime.pool.host FOLDER``: the warm process of a pool on this machine.

It stands for all workers of the pool: one import of torch is enough for as many agents as are forked, as in a run
without a pool. A keeper tells it what to fork. It outlives the keeper, so that runs train on without one, and starts
another. It ends when it is told to, or when there has been neither a keeper nor an agent for :data:`ALONE` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastic_runtime.agent.devices import Pools, WorkerShares, most_devices, pools
from elastic_runtime.agent.orphans import adopt_orphans, end_orphans
from elastic_runtime.agent.zygote import ZygoteClient
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.pool.connection import AGAIN, connect, receive
from elastic_runtime.pool.folder import PoolDir
from elastic_runtime.pool.messages import (
    FROM_KEEPER,
    TO_KEEPER,
    AgentEnded,
    Busy,
    EndHost,
    ForkAgent,
    HostHello,
    KillAgent,
    ToKeeper,
)
from elastic_runtime.pool.processes import start_log
from elastic_runtime.pool.settings import MOST_WORKERS, PoolSettings
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.locking import take

log = logging.getLogger(__name__)

ALONE = 60.0
"""Seconds without a keeper and without an agent, after which it ends."""
NAME = "this-machine"
KEEPER = "elastic_runtime.pool"
_KEEPERS = RetryPolicy(first=1.0, longest=60.0)
"""Between two keepers that are started."""
ENGINES = ("torchrun", "horovodrun")
"""Engines for whose ranks it has imported what they need, as far as it is installed: these need all that ours do."""
_FILES = ("ca.crt", "agent.crt", "agent.key")


class Host:
    """Args: folder: of the pool. settings: as they stand there."""

    def __init__(self, folder: PoolDir, settings: PoolSettings) -> None:
        self._folder = folder
        self._capacity, self._shares = places(settings, pools(os.environ))
        self._agents: dict[str, Busy] = {}
        """By the name that the warm process has for them."""
        self._queued: list[ForkAgent] = []
        """Told before there was a warm process that is ready."""
        self._zygote: ZygoteClient | None = None
        self._ready = False
        self._writer: asyncio.StreamWriter | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._keeper_retry, self._keeper_due = Retry(_KEEPERS), 0.0
        self._ends = asyncio.Event()

    async def run(self) -> None:
        """Until it is told to end, or is alone. Raises OSError."""
        adopt_orphans()
        shutil.rmtree(self._folder.agents, ignore_errors=True)
        self._folder.agents.mkdir(mode=0o700)
        loop, retry = asyncio.get_running_loop(), Retry(AGAIN)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ends.set)
        self._start_zygote()
        alone = loop.time()
        try:
            while not self._ends.is_set():
                if await self._with_keeper():
                    retry.succeeded()
                    alone = loop.time()
                self._have_keeper()
                if self._agents:
                    alone = loop.time()
                elif loop.time() - alone > ALONE:
                    return log.warning("no keeper for %.0f s, and no agent: the warm process ends", ALONE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(retry.failed()):
                        await self._ends.wait()
        finally:
            if self._zygote:
                await self._zygote.close()
            self._zygote = None
            self._end_orphans()
            shutil.rmtree(self._folder.agents, ignore_errors=True)

    def _have_keeper(self) -> None:
        """Start another keeper if there is none. A launcher could not: its environment is that of one run."""
        if self._keeper:
            self._keeper.poll()  # Reaps it.
        now = asyncio.get_running_loop().time()
        if self._ends.is_set() or now < self._keeper_due or self._folder.has_keeper() or not self._folder.exists():
            return
        self._keeper_due = now + self._keeper_retry.failed()
        try:
            self._keeper = self._folder.start(KEEPER)
        except OSError as error:
            log.warning("no keeper can be started: %s", printable(error))

    def _end_orphans(self) -> None:
        ours = [self._zygote.pid] if self._zygote else []
        end_orphans([*ours, self._keeper.pid] if self._keeper else ours)

    async def _with_keeper(self) -> bool:
        """Returns at the end of a connection whether there was one."""
        try:
            reader, writer = await connect(self._folder)
        except ClusterUnavailable:
            return False
        self._writer = writer
        self._say(HostHello(NAME, self._capacity, tuple(self._agents.values())))
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
                    self._ends.set()
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
            *(sys.executable, "-m", "elastic_runtime.agent", *launch.arguments, "--worker", order.worker),
            *("--notice-file", str(Path(launch.notices, f"{order.worker}.json")), "--tls", str(tls)),
        ]
        environment = {**launch.environment, **self._shares.environment(order.place)}
        with open(os.devnull, "rb") as no_link:
            self._zygote.start(key, command, environment, launch.directory, (1, 2, no_link.fileno()))

    def _lay_certificates(self, order: ForkAgent) -> Path:
        tls = self._folder.agents / order.uid
        if order.uid != tls.name or order.uid.startswith(".") or set(order.launch.certificates) != set(_FILES):
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
            self._ends.set()

    def _ended(self, key: str, code: int) -> None:
        busy = self._agents.pop(key)
        if all(each.uid != busy.uid for each in self._agents.values()):
            shutil.rmtree(self._folder.agents / busy.uid, ignore_errors=True)
        self._say(AgentEnded(busy.place, busy.uid, busy.worker, code))


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
    """Be the host. Raises ElasticError or OSError."""
    await Host(folder, folder.settings()).run()


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
