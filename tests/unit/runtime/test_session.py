"""One life of the ElasticDriver, with ranks that the test plays: they join, reset and end over the real rendezvous."""

from __future__ import annotations

import asyncio
import http.client
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import pytest

from elastic_runtime.launcher.facts import SessionFact, SessionOutcome, SessionState
from elastic_runtime.launcher.session import JOIN_ATTEMPTS, LOST, HorovodSession, describe

SOON = 10.0


@dataclass(eq=False)
class Start:
    """One rank process that the session asked for."""

    rank_id: str
    attempt: int
    stand_in: bool
    environment: Mapping[str, str]
    end: asyncio.Future[int]

    @property
    def number(self) -> str:
        return self.environment["HOROVOD_RANK"]


@dataclass(eq=False)
class Scene:
    """A session and its surroundings: implements RankRunner."""

    starts: list[Start] = field(default_factory=list)
    without_worker: set[str] = field(default_factory=set)
    nobody: bool = False
    worlds: list[list[str]] = field(default_factory=list)
    exits: list[tuple[str, int, bool]] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    session: HorovodSession = field(init=False)

    def __post_init__(self) -> None:
        self.session = HorovodSession(
            self,
            "127.0.0.1",
            0,
            on_change=self.changed.set,
            on_world=self.worlds.append,
            on_exit=lambda *exit: self.exits.append(exit),
            on_over=self._rank_over,
        )

    def _rank_over(self, rank_id: str) -> None:
        self.over.append(rank_id)
        self.changed.set()

    # RankRunner

    def interface(self, rank_id: str, stand_in: bool) -> str | None:
        return None if self.nobody or (rank_id in self.without_worker and not stand_in) else "lo"

    async def run_rank(self, rank_id: str, attempt: int, environment: Mapping[str, str], stand_in: bool) -> int:
        start = Start(rank_id, attempt, stand_in, environment, asyncio.get_running_loop().create_future())
        self.starts.append(start)
        self.changed.set()
        return await start.end

    def stop_ranks(self) -> None:
        for start in self.starts:
            if not start.end.done():
                start.end.set_result(-signal.SIGTERM)

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

    async def ask(self, method: str, path: str) -> bytes:
        """Of the rendezvous server."""

        def request() -> bytes:
            connection = http.client.HTTPConnection("127.0.0.1", self.session._port, timeout=SOON)
            try:
                connection.request(method, path)
                return connection.getresponse().read()
            finally:
                connection.close()

        return await asyncio.to_thread(request)

    async def join(self, *ranks: int) -> None:
        """These ranks of the present world have finished hvd.init()."""
        for rank in ranks:
            await self.ask("DELETE", f"/cross_0_process_set_hash_1/{rank}")

    async def train(self, *rank_ids: str, minimum: int = 1) -> None:
        """Open it, until all train."""
        self.session.open(rank_ids, minimum)
        await self.started(len(rank_ids))
        await self.join(*range(len(rank_ids)))
        await self.until_state(SessionState.SETTLED)

    def reset(self, *rank_ids: str) -> list[asyncio.Task[bytes]]:
        """These come to the barrier."""
        return [asyncio.create_task(self.ask("GET", f"/next_assignment/{rank_id}:0")) for rank_id in rank_ids]


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


