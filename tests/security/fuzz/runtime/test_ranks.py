"""What ranks say to the sessions of torch's engines: whatever it is, it is answered in bounds, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.base import SessionCallbacks
from elastic_runtime.engines.torch import messages
from elastic_runtime.engines.torch.messages import (
    AgreementWanted,
    Connected,
    Done,
    PeerLost,
    Prepared,
    ReadyForWorld,
    StoreAsk,
    Synced,
)
from elastic_runtime.engines.torch.session import TorchSession
from elastic_runtime.engines.torchrun.session import TorchrunSession
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.framing import MAX_LINE
from tests.security.fuzz.inputs import changed, thorough

pytestmark = [pytest.mark.filterwarnings("ignore:Generating overly large repr"), pytest.mark.timeout(600)]

RANKS = ("a", "b", "c")
WORDS = [
    messages.write_rank_word(word)
    for world in (1, 2)
    for word in (
        *(ReadyForWorld(), ReadyForWorld(part=True), Connected(world), Synced(world), Done(world), PeerLost(world)),
        *(AgreementWanted(world), Prepared(world, 1, 5), Prepared(world, 2, 2**62)),
        *(StoreAsk(world, 1, "set", ("k",), "MQ=="), StoreAsk(world, 2, "add", ("k",), amount=2**62)),
        *(StoreAsk(world, 3, "wait", ("k", "l")), StoreAsk(world, 4, "compare_set", ("k",), "MQ==", "Mg==")),
    )
]
said = st.lists(st.tuples(st.sampled_from(RANKS), st.sampled_from(WORDS) | changed(WORDS)), max_size=40)


class Runner:
    """Implements RankRunner; ranks run until the session is closed."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def interface(self, _rank_id: str) -> str:
        return "eth0"

    def host(self, _rank_id: str) -> str:
        return "here"

    async def run_rank(self, _rank_id: str, _attempt: int, _environment: Mapping[str, str]) -> int:
        await self.over.wait()
        return -15

    def tell(self, _rank_id: str, word: Mapping[str, Any]) -> None:
        assert len(json.dumps(word)) < MAX_LINE
        assert messages.read_session_word(word) is not None

    def stop_rank(self, _rank_id: str, *, stacks: bool = False) -> None: ...

    def stop_ranks(self, *, stacks: Collection[str] = ()) -> None:
        self.over.set()

    def kill_ranks(self, *, stacks: bool = False) -> None:
        self.over.set()

    interrupt_ranks = stop_ranks


async def play(kind: type[TorchSession | TorchrunSession], words: list[tuple[str, Any]]) -> None:
    callbacks = SessionCallbacks(lambda: None, lambda _: None, lambda *_: None, lambda _: None)
    session = kind(Runner(), callbacks)
    session.open(RANKS[:2], 1)
    await asyncio.sleep(0)
    for number, (rank_id, word) in enumerate(words):
        if number == len(words) // 2:
            session.list_ranks(RANKS[1:], 1)
            await asyncio.sleep(0)
        if isinstance(word, dict):  # An agent has seen to that.
            with contextlib.suppress(InvalidDocument):
                session.heard(rank_id, word)
    await session.close(0.0)


@thorough
@given(said)
def test_a_session_of_torch_answers_or_refuses(words: list[tuple[str, Any]]) -> None:
    asyncio.run(play(TorchSession, words))


@thorough
@given(said)
def test_a_session_of_torchrun_answers_or_refuses(words: list[tuple[str, Any]]) -> None:
    asyncio.run(play(TorchrunSession, words))
