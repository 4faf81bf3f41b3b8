"""A launcher's loop with a place that notes what is asked of it, and workers without agents."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from elastic_runtime.errors import OwnershipLost
from elastic_runtime.launcher.decision.facts import LeadershipState, Refusal
from elastic_runtime.launcher.joining import Joining
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.platform import Machine, Share, WorkerSet
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.net.certificates import agent_context
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.rank_link import CommitDeadline, Handover
from elastic_runtime.protocol.rank_names import WorkerName
from elastic_runtime.protocol.wire import Heartbeat, Hello, Welcome, decode, encode
from elastic_runtime.run.spec import RunSpec, Timing
from elastic_runtime.run.status import Status
from tests.unit.runtime.agent_bench import SOON, handshakes

RUN = RunSpec("run", "uid", ("true",), warm=False, timing=Timing(tick=0.02, lease=60.0))


@dataclass
class Place:
    """Platform that note what is asked of them, and answer as told."""

    tenure_: LeadershipState = LeadershipState.HELD
    wanted_: int = 1
    given: int | None = None
    requests_: str | None = None
    cancelled: str | None = None
    lost: bool = False
    known: set[str] | None = None
    prove_: Callable[[Hello], Awaitable[str | None]] | None = None
    deadlines: dict[str, datetime] = field(default_factory=dict)
    warned: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    gave: list[tuple[str, int]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    strays: dict[str, str] = field(default_factory=dict)
    did: list[str] = field(default_factory=list)
    published: list[Status] = field(default_factory=list)
    joining: Joining | None = None
    port: int = 0
    on_change: Callable[[], None] = lambda: None
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    workers: WorkerSet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.workers = self

    def open(self, port: int, on_change: Callable[[], None]) -> None:
        self.port, self.on_change = port, on_change

    def asked(self) -> int | str | None:
        return self.wanted_

    def ask(self, workers: int) -> None:
        self.wanted_ = workers

    def requests(self) -> str | None:
        return self.requests_

    def cancel(self) -> str | None:
        return self.cancelled

    def stacks_asked(self) -> str | None:
        return None

    def lease_age(self) -> float | None:
        return None

    def watched(self) -> bool:
        return True

    def leadership(self) -> LeadershipState:
        return self.tenure_

    def share(self, wanted: int, /) -> Share:
        return Share(wanted if self.given is None else self.given, "" if self.given is None else "as the pool gives")

    def only(self, workers: int, /) -> None:
        self.did.append(f"only {workers}")

    def expects(self, worker: str, /) -> bool:
        return self.known is None or worker in self.known

    async def prove(self, hello: Hello, /) -> str | None:
        return await self.prove_(hello) if self.prove_ else None

    def admit(self, _hello: Hello, /) -> None:
        pass

    def stray(self, worker: str, /) -> str | None:
        return self.strays.get(worker)

    def refusal(self) -> Refusal | None:
        return None

    def deadline(self, worker: str, /) -> datetime | None:
        return self.deadlines.get(worker)

    def machine(self, worker: str, /) -> Machine | None:
        return Machine("spot", "large")

    def replace(self, worker: str, /) -> None:
        self.did.append(f"replace {worker}")

    def end(self, worker: str, /) -> str:
        self.did.append(f"end {worker}")
        return "it is ended"

    def memory_limit(self, worker: str, /) -> int | None:
        return self.limits.get(WorkerName.parse(worker).pod)

    def out_of_memory(self) -> tuple[str, ...]:
        killed, self.killed = tuple(self.killed), []
        return killed

    def can_give_memory(self) -> bool:
        return True

    def give_memory(self, worker: str, limit: int, /) -> None:
        self.gave.append((worker, limit))

    def came(self, worker: str, /) -> None:
        pass

    def gone(self, worker: str, /) -> None:
        pass

    def warnings(self) -> tuple[str, ...]:
        told, self.warned = tuple(self.warned), []
        return told

    def publish(self, status: Status) -> None:
        self.published.append(status)
        self.did.append("final" if status.phase.final else "status")
        self.heard.set()

    async def end_workers(self) -> None:
        self.did.append("end workers")

    async def flush(self) -> None:
        self.did.append("flush")
        if self.lost:
            raise OwnershipLost("another launcher has taken over")

    async def close(self) -> None:
        self.did.append("close")

    async def until(self, wanted: Callable[[Status], bool]) -> Status:
        async with asyncio.timeout(SOON):
            while not (self.published and wanted(self.published[-1])):
                self.heard.clear()
                await self.heard.wait()
        return self.published[-1]

    def last(self, count: int) -> list[str]:
        return self.did[-count:]


class Worker:
    """An agent's end of a connection, without an agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, tls: Path, port: int, name: str = "w", token: str = "") -> Worker:
        context = agent_context(tls)
        made = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="launcher"))
        for message in (Hello(name, "n1", 7, 1, "lo", token=token), Heartbeat(1.0, 1)):
            made.writer.write(encode(message))
        return made

    async def hear(self) -> object:
        line = await self.reader.readline()
        return decode(decode_line(line)) if line else None

    async def hear_last_commit(self) -> CommitDeadline:
        async with asyncio.timeout(SOON):
            while not isinstance(message := await self.hear(), CommitDeadline):
                assert message is not None
        return message

    async def hear_handover(self) -> Handover:
        async with asyncio.timeout(SOON):
            while not isinstance(message := await self.hear(), Handover):
                assert message is not None
        return message


def launched(
    tls: Path,
    test: Callable[[Place, Worker, asyncio.Task[Status]], object],
    previous: Status | None = None,
    spec: RunSpec = RUN,
    *,
    own_image: bool = False,
    joining: Joining | None = None,
) -> Place:
    """Run the test with a launcher whose one worker has come; both are gone afterwards."""

    async def main() -> Place:
        place = Place(joining=joining)
        launcher = Launcher(
            spec, place, OutputLog(io.StringIO()), tls, "127.0.0.1", previous=previous, own_image=own_image
        )
        running = asyncio.create_task(launcher.run())
        await place.until(lambda _: True)
        worker = await Worker.dial(tls, place.port)
        assert isinstance(await worker.hear(), Welcome)
        await place.until(lambda status: any(each.node == "n1" for each in status.workers))
        try:
            await test(place, worker, running)  # type: ignore[misc]  # tests are coroutines
        finally:
            worker.writer.transport.abort()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await handshakes()
        return place

    return asyncio.run(main())