class TestWorlds:
    def test_the_first_is_complete_when_all_its_ranks_have_joined(self) -> None:
        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            first, second = await scene.started(2)
            assert [(each.rank_id, each.number, each.attempt, each.stand_in) for each in (first, second)] == [
                ("a", "0", 0, False),
                ("b", "1", 0, False),
            ]
            assert first.environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
            assert first.environment["HOROVOD_ELASTIC"] == "1"
            assert first.environment["HOROVOD_GLOO_IFACE"] == "lo"
            assert scene.session.fact == SessionFact(SessionState.FORMING, ("a", "b"))
            await scene.join(0)
            assert scene.worlds == []
            assert scene.session.fact.state is SessionState.FORMING
            await scene.join(1)
            await scene.until_state(SessionState.SETTLED)
            assert scene.worlds == [["a", "b"]]
            assert scene.session.rank_of == {"a": 0, "b": 1}

        play(act)

    def test_the_next_has_the_newcomer_last(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("b", "a")
            scene.session.list_ranks(("b", "a", "c"), 1)
            assert scene.session.fact == SessionFact(SessionState.SETTLED, ("b", "a", "c"))
            answers = scene.reset("a", "b")
            assert [(await each).split(b",")[0] for each in answers] == [b"1", b"0"]
            await scene.running("c")
            await scene.join(2, 0, 1)
            await scene.until_state(SessionState.SETTLED)
            assert scene.worlds == [["b", "a"], ["b", "a", "c"]]

        play(act)

    def test_a_rank_that_was_taken_out_leaves_in_order(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            scene.session.list_ranks(("a",), 1)
            answers = scene.reset("a", "b")
            assert [(await each).split(b",")[0] for each in answers] == [b"0", b"-1"]
            (await scene.running("b")).end.set_result(0)
            await scene.join(0)
            await scene.until(lambda: "b" in scene.over)
            assert scene.exits == [("b", 0, True)]
            assert (await scene.until_state(SessionState.SETTLED)).outcome is None

        play(act)

    def test_prove_by_a_commit_that_all_their_ranks_have_the_state(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            assert scene.session.proven == set()
            scene.session.committed()
            assert scene.session.proven == {"a", "b"}
            scene.session.list_ranks(("a", "b", "c"), 1)
            await asyncio.gather(*scene.reset("a", "b"))
            await scene.until_state(SessionState.FORMING)
            scene.session.committed()  # Told late, by the world before.
            assert scene.session.proven == {"a", "b"}
            await scene.running("c")
            await scene.join(0, 1, 2)
            await scene.until_state(SessionState.SETTLED)
            assert scene.session.proven == {"a", "b"}
            scene.session.committed()
            assert scene.session.proven == {"a", "b", "c"}

        play(act)

    def test_waits_with_too_few(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b", minimum=2)
            (await scene.running("b")).end.set_result(LOST)
            [answer] = scene.reset("a")
            await scene.until_state(SessionState.WAITING)
            assert scene.exits == [("b", LOST, False)]
            scene.session.list_ranks(("a", "c"), 2)
            assert (await answer).split(b",")[:2] == [b"0", b"2"]
            await scene.until_state(SessionState.FORMING)

        play(act)


class TestNewcomer:
    """A newcomer that dies before it has joined ends the whole job: the others wait for it inside hvd.init()."""

    def test_is_started_again_and_in_the_end_as_a_stand_in(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a")
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            for attempt in range(JOIN_ATTEMPTS):
                start = await scene.running("b")
                assert (start.attempt, start.stand_in) == (attempt, attempt == JOIN_ATTEMPTS - 1)
                if attempt < JOIN_ATTEMPTS - 1:
                    start.end.set_result(1)
            assert "b" not in scene.over
            assert scene.exits == [("b", 1, False)] * (JOIN_ATTEMPTS - 1)
            await scene.join(0, 1)
            await scene.until_state(SessionState.SETTLED)
            assert scene.worlds == [["a"], ["a", "b"]]

        play(act)

    def test_whose_worker_is_lost_is_started_as_a_stand_in_at_once(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a")
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            start = await scene.running("b")
            scene.without_worker.add("b")
            start.end.set_result(LOST)
            again = await scene.running("b")
            assert (again.attempt, again.stand_in) == (1, True)
            await scene.join(0, 1)
            await scene.until_state(SessionState.SETTLED)

        play(act)

    def test_that_never_joins_is_given_up(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a")
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            for _ in range(JOIN_ATTEMPTS):
                (await scene.running("b")).end.set_result(1)
                await asyncio.sleep(0)
            await scene.until(lambda: scene.over == ["b"])
            assert len(scene.exits) == JOIN_ATTEMPTS

        play(act)

    def test_that_dies_once_it_has_joined_is_not_started_again(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            (await scene.running("b")).end.set_result(1)
            await scene.until(lambda: scene.over == ["b"])
            assert len(scene.starts) == 2

        play(act)

    def test_for_which_there_is_no_place_is_not_started(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a")
            scene.nobody = True
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            await scene.until(lambda: scene.over == ["b"])
            assert len(scene.starts) == 1
            assert scene.exits == []

        play(act)


class TestEnd:
    def test_a_first_world_that_fails_by_itself_ends_at_once(self) -> None:
        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            await scene.started(2)
            (await scene.running("b")).end.set_result(3)
            fact = await scene.until_state(SessionState.ENDED)
            assert fact.outcome is SessionOutcome.FAILED
            assert fact.detail == "rank 1 (b) ended with code 3"
            await scene.until(lambda: len(scene.over) == 2)
            assert scene.exits == [("b", 3, False), ("a", -signal.SIGTERM, True)]

        play(act)

    def test_a_first_world_that_is_killed_is_begun_again(self) -> None:
        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            await scene.started(2)
            (await scene.running("b")).end.set_result(LOST)
            assert (await scene.running("b")).attempt == 1
            assert scene.session.fact.outcome is None

        play(act)

    @pytest.mark.parametrize(
        ("codes", "outcome", "detail"),
        [
            ((0, 0), SessionOutcome.SUCCEEDED, "rank 0 (a) ended with code 0, rank 1 (b) ended with code 0"),
            ((1, 1), SessionOutcome.FAILED, "rank 0 (a) ended with code 1, rank 1 (b) ended with code 1"),
            ((1, -6), SessionOutcome.FAILED, "rank 0 (a) ended with code 1, rank 1 (b) ended with SIGABRT"),
            ((LOST, LOST), SessionOutcome.LOST, "rank 0 (a) ended with SIGKILL, rank 1 (b) ended with SIGKILL"),
            ((LOST, 1), SessionOutcome.LOST, "rank 0 (a) ended with SIGKILL, rank 1 (b) ended with code 1"),
            ((-6, -6), SessionOutcome.LOST, "rank 0 (a) ended with SIGABRT, rank 1 (b) ended with SIGABRT"),
        ],
    )
    def test_of_all_ranks(self, codes: tuple[int, int], outcome: SessionOutcome, detail: str) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            for rank_id, code in zip("ab", codes, strict=True):
                (await scene.running(rank_id)).end.set_result(code)
            fact = await scene.until_state(SessionState.ENDED)
            assert (fact.outcome, fact.detail) == (outcome, detail)

        play(act)

    def test_the_first_rank_that_is_done_lets_nothing_change_any_more(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            (await scene.running("a")).end.set_result(0)
            assert (await scene.until_state(SessionState.FINISHING)).outcome is None
            assert scene.exits == [("a", 0, True)]

        play(act)

    def test_a_rank_that_is_done_while_another_goes_on_is_an_early_exit(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            (await scene.running("a")).end.set_result(0)
            answers = scene.reset("b")
            fact = await scene.until_state(SessionState.ENDED)
            assert fact.outcome is SessionOutcome.EARLY_EXIT
            assert fact.detail == "rank 0 (a) ended with code 0"
            await asyncio.gather(*answers, return_exceptions=True)

        play(act)

    def test_no_survivor(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            scene.session.list_ranks(("c",), 1)
            answers = scene.reset("a", "b")
            fact = await scene.until_state(SessionState.ENDED)
            assert (fact.outcome, fact.detail) == (SessionOutcome.LOST, "no_survivor")
            await asyncio.gather(*answers, return_exceptions=True)

        play(act)

    def test_closing_stops_every_rank(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")

        scene = play(act)
        assert sorted(scene.over) == ["a", "b"]
        assert [start.end.result() for start in scene.starts] == [-signal.SIGTERM] * 2

    def test_closing_while_it_waits_for_a_newcomer(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", minimum=1)
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            await scene.running("b")

        scene = play(act)
        assert sorted(scene.over) == ["a", "b"]
        assert len(scene.starts) == 2


@pytest.mark.parametrize(
    ("code", "words"), [(0, "code 0"), (137, "code 137"), (-9, "SIGKILL"), (-6, "SIGABRT"), (-200, "signal 200")]
)
def test_exit_codes_for_people(code: int, words: str) -> None:
    assert describe(code) == words
