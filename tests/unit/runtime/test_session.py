"""A session of the ElasticDriver: its worlds, and newcomers that die before they have joined.

How it ends: test_session_end.
"""

from __future__ import annotations

import asyncio

from elastic_runtime.engines.base import SessionFact, SessionState
from elastic_runtime.engines.exits import LOST
from elastic_runtime.engines.horovod.session import JOIN_ATTEMPTS
from tests.unit.runtime.session_bench import Scene, play


class TestWorlds:
    def test_the_first_is_complete_when_all_its_ranks_have_joined(self) -> None:
        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            first, second = await scene.started(2)
            assert [(each.rank_id, each.number, each.attempt) for each in (first, second)] == [
                ("a", "0", 0),
                ("b", "1", 0),
            ]
            assert first.environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
            assert first.environment["HOROVOD_ELASTIC"] == "1"
            assert first.environment["HOROVOD_GLOO_IFACE"] == "lo"
            assert scene.session.fact == SessionFact(
                SessionState.FORMING, ("a", "b"), world=1, minimum=2, awaited=("a", "b")
            )
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
            assert scene.session.fact == SessionFact(SessionState.SETTLED, ("b", "a", "c"), world=1, holders=("b", "a"))
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
            assert scene.session.fact.holders is None
            await scene.train("a", "b")
            assert scene.session.fact.holders == ("a", "b")  # They may; nobody surely does.
            scene.session.committed()
            scene.session.list_ranks(("a", "b", "c"), 1)
            await asyncio.gather(*scene.reset("a", "b"))
            await scene.until_state(SessionState.FORMING)
            scene.session.committed()  # Told late, by the world before.
            assert scene.session.fact.holders == ("a", "b")
            await scene.running("c")
            await scene.join(0, 1, 2)
            await scene.until_state(SessionState.SETTLED)
            assert scene.session.fact.holders == ("a", "b")
            scene.session.committed()
            assert scene.session.fact.holders == ("a", "b", "c")

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

    def test_is_started_again(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a")
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            for attempt in range(JOIN_ATTEMPTS):
                start = await scene.running("b")
                assert start.attempt == attempt
                if attempt < JOIN_ATTEMPTS - 1:
                    start.end.set_result(1)
            assert "b" not in scene.over
            assert scene.exits == [("b", 1, False)] * (JOIN_ATTEMPTS - 1)
            await scene.join(0, 1)
            await scene.until_state(SessionState.SETTLED)
            assert scene.worlds == [["a"], ["a", "b"]]

        play(act)

    def test_whose_worker_is_lost_is_lost_for_good(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a")
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            start = await scene.running("b")
            scene.without_worker.add("b")
            start.end.set_result(LOST)
            await scene.until(lambda: scene.over == ["b"])
            assert scene.session.fact.missing == ("b",)

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
            scene.without_worker.add("b")
            scene.session.list_ranks(("a", "b"), 1)
            await asyncio.gather(*scene.reset("a"))
            await scene.until(lambda: scene.over == ["b"])
            assert len(scene.starts) == 1
            assert scene.exits == []

        play(act)
