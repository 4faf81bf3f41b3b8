"""Agents that have no core bring what their ranks said long after others brought theirs: the end is the same."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.engines.torch.messages import (
    Connected,
    EnterWorld,
    PeerLost,
    RankWord,
    ReadyForWorld,
    Synced,
    write_rank_word,
    write_session_word,
)
from elastic_runtime.engines.torchrun.session import FAILURE_WINDOW
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher import loop
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.net import certificates
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.rank_link import EngineWord, RankMessage, TrainingEnded, encode_rank_message
from elastic_runtime.protocol.wire import (
    Hello,
    LauncherMessage,
    LetEnd,
    Output,
    RankExited,
    RankSaid,
    RankStarted,
    Ready,
    StartRank,
    StopRank,
    TellRank,
)
from elastic_runtime.run.spec import RecoverySpec, RestartSpec, RunSpec, Timing, WorkersSpec
from elastic_runtime.run.status import EventKind, Status
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.launcher_bench import Place
from tests.unit.runtime.worlds_bench import interleaved

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
RUN = RunSpec(
    *("run", "uid", ("true",), WorkersSpec(2, 2, 2)),
    engine="torch",
    warm=False,
    timing=Timing(lease=0.0, agent_silence=1e9, gather=1.0, tick=60.0),
)


@dataclass(eq=False)
class Agent:
    """A connection's two ends: its one rank says what the test has it say, and ends when it is stopped."""

    site: Site
    hello: Hello
    heard: float = 0.0
    given_up: str = ""
    told: list[LauncherMessage] = field(default_factory=list)
    rank: str = ""
    slow: bool = False
    """Its rank has ended by itself, and it has not told."""

    def send(self, message: LauncherMessage) -> None:
        self.told.append(message)
        if isinstance(message, StartRank):
            self.rank = message.rank_id
            asyncio.get_running_loop().call_soon(self.site.said, self, RankStarted(self.rank, 8))
        elif isinstance(message, StopRank) and self.rank == message.rank_id and not self.slow:
            asyncio.get_running_loop().call_soon(self.ends, -9)

    def says(self, message: RankMessage) -> None:
        self.site.said(self, RankSaid(self.rank, decode_line(encode_rank_message(message))))

    def tells(self, *words: RankWord) -> None:
        """Its engine."""
        for word in words:
            self.says(EngineWord(write_rank_word(word)))

    def ends(self, code: int, **more: bool) -> None:
        if self.rank:
            rank, self.rank = self.rank, ""
            self.site.said(self, RankExited(rank, code, **more))

    def may_end(self) -> bool:
        return any(isinstance(each, LetEnd) for each in self.told)


DONE: Mapping[str, Callable[[Agent], None]] = {
    "connects": lambda agent: agent.tells(Connected(1)),
    "begins": lambda agent: agent.tells(Connected(0)),
    "syncs": lambda agent: agent.tells(Synced(1)),
    "comes back": lambda agent: agent.tells(PeerLost(1), ReadyForWorld()),
    "ended": lambda agent: agent.says(TrainingEnded(12, waits=False)),
    "exits": lambda agent: agent.ends(0),
    "fails": lambda agent: agent.ends(1),
    "starves": lambda agent: agent.ends(1, out_of_memory=True),
    "dies": lambda agent: agent.ends(-9, by_itself=True),
}


@dataclass
class Site:
    """In the place of the launcher's server: two workers."""

    place: Place = field(default_factory=lambda: Place(wanted_=2))
    agents: list[Agent] = field(default_factory=list)

    def listens(self, _spec: RunSpec, came: Any, said: Any, gone: Any, *_others: Any) -> Site:
        self.came, self.said, self.gone = came, said, gone
        return self

    async def start(self, *_where: Any) -> int:
        return 1

    async def close(self) -> None:
        while self.agents:
            self.gone(self.agents.pop())

    async def hears(self, order: list[tuple[int, str]]) -> None:
        """What these ranks do, one after the other."""
        for rank, done in order:
            DONE[done](self.agents[rank])
            await asyncio.sleep(0.1)

    async def starts(self) -> None:
        """Both ranks run."""
        for name in ("w0", "w1"):
            self.agents.append(agent := Agent(self, Hello(name, "n", 7, 1, "lo")))
            self.came(agent)
            self.said(agent, Ready(warm=False))
        await asyncio.sleep(2)

    async def comes(self) -> None:
        """Both ranks run, and enter the first world."""
        await self.starts()
        for agent in self.agents:
            agent.tells(ReadyForWorld())
        await asyncio.sleep(1)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


Play = Callable[[Callable[[Site, asyncio.Task[Status]], Awaitable[None]], RunSpec], None]


