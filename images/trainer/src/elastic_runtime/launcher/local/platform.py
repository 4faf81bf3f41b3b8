"""Platform on this machine: the run's folder, and a worker set of child processes.

:class:`LocalWorkers` does here what a ReplicaSet does on Kubernetes. It keeps as many agents as wanted, replaces those
that end, and terminates, when fewer are wanted, those with a notice file first, then those outside the world, then
those of the highest ranks: the same that the launcher has leave. The agents are forked from one warm process, so that
another worker costs milliseconds and no second import of torch; they end with it, and it with the launcher, however
that ends (see :mod:`elastic_runtime.agent.zygote`). Each has a share of the machine's accelerators.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from typing_extensions import override

from elastic_runtime.agent.devices import WorkerShares, pools
from elastic_runtime.agent.zygote import ZygoteClient
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, RunNotFound
from elastic_runtime.launcher.decision.backoff import backoff_policy
from elastic_runtime.launcher.platform import LeaseAge, Platform
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry, RetryPolicy
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import NoticeService, RunSpec
from elastic_runtime.run.status import Status

SHORT_LIFE = 5.0
"""An agent that lived for less seconds and was not asked to end holds its replacement back."""
COMING = 60.0
"""Seconds that an agent has to connect to the launcher, before it is killed and replaced."""
CLOSE_TIMEOUT = 5.0
"""Seconds that agents have to end once the run is over, before they are killed."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(slots=True, eq=False)
class _Agent:
    name: str
    born: float
    index: int
    """The lowest that no other living agent has: which of the machine's devices are its own."""
    pid: int | None = None
    asked_to_end: bool = False
    came: bool = False
    """It has connected to the launcher."""


