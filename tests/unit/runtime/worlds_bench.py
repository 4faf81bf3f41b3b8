"""A session that forms worlds, and ranks that say and hear what a test has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from elastic_runtime.engines.base import SessionCallbacks
from elastic_runtime.engines.torch import messages
from elastic_runtime.engines.torch.messages import Connected, EnterWorld, ReadyForWorld, Synced
from elastic_runtime.engines.torch.session import TorchSession


@dataclass
class Workers:
    """Implements RankRunner: ranks that run until they are told to end, or :meth:`end`."""

    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    told: dict[str, list[messages.SessionWord]] = field(default_factory=dict)
    ends: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    dumped: list[str] = field(default_factory=list)
    attempts: list[tuple[str, int]] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def interface(self, rank_id: str) -> str | None:
        return None if rank_id in self.gone else f"eth-{rank_id}"

    def host(self, rank_id: str) -> str:
        return rank_id

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str]) -> int:
        self.environments[rank_id] = dict(environment)
        self.attempts.append((rank_id, attempt))
        self.ends[rank_id] = asyncio.get_running_loop().create_future()
        return await self.ends[rank_id]

    def tell(self, rank_id: str, word: Mapping[str, Any]) -> None:
        read = messages.read_session_word(word)
        assert read is not None
        self.told.setdefault(rank_id, []).append(read)

    def stop_rank(self, rank_id: str, *, stacks: bool = False) -> None:
        assert stacks, "others have waited for it"
        self.stopped.append(rank_id)

    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        self.dumped += stacks
        for end in self.ends.values():
            if not end.done():
                end.set_result(-15)

    def interrupt_ranks(self) -> None:
        raise AssertionError("ranks of this engine go from world to world")

    def kill_ranks(self, *, stacks: bool = False) -> None:
        raise AssertionError("ranks of this engine go from world to world")


class Bench:
    """A session of a kind, and all that it did."""

    def __init__(self, kind: type[TorchSession] = TorchSession) -> None:
        self.workers, self.worlds, self.exits, self.over = Workers(), [], [], []
        self.session = kind(
            self.workers,
            SessionCallbacks(
                lambda: None, self.worlds.append, lambda *exit_: self.exits.append(exit_), self.over.append
            ),
        )

    def say(self, rank_id: str, *words: messages.RankWord) -> None:
        for word in words:
            self.session.heard(rank_id, messages.write_rank_word(word))

    def heard(self, rank_id: str) -> list[messages.SessionWord]:
        """Since it was asked last."""
        return self.workers.told.pop(rank_id, [])

    async def end(self, rank_id: str, code: int) -> None:
        self.workers.ends[rank_id].set_result(code)
        await turns()
        assert rank_id in self.over

    async def form(self, world: int, *members: str, alike: int = 0) -> None:
        """They are all ready, and become this world, whose state they have."""
        await turns()
        for rank_id in members:
            self.say(rank_id, ReadyForWorld())
        for rank, rank_id in enumerate(members):
            assert self.heard(rank_id)[-1] == EnterWorld(world, rank, len(members), alike)
            self.say(rank_id, Connected(world), Synced(world))


def interleaved(*words: Sequence[str | int]) -> list[list[tuple[int, str | int]]]:
    """All orders in which these of several ranks may be heard, each with its rank's number; a rank's own keep order."""
    turns_of = [rank for rank, said in enumerate(words) for _ in said]
    orders = []
    for order in sorted(set(permutations(turns_of))):
        said = [iter(each) for each in words]
        orders.append([(rank, next(said[rank])) for rank in order])
    return orders


async def turns() -> None:
    """Whatever can happen, does."""
    for _ in range(10):
        await asyncio.sleep(0)


def scene(test: Callable[[Bench], Awaitable[None]], kind: type[TorchSession] = TorchSession) -> Callable[[], None]:
    async def play() -> None:
        bench = Bench(kind)
        try:
            await test(bench)
        finally:
            await bench.session.close(0.0)

    return lambda: asyncio.run(play())
