"""One life of the ElasticDriver, with ranks that the test plays: they join, reset and end over the real rendezvous."""

from __future__ import annotations

import asyncio
import http.client
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from elastic_runtime.engines.base import SessionCallbacks, SessionFact, SessionState
from elastic_runtime.engines.horovod.rendezvous_server import authorization
from elastic_runtime.engines.horovod.session import HorovodSession

SOON = 10.0


@dataclass(eq=False)
class Start:
    """One rank process that the session asked for."""

    rank_id: str
    attempt: int
    environment: Mapping[str, str]
    end: asyncio.Future[int]

    @property
    def number(self) -> str:
        return self.environment["HOROVOD_RANK"]


@dataclass(eq=False)
class Scene:
    """A session and its platform: implements RankRunner."""

    starts: list[Start] = field(default_factory=list)
    without_worker: set[str] = field(default_factory=set)
    worlds: list[list[str]] = field(default_factory=list)
    exits: list[tuple[str, int, bool]] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    dumped: list[str] = field(default_factory=list)
    """Rank ids that were asked, as they were stopped with all others, where they stand."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    session: HorovodSession = field(init=False)

    def __post_init__(self) -> None:
        callbacks = SessionCallbacks(
            self.changed.set, self.worlds.append, lambda *exit: self.exits.append(exit), self._rank_over
        )
        self.session = HorovodSession(self, "127.0.0.1", 0, callbacks)

    def _rank_over(self, rank_id: str) -> None:
        self.over.append(rank_id)
        self.changed.set()

    # RankRunner

    def interface(self, rank_id: str) -> str | None:
        return None if rank_id in self.without_worker else "lo"

    def host(self, rank_id: str) -> str:
        return rank_id

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str]) -> int:
        start = Start(rank_id, attempt, environment, asyncio.get_running_loop().create_future())
        self.starts.append(start)
        self.changed.set()
        return await start.end

    def stop_rank(self, rank_id: str, *, stacks: bool = False) -> None:
        for start in self.starts:
            if start.rank_id == rank_id and not start.end.done():
                start.end.set_result(-signal.SIGTERM)

    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        self.dumped += stacks
        for start in self.starts:
            if not start.end.done():
                start.end.set_result(-signal.SIGTERM)

    def interrupt_ranks(self) -> None:
        raise AssertionError("ranks of this engine go from world to world")

    def kill_ranks(self, *, stacks: bool = False) -> None:
        raise AssertionError("ranks of this engine go from world to world")

    # What the test does

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_state(self, state: SessionState) -> SessionFact:
        await self.until(lambda: self.session.fact.state is state)
        return self.session.fact

    async def started(self, count: int) -> list[Start]:
        """The first so many, in order of rank and attempt."""
        await self.until(lambda: len(self.starts) >= count)
        return sorted(self.starts, key=lambda start: (start.number, start.attempt))

    async def running(self, rank_id: str) -> Start:
        """The process that runs under that name now."""

        def found() -> list[Start]:
            return [start for start in self.starts if start.rank_id == rank_id and not start.end.done()]

        await self.until(lambda: bool(found()))
        return found()[0]

    async def _request(self, host: str, method: str, path: str) -> tuple[int, bytes]:
        """Of the rendezvous server, as that rank."""
        headers = authorization(self.session._rendezvous.tokens.of(host))

        def request() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.session._port, timeout=SOON)
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

        return await asyncio.to_thread(request)

    async def ask(self, host: str, method: str, path: str) -> bytes:
        return (await self._request(host, method, path))[1]

    async def status(self, host: str, method: str, path: str) -> int:
        return (await self._request(host, method, path))[0]

    async def join(self, *ranks: int) -> None:
        """These ranks of the present world have finished hvd.init()."""
        for rank in ranks:
            await self.until(lambda: rank < len(self.session._members))  # noqa: B023 - awaited at once
            await self.ask(self.session._members[rank], "DELETE", f"/cross_0_process_set_hash_1/{rank}")

    async def train(self, *rank_ids: str, minimum: int = 1, elastic: bool = True) -> None:
        """Open it, until all train; ``elastic``: in ``hvd.elastic.run``, which asks for changes of hosts."""
        self.session.open(rank_ids, minimum)
        await self.started(len(rank_ids))
        await self.join(*range(len(rank_ids)))
        await self.until_state(SessionState.SETTLED)
        if elastic:
            self.session._elastic.update(rank_ids)

    def call(self, *rank_ids: str) -> list[asyncio.Task[bytes]]:
        """These come to the roll call."""
        return [asyncio.create_task(self.ask(rank_id, "GET", f"/roll_call/{rank_id}:0")) for rank_id in rank_ids]

    async def until_called(self, *rank_ids: str) -> None:
        """They have come, and nobody else."""
        roll_call = self.session._driver.roll_call
        async with asyncio.timeout(SOON):
            while set(self.session._members) - roll_call._absent != set(rank_ids):  # noqa: ASYNC110 - of threads
                await asyncio.sleep(0.005)

    def reset(self, *rank_ids: str) -> list[asyncio.Task[bytes]]:
        """These come to the barrier."""
        return [asyncio.create_task(self.ask(rank_id, "GET", f"/next_assignment/{rank_id}:0")) for rank_id in rank_ids]


def play(act: Callable[[Scene], Awaitable[None]]) -> Scene:
    """One scene; nothing of it is left afterwards."""

    async def run() -> Scene:
        scene = Scene()
        try:
            await act(scene)
        finally:
            await scene.session.close(grace=1.0)
        assert scene.session._running == 0
        return scene

    return asyncio.run(run())