class LocalWorkers:
    """Keep as many agents running as requested."""

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        self._folder, self._spec = folder, spec
        self._address = ""
        self._zygote: ZygoteClient | None = None
        self._ready = self._missing = False
        self._agents: dict[str, _Agent] = {}
        self._ranks: Mapping[str, int] = {}
        self._count = 0
        self._hold_until = 0.0
        self._retry = Retry(backoff_policy(spec.recovery))
        self._nobody = asyncio.Event()
        self._warnings: list[str] = []
        workers = spec.workers
        self._shares = WorkerShares(pools({**os.environ, **spec.environment}), workers.maximum, workers.slots)

    def open(self, address: str) -> None:
        """Start the warm process.

        Args:
            address: ``HOST:PORT`` of the launcher, for the agents to dial.
        """
        adopt_orphans()
        self._address = address
        if self._spec.scripts or self._spec.observe.saves:
            self._folder.scratch.mkdir(mode=0o700, exist_ok=True)
        self._start_zygote()

    def has(self, worker: str) -> bool:
        """Whether there is an agent of that name."""
        return worker in self._agents

    def came(self, worker: str) -> None:
        """Its agent is connected, and from then on the launcher's to miss."""
        if agent := self._agents.get(worker):
            agent.came = True

    def warnings(self) -> tuple[str, ...]:
        """Return new warnings about workers that are not connected."""
        told, self._warnings = tuple(self._warnings), []
        return told

    def end(self, worker: str) -> None:
        """Kill an agent, with whatever it runs: the kernel ends its ranks with it, also those that are stopped."""
        if agent := self._agents.get(worker):
            self._signal(agent, signal.SIGKILL)

    def world(self, ranks: Mapping[str, int]) -> None:
        """Who trains.

        Args:
            ranks: the lowest rank of each worker that has one, by its name.
        """
        self._ranks = ranks

    def reconcile(self, wanted: int) -> None:
        """Have as many agents as wanted, as soon as can be. Raises OSError when the system has no room for another."""
        staying = [agent for agent in self._agents.values() if not agent.asked_to_end]
        if wanted < len(staying):
            # Two that went for one would cost a world more: of the launcher's choice, and of this one.
            staying.sort(key=lambda agent: (self._notice(agent.name).exists(), self._ranks.get(agent.name, math.inf)))
        for agent in staying[wanted:]:
            agent.asked_to_end = True
            self._signal(agent, signal.SIGTERM)
        for agent in self._agents.values():
            if not agent.came and time.monotonic() - agent.born > COMING:
                agent.came = True  # Said once.
                self._warnings.append(
                    f"{agent.name} has not connected within {COMING:.0f} s: it is killed, and replaced"
                )
                self._signal(agent, signal.SIGKILL)
        if time.monotonic() < self._hold_until:
            return
        if self._missing:
            self._start_zygote()
        for _ in range(wanted - len(staying) if self._ready else 0):
            self._start_agent()

    async def close(self) -> None:
        """No agent, and nothing that one has left behind, is there when this returns."""
        if self._zygote is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            for agent in self._agents.values():
                agent.asked_to_end = True
                self._signal(agent, number)
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    while self._agents:
                        self._nobody.clear()
                        await self._nobody.wait()
            except TimeoutError:
                log.warning("these agents did not end in time: %s", ", ".join(self._agents))
        zygote, self._zygote = self._zygote, None
        await zygote.close()
        end_orphans(keep=None)
        if self._spec.scripts:  # An agent that was killed leaves its folder.
            await asyncio.to_thread(shutil.rmtree, self._folder.scratch, ignore_errors=True)

    def _start_zygote(self) -> None:
        self._ready = False
        preload = ("elastic_runtime.agent.agent", *find_engine(self._spec.engine).preload) if self._spec.warm else None
        zygote = ZygoteClient(self._handle_zygote_message, self._zygote_ended)
        zygote.execute({**os.environ, **self._spec.environment}, preload)
        self._zygote, self._missing = zygote, False

    def _start_agent(self) -> None:
        assert self._zygote is not None  # or nothing would be ready
        name = f"worker-{self._count}"
        self._count += 1
        taken = {agent.index for agent in self._agents.values()}
        index = next(index for index in itertools.count() if index not in taken)
        if self._shares.are_shared(index):
            log.warning("%s shares its devices with another worker: there are not enough for all", name)
        with open(os.devnull, "rb") as no_link:
            self._agents[name] = _Agent(name, time.monotonic(), index)
            environment = self._shares.environment(index)
            self._zygote.start(name, self._command(name), environment, None, (1, 2, no_link.fileno()))

    def _command(self, name: str) -> list[str]:
        named = self._spec.recovery.notices
        scratch = ("--scratch", str(self._folder.scratch)) if self._folder.scratch.exists() else ()
        return [
            *(sys.executable, "-m", "elastic_runtime.agent", "--worker", name),
            *("--launcher", self._address, "--tls", str(self._folder.tls)),
            *("--slots", str(self._spec.workers.slots), "--grace", str(self._spec.timing.leave_grace)),
            *("--notice-file", str(self._notice(name)), "--interface", _loopback(), *scratch),
            # Nobody searches for a cloud's service from this machine, which may be anybody's desk.
            *("--metadata", NoticeService.NONE if named is NoticeService.AUTO else named),
        ]

    def _signal(self, agent: _Agent, number: int) -> None:
        if self._zygote is not None:
            self._zygote.signal(agent.name, number)

    def _notice(self, worker: str) -> Path:
        return self._folder.notices / f"{worker}.json"

    def _handle_zygote_message(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready = True
            if message["detail"]:
                log.warning("workers start cold: %s", printable(message["detail"]))
        elif "started" in message:
            self._agents[message["started"]].pid = message["pid"]
        else:
            self._ended(self._agents.pop(message["exited"]), message["code"])

    def _zygote_ended(self) -> None:
        """It was killed, and the kernel has killed its agents: begin again. One that never was ready has time."""
        log.warning("the process that workers are forked from has ended; another will start")
        zygote, agents = self._zygote, list(self._agents.values())
        if zygote is not None:
            os.waitpid(zygote.pid, 0)  # Its socket closes first; only now are its orphans ours to end.
            zygote.pid = 0
        self._agents.clear()
        for agent in agents:
            self._ended(agent, -signal.SIGKILL)
        if zygote is None:
            return
        self._missing = True
        if not self._ready:
            self._hold_back()
            return
        self._ready = False
        with contextlib.suppress(OSError):  # The next reconcile tries again.
            self._start_zygote()

    def _ended(self, agent: _Agent, code: int) -> None:
        with contextlib.suppress(OSError):  # A notice that stays harms nobody: no other worker gets the name.
            self._notice(agent.name).unlink(missing_ok=True)
        end_orphans(keep=self._zygote.pid if self._zygote else None)
        if not self._agents:
            self._nobody.set()
        if agent.asked_to_end or code == 0 or time.monotonic() - agent.born >= SHORT_LIFE:
            self._retry.succeeded()
            return
        self._hold_back()
        log.info("the agent of %s ended with %d after less than %.0f s", agent.name, code, SHORT_LIFE)

    def _hold_back(self) -> None:
        self._hold_until = time.monotonic() + self._retry.failed()


def _loopback() -> str:
    return "lo" if sys.platform == "linux" else "lo0"


def adopt_orphans() -> None:
    """Become the parent of whatever our descendants leave behind, so that it can be ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(keep: int | None) -> None:
    """Kill and reap every child but ``keep``: what a killed agent's ranks have left behind."""
    for child in psutil.Process().children():
        if child.pid == keep:
            continue
        try:
            for process in (*child.children(recursive=True), child):
                process.kill()
            os.waitpid(child.pid, 0)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue


log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
FINAL_STATUS_TIMEOUT = 60.0
"""Seconds for which a final status that cannot be written is tried again; a full disk may be cleared."""
_UNTIL_WRITTEN = RetryPolicy(0.2, 5.0)
WATCH_INTERVAL = 0.02
"""Seconds between two looks at the folder. One stat each: cheaper than a dependency on inotify, and portable."""


class LocalPlatform(Platform):
    """Platform of a run's folder. Its lock allows one launcher at a time."""

    def __init__(self, folder: RunDir, spec: RunSpec) -> None:
        self._folder, self._spec = folder, spec
        self._wanted = spec.workers.start
        self._asked: int | str = spec.workers.start
        self._cancel: str | None = None
        self._stacks: str | None = None
        self._requests: str | None = None
        self._lease = LeaseAge(time.monotonic)
        self._workers = LocalWorkers(folder, spec)
        self._watching: asyncio.Task[None] | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._unwritten: Status | None = None
        self._limited_log = RateLimitedLog(log)

    @override
    def open(self, port: int, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        with contextlib.suppress(OSError):  # Before the first worker: the run may be paused.
            self._read()
        self._workers.open(f"{ADDRESS}:{port}")
        self._watching = asyncio.create_task(self._watch())

    @override
    def asked(self) -> int | str | None:
        return self._asked

    @override
    def ask(self, workers: int) -> None:
        """Write the size at once."""
        self._asked = self._wanted = workers
        try:
            self._folder.write_size(workers)
        except OSError as error:
            log.warning("the size cannot be written: %s", error)

    @override
    def requests(self) -> str | None:
        return self._requests

    @override
    def cancel(self) -> str | None:
        return self._cancel

    @override
    def stacks_asked(self) -> str | None:
        return self._stacks

    @override
    def lease_age(self) -> float | None:
        try:
            self._lease.see(self._folder.lease.stat().st_mtime_ns)
        except FileNotFoundError:
            self._lease.see(None)
        except OSError as error:
            self._limited_log.warning("the lease cannot be seen: %s", printable(error))
        return self._lease()

    @override
    def watched(self) -> bool:
        try:
            return self._folder.watched.exists()
        except OSError:
            return True  # Nobody's run ends because a folder cannot be read for a moment.

    @override
    def publish(self, status: Status) -> None:
        """Write the status. If that fails, the next status replaces it."""
        self._workers.world({worker.name: min(worker.ranks) for worker in status.workers if worker.ranks})
        self._unwritten = status
        try:
            self._folder.write_status(status)
        except FileNotFoundError:
            self._deleted()
        except OSError as error:
            self._limited_log.warning("the status cannot be written, training goes on: %s", printable(error))
            return
        self._unwritten = None

    @override
    async def flush(self) -> None:
        """Wait until a final status is written, up to a limit. Other statuses are replaced by the next one."""
        retry, now = Retry(_UNTIL_WRITTEN), asyncio.get_running_loop().time
        end = now() + FINAL_STATUS_TIMEOUT
        while self._unwritten is not None and self._unwritten.phase.final:
            if now() >= end:
                log.error("the final status could not be written in %.0f s", FINAL_STATUS_TIMEOUT)
                return
            await retry.pause()
            self.publish(self._unwritten)

    @override
    def expects(self, worker: str, /) -> bool:
        return self._workers.has(worker)

    @override
    def end(self, worker: str, /) -> str:
        self._workers.end(worker)
        return "its processes are killed, and another worker starts"

    @override
    def came(self, worker: str, /) -> None:
        self._workers.came(worker)

    @override
    def warnings(self) -> tuple[str, ...]:
        return self._workers.warnings()

    def ask_to_end(self, reason: str) -> None:
        """Ask the run to end, as a file ``cancel`` does. Works on a full disk, too."""
        self._cancel = self._cancel or reason
        with contextlib.suppress(OSError):
            self._folder.ask_to_end(reason)
        self._on_change()

    @override
    async def end_workers(self) -> None:
        await self.close()

    @override
    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        await self._workers.close()

    async def _watch(self) -> None:
        seen, pause = 0, Retry(_UNTIL_WRITTEN)
        while True:
            try:
                changed = self._folder.path.stat().st_mtime_ns
                if changed != seen:
                    self._read()
                    seen = changed
                self._workers.reconcile(self._wanted)
                pause.succeeded()
            except FileNotFoundError:
                return self._deleted()
            except (OSError, ClusterUnavailable) as error:
                self._limited_log.warning("sizes and workers are not looked after for a moment: %s", printable(error))
                await pause.pause()
            except Exception as error:  # noqa: BLE001  # or nobody could change or end the run any more
                kind = type(error).__name__
                self._limited_log.warning(
                    "the run's folder cannot be handled, trying again: %s: %s", kind, printable(error)
                )
                await pause.pause()
            await asyncio.sleep(WATCH_INTERVAL)

    def _read(self) -> None:
        before = self._asked, self._cancel, self._stacks, self._requests
        # The end first: a size that cannot be read keeps nobody from ending the run.
        for read in (self._read_cancel, self._read_requests, self._read_size, self._read_stacks):
            try:
                read()
            except (RunNotFound, InvalidDocument) as error:
                log.warning("%s", printable(error))
        if before != (self._asked, self._cancel, self._stacks, self._requests):
            self._on_change()

    def _read_cancel(self) -> None:
        self._cancel = self._folder.asked_to_end() or self._cancel

    def _read_size(self) -> None:
        workers = self._spec.workers
        self._asked = self._folder.asked_size()
        if isinstance(self._asked, int) and self._asked:  # No worker at all: the launcher alone says that.
            self._wanted = min(max(self._asked, workers.minimum), workers.maximum)

    def _read_requests(self) -> None:
        self._requests = self._folder.requests()

    def _read_stacks(self) -> None:
        self._stacks = self._folder.stacks_asked()

    def _deleted(self) -> None:
        """Somebody has removed the run from under us: nobody can want it any more."""
        self._cancel = "its folder has been deleted"
        self._on_change()
