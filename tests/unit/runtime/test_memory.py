"""Workers that run out of memory: how much they get, when that is refused, and how agents notice it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.agent.memory import oom_kills
from elastic_runtime.agent.ranks import Ranks
from elastic_runtime.engines.base import SessionOutcome
from elastic_runtime.errors import FailureKind, InvalidSettings
from elastic_runtime.kubernetes.quantities import bytes_of, quantity_of
from elastic_runtime.launcher.decision.decide import decide
from elastic_runtime.launcher.decision.facts import CloseSession, Finish
from elastic_runtime.launcher.decision.memory import MAX_LEVELS, STEP, Refused, decide_limit
from elastic_runtime.net import certificates
from elastic_runtime.protocol.wire import RankExited, RankStarted, Ready, StartRank, encode
from elastic_runtime.run.spec import LEAST_GROWTH, MOST_GROWTH, RecoverySpec
from elastic_runtime.run.status import EventKind, MemoryGiven, Status
from tests.unit.runtime.agent_bench import SOON
from tests.unit.runtime.decide_bench import FRESH, NOW, USUAL, ended, facts, worker
from tests.unit.runtime.launcher_bench import RUN, Place, launched
from tests.unit.runtime.launcher_bench import Worker as Agent
from tests.unit.runtime.test_launcher_place import BEFORE
from tests.unit.runtime.worker_bench import Worker, code

GI = 2**30
GROWS = RecoverySpec(grow_memory=1.5, up_to=20 * GI)


class TestDecision:
    @pytest.mark.parametrize(
        ("limit", "given", "wanted"),
        [
            (8, (), 12),
            (12, (12,), 18),
            (18, (12, 18), 20),
            (8, (12, 18), 18),
        ],
        ids=["first", "again", "no more than up_to", "as much as another has got"],
    )
    def test_gives_the_next_level(self, limit: int, given: tuple[int, ...], wanted: int) -> None:
        assert decide_limit("w", limit * GI, [each * GI for each in given], GROWS) == wanted * GI

    def test_refuses_at_the_largest_limit(self) -> None:
        found = decide_limit("w-2", 20 * GI, [20 * GI], GROWS)
        assert isinstance(found, Refused)
        assert found.reason.startswith("w-2 ran out of memory at its limit of 20Gi, and recovery.up_to is 20Gi: give ")

    def test_refuses_after_many_levels(self) -> None:
        slowly = replace(GROWS, grow_memory=LEAST_GROWTH, up_to=2**50)
        given: list[int] = []
        limit = GI
        while not isinstance(found := decide_limit("w", limit, given, slowly), Refused):
            given.append(limit := found)
        assert len(given) == MAX_LEVELS
        assert f"grown {MAX_LEVELS} times" in found.reason

    @given(
        st.integers(1, 2**45), st.lists(st.integers(1, 2**45), max_size=30), st.floats(LEAST_GROWTH, MOST_GROWTH),
        st.integers(1, 2**50),
    )  # fmt: skip
    def test_what_it_gives_is_more_and_never_beyond_the_bound(
        self, limit: int, given: list[int], factor: float, most: int
    ) -> None:
        found = decide_limit(
            "w", limit, [min(each, most) for each in given], RecoverySpec(grow_memory=factor, up_to=most)
        )
        if isinstance(found, Refused):
            assert limit >= most or len(set(given)) >= MAX_LEVELS
        else:
            assert limit < found <= most
            assert found % STEP == 0 or found == most or found in given

    def test_ends_a_run_whose_worker_gets_no_more(self) -> None:
        found = decide(facts(2, worker("a"), out_of_memory="w ran out"), FRESH, USUAL, NOW)
        assert [*found.actions] == [Finish(found.phase, FailureKind.OUT_OF_MEMORY)]
        assert found.reason == "w ran out"

    @pytest.mark.parametrize("starved", [True, False])
    def test_begins_anew_if_all_ranks_failed_with_one_that_gets_more(self, *, starved: bool) -> None:
        failed = facts(2, worker("a"), session=ended(SessionOutcome.FAILED), trained=True, starved=starved)
        [action] = decide(failed, FRESH, USUAL, NOW).actions
        assert isinstance(action, CloseSession if starved else Finish)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"grow_memory": 1.5}, "recovery.up_to"),
        ({"up_to": GI}, "recovery.grow_memory"),
        ({"grow_memory": 1.0, "up_to": GI}, "recovery.grow_memory"),
        ({"grow_memory": 11.0, "up_to": GI}, "recovery.grow_memory"),
        ({"grow_memory": 1.5, "up_to": 0}, "recovery.up_to"),
        ({"grow_memory": 1.5, "up_to": 2**51}, "recovery.up_to"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        RecoverySpec(**settings)  # type: ignore[arg-type]
    assert refused.value.field == field


@given(st.integers(1, 2**60))
def test_bytes_are_written_and_read_exactly(count: int) -> None:
    assert bytes_of(quantity_of(count)) == count


@pytest.mark.parametrize(
    ("name", "text", "kills"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 51\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", 7),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", 0),
        ("memory.events", "oom_kill -1\n\0", 0),
    ],
)
def test_the_kernels_counters_are_read(tmp_path: Path, name: str, text: str, kills: int) -> None:
    (tmp_path / name).write_text(text)
    assert oom_kills([tmp_path / "none", tmp_path / name]) == kills
    assert oom_kills([tmp_path / "none"]) == 0


def test_an_agent_tells_which_ranks_failed_for_want_of_memory() -> None:
    kills = iter([4, 5, 5, 5, 5, 6])
    exits: list[RankExited] = []

    async def run() -> None:
        bench = Worker(warm=False)
        bench.ranks = Ranks(bench._hear, {}, None, oom_kills=lambda: next(kills))
        async with bench:
            await bench.run("w.0.0~0", code("import os; os.kill(os.getpid(), 9)"))
            await bench.run("w.0.1~0", code("import os; os.kill(os.getpid(), 9)"))
            await bench.run("w.0.2~0", code("raise SystemExit(3)"))
            exits.extend(bench.of(RankExited))

    asyncio.run(run())
    assert [(each.code, each.out_of_memory) for each in exits] == [(-9, True), (-9, False), (3, True)]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "tls"
    certificates.create(folder)
    return folder


async def started(agent: Agent) -> str:
    """The next rank that the launcher starts there."""
    async with asyncio.timeout(SOON):
        while not isinstance(start := await agent.hear(), StartRank):
            assert start is not None
    return start.rank_id


async def loses_a_rank(agent: Agent) -> None:
    """The next one, for want of memory."""
    agent.writer.write(encode(Ready(warm=False)))
    rank = await started(agent)
    agent.writer.write(encode(RankStarted(rank, 8)) + encode(RankExited(rank, -9, out_of_memory=True)))


class TestLauncher:
    def test_gives_a_worker_more_after_a_rank_was_killed_which_does_not_count_as_failed(self, tls: Path) -> None:
        async def test(place: Place, agent: Agent, _: asyncio.Task[Status]) -> None:
            place.limits["w"] = 8 * GI
            await loses_a_rank(agent)
            status = await place.until(lambda status: bool(status.memory))
            [given] = status.memory
            assert (given.worker, given.before, given.after, given.step) == ("w", 8 * GI, 12 * GI, 70)
            [event] = [each for each in status.events if each.kind is EventKind.MEMORY]
            assert event.message == "w: 8Gi -> 12Gi after it ran out of memory at step 70"
            await loses_a_rank(agent)  # before it has more: that is not another level
            await started(agent)
            place.limits["w"] = 12 * GI
            status = await place.until(lambda status: status.workers[-1].memory_limit_bytes == 12 * GI)
            assert (status.memory, status.rank_failures) == ((given,), 0)
            assert place.gave == [("w", 12 * GI)]

        launched(tls, test, BEFORE, replace(RUN, recovery=replace(GROWS, backoff=0.01)))

    def test_goes_on_from_what_the_launcher_before_has_given(self, tls: Path) -> None:
        async def test(place: Place, _agent: Agent, __: asyncio.Task[Status]) -> None:
            place.limits |= {"w": 8 * GI, "v": 12 * GI}
            place.killed = ["w", "v"]
            status = await place.until(lambda status: len(status.memory) == 3)
            assert [(each.worker, each.after // GI) for each in status.memory] == [("u", 12), ("w", 12), ("v", 18)]

        before = replace(BEFORE, memory=(MemoryGiven(BEFORE.updated, "u", 8 * GI, 12 * GI),))
        launched(tls, test, before, replace(RUN, recovery=GROWS))

    def test_fails_the_run_at_the_largest_limit(self, tls: Path) -> None:
        async def test(place: Place, _: Agent, running: asyncio.Task[Status]) -> None:
            place.limits["w"] = 20 * GI
            place.killed = ["w"]
            place.on_change()
            async with asyncio.timeout(SOON):
                status = await running
            assert status.failure is FailureKind.OUT_OF_MEMORY
            assert "recovery.up_to is 20Gi" in status.reason

        launched(tls, test, spec=replace(RUN, recovery=GROWS))

    def test_without_the_setting_names_it_once_and_counts_the_rank_as_failed(self, tls: Path) -> None:
        async def test(place: Place, agent: Agent, _: asyncio.Task[Status]) -> None:
            place.limits["w"] = 8 * GI
            for count in (1, 2):
                await loses_a_rank(agent)
                status = await place.until(lambda status, count=count: status.rank_failures == count)
            told = [each.message for each in status.events if each.kind is EventKind.WARNING]
            assert told == [
                "w ran out of memory: its limit is 8Gi. Give workers more, or set Recovery(grow_memory=...)"
            ]
            assert status.memory == ()

        launched(tls, test, spec=replace(RUN, recovery=RecoverySpec(backoff=0.01)))

    def test_where_no_limit_is_known_does_nothing(self, tls: Path) -> None:
        async def test(place: Place, agent: Agent, _: asyncio.Task[Status]) -> None:
            await loses_a_rank(agent)
            status = await place.until(lambda status: status.rank_failures == 1)
            assert not [each for each in status.events if each.kind in (EventKind.WARNING, EventKind.MEMORY)]

        launched(tls, test, spec=replace(RUN, recovery=GROWS))
