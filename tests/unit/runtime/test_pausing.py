"""A launcher's run that is paused, launched anew, and resumed: its whole history, on virtual time."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.engines.torch import messages
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher import loop
from elastic_runtime.launcher.loop import Launcher
from elastic_runtime.launcher.record.output import OutputLog
from elastic_runtime.net import certificates
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.rank_link import (
    CheckpointWritten,
    CommitDeadline,
    EngineWord,
    Progress,
    RankMessage,
    Resumed,
    TrainingStopped,
    encode_rank_message,
)
from elastic_runtime.protocol.wire import (
    Hello,
    LauncherMessage,
    RankExited,
    RankSaid,
    RankStarted,
    Ready,
    Release,
    StartRank,
    StopRank,
    TellRank,
)
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec, RunSpec, Timing, WorkersSpec
from elastic_runtime.run.status import EventKind, Phase, Status
from tests.unit.provider.virtual_time import run_virtually
from tests.unit.runtime.launcher_bench import Place

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
STORE = "file:///store/run"
RUN = RunSpec(
    *("run", "uid", ("true",), WorkersSpec(2, 2, 3)),
    recovery=RecoverySpec(max_wait=600.0, max_pause=3600.0 * 48),
    checkpoint=CheckpointSpec(STORE),
    engine="torch",
    warm=False,
    timing=Timing(lease=0.0, agent_silence=1e9, gather=1.0, tick=60.0),
)
PAUSE = {"name": "p", "workers": 2, "by": "ada", "pause": True}
RESUME = {"name": "r", "workers": 2, "by": "ada", "resume": True}


def now() -> datetime:
    return NOON + timedelta(seconds=asyncio.get_running_loop().time())


@dataclass(eq=False)
class ScriptedAgent:
    """A connection's two ends: it starts ranks, which are in every world at once, and stop where they are told to."""

    hello: Hello
    site: Site
    heard: float = 0.0
    given_up: str = ""
    told: list[LauncherMessage] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    rank: int = -1

    def send(self, message: LauncherMessage) -> None:
        """In order, and after the launcher's own turn, as over a network."""
        self.told.append(message)
        asyncio.get_running_loop().call_soon(self._obey, message)

    def says(self, message: RankMessage) -> None:
        self._tell(RankSaid(self.ranks[0], decode_line(encode_rank_message(message))))

    def _obey(self, message: LauncherMessage) -> None:
        match message:
            case StartRank(rank_id):
                self.ranks.append(rank_id)
                self._tell(RankStarted(rank_id, 8))
                self._word(messages.ReadyForWorld())
            case TellRank(_, word):
                if isinstance(said := messages.read_session_word(word), messages.EnterWorld):
                    self.rank = said.rank
                    self._word(messages.Connected(said.world))
                    self._word(messages.Synced(said.world))
            case CommitDeadline(stops=True):
                self.site.stops.set()
            case StopRank(rank_id):
                self.ranks.remove(rank_id)
                self._tell(RankExited(rank_id, -15))
            case Release():
                self.site.leaves(self)

    def _word(self, word: Any) -> None:
        self.says(EngineWord(messages.write_rank_word(word)))

    def _tell(self, message: Any) -> None:
        self.site.said(self, message)


