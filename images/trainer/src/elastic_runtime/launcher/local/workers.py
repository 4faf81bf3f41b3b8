"""Worker set of this machine: child processes.

:class:`LocalWorkers` does here what a ReplicaSet does on Kubernetes. It keeps as many agents as wanted, replaces those
that end, and terminates, when fewer are wanted, those with a notice file first, then those outside the world, then
those of the highest ranks: the same that the launcher has leave. The agents are forked from one warm process, so that
another worker costs milliseconds and no second import of torch; they end with it, and it with the launcher, however
that ends (see :mod:`elastic_runtime.agent.zygote`). Each has a share of the machine's accelerators.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from elastic_runtime.agent.devices import WorkerShares, pools
from elastic_runtime.agent.orphans import adopt_orphans, end_orphans
from elastic_runtime.agent.zygote import ZygoteClient
from elastic_runtime.engines.registry import find_engine
from elastic_runtime.launcher.decision.backoff import backoff_policy
from elastic_runtime.launcher.folder.platform import FolderWorkers
from elastic_runtime.printable import printable
from elastic_runtime.retry import Retry
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import NoticeService, RunSpec

log = logging.getLogger(__name__)

SHORT_LIFE = 5.0
"""An agent that lived for less seconds and was not asked to end holds its replacement back."""
COMING = 60.0
"""Seconds that an agent has to connect to the launcher, before it is killed and replaced."""
CLOSE_TIMEOUT = 5.0
"""Seconds that agents have to end once the run is over, before they are killed."""


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


class LocalWorkers(FolderWorkers):
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

    @override
    def open(self, address: str) -> None:
        """Start the warm process."""
        adopt_orphans()
        self._address = address
        make_scratch(self._folder, self._spec)
        self._start_zygote()

    @override
    def expects(self, worker: str, /) -> bool:
        return worker in self._agents

    @override
    def came(self, worker: str, /) -> None:
        if agent := self._agents.get(worker):
            agent.came = True

    @override
    def warnings(self) -> tuple[str, ...]:
        told, self._warnings = tuple(self._warnings), []
        return told

    @override
    def end(self, worker: str, /) -> str:
        """Kill an agent, with whatever it runs: the kernel ends its ranks with it, also those that are stopped."""
        if (agent := self._agents.get(worker)) is None:
            return "what is left of it on its machine stays"
        self._signal(agent, signal.SIGKILL)
        return "its processes are killed, and another worker starts"

    @override
    def world(self, ranks: Mapping[str, int]) -> None:
        self._ranks = ranks

    @override
    def reconcile(self, wanted: int) -> None:
        staying = [agent for agent in self._agents.values() if not agent.asked_to_end]
        if wanted < len(staying):
            # Two that went for one would cost a world more: of the launcher's choice, and of this one.
            staying.sort(
                key=lambda agent: (self._folder.notice(agent.name).exists(), self._ranks.get(agent.name, math.inf))
            )
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

    @override
    async def end_workers(self) -> None:
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
        end_orphans()
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
        return [
            *(sys.executable, "-m", "elastic_runtime.agent"),
            *agent_arguments(self._folder, self._spec, self._address),
            *("--worker", name, "--notice-file", str(self._folder.notice(name)), "--tls", str(self._folder.tls)),
        ]

    def _signal(self, agent: _Agent, number: int) -> None:
        if self._zygote is not None:
            self._zygote.signal(agent.name, number)

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
            self._folder.notice(agent.name).unlink(missing_ok=True)
        end_orphans([self._zygote.pid] if self._zygote else [])
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


def make_scratch(folder: RunDir, spec: RunSpec) -> None:
    """Make the folder of the workers' folders, if the run needs one."""
    if spec.scripts or spec.observe.saves:
        folder.scratch.mkdir(mode=0o700, exist_ok=True)


def agent_arguments(folder: RunDir, spec: RunSpec, address: str) -> list[str]:
    """Return the arguments that all agents of a run have on this machine.

    Args:
        folder: of the run.
        spec: of the run.
        address: ``HOST:PORT`` of the launcher.
    """
    named = spec.recovery.notices
    scratch = ("--scratch", str(folder.scratch)) if folder.scratch.exists() else ()
    where = ("--address", spec.join_address) if spec.join_address else ("--interface", _loopback())
    return [
        *("--launcher", address, *where, *scratch),
        *("--slots", str(spec.workers.slots), "--grace", str(spec.timing.leave_grace)),
        # Nobody searches for a cloud's service from this machine, which may be anybody's desk.
        *("--metadata", NoticeService.NONE if named is NoticeService.AUTO else named),
    ]