@pytest.fixture
def play(tls: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a scene with a launcher at work on a site."""

    def run(scene: Callable[[Site, asyncio.Task[Status]], Awaitable[None]], spec: RunSpec) -> None:
        async def main() -> None:
            site = Site()
            monkeypatch.setattr(loop, "AgentServer", site.listens)
            running = asyncio.create_task(Launcher(spec, site.place, OutputLog(io.StringIO()), tls, "127.0.0.1").run())
            await asyncio.sleep(1)
            try:
                await scene(site, running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        run_virtually(main())

    return run


@pytest.mark.parametrize("order", interleaved(("connects", "ended"), ("connects",)))
def test_no_rank_ends_while_another_trains(play: Play, order: list[tuple[int, str]]) -> None:
    async def scene(site: Site, _: asyncio.Task[Status]) -> None:
        await site.comes()
        for rank, said in order:
            if said == "ended":
                site.agents[rank].says(TrainingEnded(12))
            else:
                site.agents[rank].tells(Connected(1))
            await asyncio.sleep(0.1)
        site.agents[0].says(TrainingEnded(12))  # It has no answer yet.
        await asyncio.sleep(1)
        assert [each.may_end() for each in site.agents] == [False, False]
        site.agents[1].says(TrainingEnded(12))
        await asyncio.sleep(1)
        assert [each.may_end() for each in site.agents] == [True, True]

    play(scene, RUN)


def test_a_rank_that_waits_for_the_end_is_let_go_where_another_is_lost_before_it_is_heard(play: Play) -> None:
    async def scene(site: Site, _: asyncio.Task[Status]) -> None:
        await site.comes()
        site.agents[0].tells(Connected(1))
        site.agents[0].says(TrainingEnded(12))
        await asyncio.sleep(1)
        assert not site.agents[0].may_end()
        site.agents[1].ends(-9)
        await asyncio.sleep(1)
        assert site.agents[0].may_end()

    play(scene, RUN)


@pytest.mark.parametrize("order", interleaved(("connects", "comes back"), ("connects", "ended", "exits")))
def test_the_reason_of_an_early_end_has_its_step(play: Play, order: list[tuple[int, str]]) -> None:
    async def scene(site: Site, running: asyncio.Task[Status]) -> None:
        await site.comes()
        await site.hears(order)
        status = await running
        assert status.failure is FailureKind.EARLY_EXIT
        assert "a rank ended while others were still training: rank 1 ended its training at step 12;" in status.reason

    play(scene, RUN)


@pytest.mark.parametrize("order", interleaved(("begins", "fails"), ("begins", "starves")))
def test_a_rank_that_starves_early_has_its_run_begin_anew(play: Play, order: list[tuple[int, str]]) -> None:
    async def scene(site: Site, running: asyncio.Task[Status]) -> None:
        site.place.limits = {"w0": 2**30, "w1": 2**30}
        await site.starts()
        await site.hears(order)
        await asyncio.sleep(1)
        assert not running.done()
        status = await site.place.until(lambda status: bool(status.memory))
        assert EventKind.RESTARTED in {event.kind for event in status.events}

    grows = RecoverySpec(grow_memory=1.5, up_to=2**40, backoff=0.01)
    play(scene, replace(RUN, engine="torchrun", restart=RestartSpec(), recovery=grows))


@pytest.mark.parametrize("how", ["is killed", "is out of memory", "went with its machine"])
def test_a_lost_rank_has_its_run_begin_anew_though_it_is_heard_after_the_others_were_killed(
    play: Play, how: str
) -> None:
    async def scene(site: Site, running: asyncio.Task[Status]) -> None:
        await site.starts()
        for each in site.agents:
            each.tells(Connected(0))
        first, second = site.agents
        second.slow = True
        await asyncio.sleep(1)
        first.ends(1, by_itself=True)
        await asyncio.sleep(FAILURE_WINDOW + 1)
        assert any(isinstance(each, StopRank) for each in second.told)
        match how:
            case "is killed":
                second.ends(-9, by_itself=True)
            case "is out of memory":
                second.ends(-9, out_of_memory=True)
            case _:
                site.agents.remove(second)
                site.gone(second)
        await asyncio.sleep(1)
        assert not running.done()
        failed = 0 if how == "went with its machine" else 1
        assert (await site.place.until(lambda _: True)).rank_failures == failed, "and not the first one"

    play(scene, replace(RUN, engine="torchrun", restart=RestartSpec()))


@pytest.mark.parametrize("order", interleaved(("connects", "syncs", "dies"), ("connects", "syncs", "comes back")))
def test_who_has_the_state_keeps_it_in_whatever_order_that_is_heard(play: Play, order: list[tuple[int, str]]) -> None:
    async def scene(site: Site, running: asyncio.Task[Status]) -> None:
        await site.comes()
        await site.hears(order)
        enters = [write_session_word(EnterWorld(2, 0, 1))]
        assert [each.word for each in site.agents[1].told if isinstance(each, TellRank)][-1:] == enters
        assert not running.done()
        assert not [each for each in site.place.published[-1].events if each.kind is EventKind.RESTARTED]

    play(scene, replace(RUN, workers=WorkersSpec(1, 2, 2)))


PEER_GONE = "RuntimeError: [/gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:4711"


@pytest.mark.parametrize(("words", "fails"), [("ValueError: no such sample", True), (PEER_GONE, False)])
@pytest.mark.parametrize("order", interleaved(("begins", "fails"), ("begins", "aborts")))
def test_one_that_aborts_beside_one_that_fails_is_the_cause_only_if_the_other_says_so(
    play: Play, order: list[tuple[int, str]], words: str, *, fails: bool
) -> None:
    async def scene(site: Site, running: asyncio.Task[Status]) -> None:
        await site.starts()
        for rank, said in order:
            agent = site.agents[rank]
            match said:
                case "begins":
                    agent.tells(Connected(0))
                case "fails":
                    lines = (
                        "Traceback (most recent call last):",
                        '  File "/train.py", line 9, in main',
                        "    f()",
                        words,
                    )
                    site.said(agent, Output(agent.rank, "stderr", lines, NOON))
                    agent.ends(1, by_itself=True)
                case "aborts":
                    agent.ends(-6, by_itself=True)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert running.done() == fails
        if fails:
            status = await running
            assert status.failure is FailureKind.RANK_FAILED
            assert status.first_failure is not None
            assert (status.first_failure.worker, status.rank_failures) == ("w0", 1)

    play(scene, replace(RUN, engine="torchrun", restart=RestartSpec()))