@dataclass
class Site:
    """Where the workers are: as many as the place is asked for, but only when the test says so."""

    place: Place = field(default_factory=Place)
    agents: list[ScriptedAgent] = field(default_factory=list)
    count: int = 0
    stops: asyncio.Event = field(default_factory=asyncio.Event)
    """Ranks were told to stop at their next commit."""

    def listens(self, _spec: RunSpec, came: Any, said: Any, gone: Any, *_others: Any) -> Site:
        """In the place of the launcher's server."""
        self.came, self.said, self.gone = came, said, gone
        return self

    async def start(self, *_where: Any) -> int:
        return 1

    async def close(self) -> None:
        self.agents.clear()

    def fill(self) -> None:
        while len(self.agents) < self.place.wanted_:
            agent = ScriptedAgent(Hello(f"w{self.count}", "n", 7, 1, "lo"), self)
            self.count += 1
            self.agents.append(agent)
            self.came(agent)
            self.said(agent, Ready(warm=False))

    def leaves(self, agent: ScriptedAgent) -> None:
        if agent in self.agents:
            self.agents.remove(agent)
            self.gone(agent)

    @property
    def first(self) -> ScriptedAgent:
        """Of rank 0."""
        return next(each for each in self.agents if each.rank == 0)

    def asks(self, *requests: dict[str, Any]) -> None:
        self.place.requests_ = json.dumps(requests)
        self.place.on_change()

    async def until(self, wanted: Callable[[Status], bool]) -> Status:
        async with asyncio.timeout(3600.0):
            while not (self.place.published and wanted(self.place.published[-1])):
                self.place.heard.clear()
                await self.place.heard.wait()
        return self.place.published[-1]

    async def trains(self, ranks: int = 2) -> Status:
        await self.until(lambda _: True)
        self.fill()
        return await self.until(lambda status: status.world_size == ranks)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "utc_now", now)


@pytest.fixture
def launched(tls: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A launcher at work on a site, to be killed at the end of the block without a word."""

    @asynccontextmanager
    async def launch(site: Site, spec: RunSpec = RUN) -> AsyncIterator[asyncio.Task[Status]]:
        monkeypatch.setattr(loop, "AgentServer", site.listens)
        previous = site.place.published[-1] if site.place.published else None
        launcher = Launcher(spec, site.place, OutputLog(io.StringIO()), tls, "127.0.0.1", previous=previous)
        running = asyncio.create_task(launcher.run())
        yield running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    return launch


def kinds(status: Status) -> list[EventKind]:
    return [event.kind for event in status.events if event.kind is not EventKind.LEFT]


def written(step: int) -> CheckpointWritten:
    return CheckpointWritten(f"{STORE}/ckpt-{step}", step, now(), True, 1.0)


async def pause_at_step_11(site: Site) -> Status:
    """The world trains, and stops for a store that is slow."""
    await site.trains()
    site.first.says(Progress(10))
    site.asks(PAUSE)
    await site.stops.wait()
    site.first.says(Progress(11))
    site.first.says(written(10))  # One that was due anyway.
    await asyncio.sleep(300)
    status = site.place.published[-1]
    assert (status.phase, status.world_size, site.place.wanted_) == (Phase.RUNNING, 2, 2)
    assert status.reason == "to be paused at the next commit, once that is durable"
    site.first.says(written(11))
    site.first.says(TrainingStopped(11))
    return await site.until(lambda status: status.phase is Phase.PAUSED and not site.agents)


async def resume_after_a_while(site: Site) -> Status:
    """Somebody resumes the run, capacity takes its time, and the ranks find their checkpoint."""
    site.asks(PAUSE, RESUME)
    await site.until(lambda status: status.phase is not Phase.PAUSED)
    assert site.place.wanted_ == 2
    await asyncio.sleep(599)  # It is bounded anew.
    await site.trains()
    site.first.says(Resumed(f"{STORE}/ckpt-11", 11))
    site.first.says(Progress(12))
    return await site.until(lambda status: status.step == 12)


def test_a_run_is_paused_launched_anew_and_resumed_at_its_next_step(launched: Callable[..., Any]) -> None:
    async def history() -> None:
        site = Site()
        site.place.wanted_ = 2
        async with launched(site) as first:
            paused = await pause_at_step_11(site)
            assert (site.place.wanted_, paused.world_size) == (0, 0)
            assert paused.checkpoint is not None
            assert paused.checkpoint.step == 11
            assert paused.pause is not None
            assert (paused.pause.by, paused.pause.workers) == ("ada", 2)
            assert paused.pause.since is not None
            assert now() - paused.pause.since < timedelta(seconds=1)
            assert paused.reason == f"paused by ada since {paused.pause.since:%Y-%m-%d %H:%M:%S}Z"
            await asyncio.sleep(3600)
            assert not first.done()
        await asyncio.sleep(3600)
        async with launched(site) as second:
            await asyncio.sleep(24 * 3600)
            assert not second.done(), "no limit counts during a pause but its own"
            again = site.place.published[-1]
            assert (again.phase, again.pause, again.target_size) == (Phase.PAUSED, paused.pause, 0)
            assert (site.place.wanted_, site.agents) == (0, [])
            tell_of_all_that_happened(await resume_after_a_while(site))

    run_virtually(history())


def tell_of_all_that_happened(status: Status) -> None:
    assert (status.phase, status.pause, status.target_size) == (Phase.RUNNING, None, 2)
    assert [world.size for world in status.history] == [2, 0, 2]
    assert kinds(status) == [
        *(EventKind.STARTED, EventKind.SIZE_ASKED, EventKind.HANDOVER, EventKind.HANDOVER, EventKind.PAUSED),
        *(EventKind.RESTARTED, EventKind.SIZE_ASKED, EventKind.RESUMED, EventKind.SCALED, EventKind.RESUMED),
    ]
    asked = [event.message for event in status.events if event.kind is EventKind.SIZE_ASKED]
    assert asked == ["a pause asked for, 2 workers before, by ada", "resumed with 2 workers, by ada"]
    assert sum(status.lost_seconds.values()) < 1000, "a pause is no lost time"


def test_a_pause_that_is_withdrawn_before_the_commit_lets_the_world_train_on(launched: Callable[..., Any]) -> None:
    async def history() -> None:
        site = Site()
        site.place.wanted_ = 2
        async with launched(site):
            await site.trains()
            site.asks(PAUSE)
            await site.stops.wait()
            site.asks(PAUSE, RESUME)
            status = await site.until(lambda status: status.pause is None)
            await asyncio.sleep(5)
            words = [each for each in site.first.told if isinstance(each, CommitDeadline)]
            assert words[-1] == CommitDeadline(None)
            assert (status.phase, status.world_size, len(site.agents)) == (Phase.RUNNING, 2, 2)
            assert [world.size for world in status.history] == [2]

    run_virtually(history())


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (RUN, "no commit has become durable within 600 s (recovery.max_wait)"),
        (replace(RUN, checkpoint=None), "there is no checkpoint store, so the state would be lost"),
    ],
)
def test_one_that_would_lose_steps_is_refused_in_words_and_the_run_goes_on(
    launched: Callable[..., Any], spec: RunSpec, reason: str
) -> None:
    async def history() -> None:
        site = Site()
        site.place.wanted_ = 2
        async with launched(site, spec):
            await site.trains()
            site.asks(PAUSE)
            status = await site.until(lambda status: bool(status.pause and status.pause.refused))
            assert status.pause is not None
            assert status.pause.refused == reason
            await asyncio.sleep(60)
            status = site.place.published[-1]
            assert (status.phase, status.world_size, site.place.wanted_) == (Phase.RUNNING, 2, 2)
            warnings = [event.message for event in status.events if event.kind is EventKind.WARNING]
            assert warnings == [f"the run is not paused, and goes on: {reason}"]

    run_virtually(history())


def test_a_pause_that_nobody_ends_ends_the_run(launched: Callable[..., Any]) -> None:
    async def history() -> None:
        site = Site()
        site.place.wanted_ = 2
        site.place.requests_ = json.dumps([PAUSE])
        async with launched(site) as running:
            status = await site.until(lambda status: status.phase is Phase.PAUSED)
            assert status.reason.startswith("paused by ada since")
            site.place.wanted_ = 3  # By hand, past the run.
            site.place.on_change()
            await asyncio.sleep(5)
            assert site.place.wanted_ == 0
            status = await running
            assert status.failure is FailureKind.MAX_PAUSE_EXCEEDED
            assert timedelta(hours=48) < now() - NOON < timedelta(hours=48, minutes=2)

    run_virtually(history())
