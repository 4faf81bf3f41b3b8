"""A session of the ElasticDriver while a world forms: who is waited for, and what follows when one is lost."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState, Stage
from elastic_runtime.engines.exits import LOST
from tests.unit.runtime.session_bench import Scene, play


async def begin_to_grow(scene: Scene) -> None:
    """``a`` and ``b`` have trained; now they and the newcomer ``c`` are to be a world."""
    await scene.train("a", "b")
    scene.session.committed()
    scene.session.list_ranks(("a", "b", "c"), 1)
    await asyncio.gather(*scene.reset("a", "b"))
    await scene.running("c")
    assert scene.session.fact.state is SessionState.FORMING


async def kill(scene: Scene, *rank_ids: str) -> None:
    for rank_id in rank_ids:
        (await scene.running(rank_id)).end.set_result(LOST)
        await scene.until(lambda: rank_id in scene.over)  # noqa: B023 - awaited in this very round


class TestRollCall:
    def test_lets_nobody_in_before_all_are_there(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("a", "b")
            await scene.until_called("a", "b")
            assert not any(each.done() for each in waiting)
            waiting += scene.call("c")
            assert await asyncio.gather(*waiting) == [b"go"] * 3

        play(act)

    def test_waits_again_for_a_newcomer_that_died_there(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            dead = scene.call("c")
            await scene.until_called("c")
            (await scene.running("c")).end.set_result(LOST)
            await scene.until(lambda: len(scene.starts) == 4)
            waiting = scene.call("a", "b")
            await scene.until_called("a", "b")
            waiting += scene.call("c")
            assert await asyncio.gather(*waiting, *dead) == [b"go"] * 4

        play(act)

    def test_counts_those_who_are_inside_without_having_come(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("a", "b")
            await scene.ask(scene.session._members[2], "PUT", "/global/2")
            assert await asyncio.gather(*waiting) == [b"go"] * 2

        play(act)

    def test_sends_back_who_is_not_in_the_world(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            assert await asyncio.gather(*scene.call("x")) == [b"back"]

        play(act)

    def test_ends_with_the_session(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("a", "b")
            await scene.until_called("a", "b")
            await scene.session.close(grace=1.0)
            await asyncio.gather(*waiting, return_exceptions=True)

        play(act)


class TestALoss:
    def test_of_all_who_have_the_state_is_told_at_once(self) -> None:
        """Or the newcomer is started again and again to meet nobody."""

        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            await kill(scene, "a", "b")
            assert scene.session.fact == SessionFact(
                SessionState.FORMING,
                ("a", "b", "c"),
                detail="rank 0 (a) ended with SIGKILL, rank 1 (b) ended with SIGKILL",
                world=2,
                holders=(),
                missing=("a", "b"),
                awaited=("c",),
            )
            assert [start.rank_id for start in scene.starts] == ["a", "b", "c"]

        play(act)

    def test_of_the_last_who_waited_for_a_newcomer_is_told_at_once(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b", minimum=2)
            scene.session.committed()
            scene.session.list_ranks(("a",), 2)
            answers = scene.reset("a", "b")
            await scene.until_state(SessionState.WAITING)
            scene.session.list_ranks(("a", "c"), 2)
            await asyncio.gather(*answers)
            (await scene.running("b")).end.set_result(0)
            await kill(scene, "a")
            fact = scene.session.fact
            assert (fact.state, fact.holders, fact.missing) == (SessionState.FORMING, (), ("a",))

        play(act)

    def test_of_one_is_told_with_those_who_have_the_state_still(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            await kill(scene, "a")
            fact = scene.session.fact
            assert (fact.holders, fact.missing, fact.given_up) == (("b",), ("a",), False)

        play(act)

    def test_of_all_who_surely_have_the_state_leaves_it_to_those_who_may(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            await scene.join(0, 1, 2)
            await scene.until_state(SessionState.SETTLED)
            assert scene.session.fact.holders == ("a", "b")
            await kill(scene, "a", "b")
            assert scene.session.fact.holders == ("c",)

        play(act)

    def test_of_a_newcomer_is_no_loss_while_it_is_started_again(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            (await scene.running("c")).end.set_result(LOST)
            await scene.running("c")
            assert scene.session.fact.missing == ()

        play(act)

    def test_of_a_newcomer_that_has_gone_in_is_one_since_the_others_met_it(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            await asyncio.gather(*scene.call("a", "b", "c"))
            await kill(scene, "c")
            assert scene.session.fact.missing == ("c",)
            assert len(scene.starts) == 3

        play(act)

    def test_of_a_newcomer_that_had_nothing_to_do_is_one(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            (await scene.running("c")).end.set_result(0)
            await scene.until(lambda: "c" in scene.over)
            fact = scene.session.fact
            assert (fact.state, fact.missing) == (SessionState.FORMING, ("c",))
            scene.session.reform()
            answers = scene.reset("a", "b")
            assert (await scene.until_state(SessionState.ENDED)).outcome is SessionOutcome.EARLY_EXIT
            await asyncio.gather(*answers, return_exceptions=True)

        play(act)

    def test_in_the_first_world_leaves_nobody_with_a_state(self) -> None:
        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            await scene.started(2)
            await asyncio.gather(*scene.call("a", "b"))
            await kill(scene, "b")
            fact = scene.session.fact
            assert (fact.state, fact.holders, fact.missing) == (SessionState.FORMING, None, ("b",))

        play(act)

    def test_in_the_first_world_of_ranks_that_have_nothing_to_do_is_none(self) -> None:
        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            await scene.started(2)
            (await scene.running("a")).end.set_result(0)
            await scene.until(lambda: "a" in scene.over)
            assert scene.session.fact.missing == ()
            (await scene.running("b")).end.set_result(0)
            assert (await scene.until_state(SessionState.ENDED)).outcome is SessionOutcome.SUCCEEDED

        play(act)

    def test_that_makes_others_fail_in_the_first_world_is_no_failure_of_theirs(self) -> None:
        """A rank that is not adapted ends with an error when one that it met in ``hvd.init()`` is killed."""

        async def act(scene: Scene) -> None:
            scene.session.open(("a", "b"), 2)
            await scene.started(2)
            (await scene.running("b")).end.set_result(LOST)
            await scene.running("b")
            (await scene.running("a")).end.set_result(1)
            assert (await scene.until_state(SessionState.ENDED)).outcome is SessionOutcome.LOST

        play(act)


class TestReform:
    def test_has_those_who_are_there_form_another_world_and_stops_the_others(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("b")
            await scene.until_called("b")
            await kill(scene, "a")
            scene.session.reform()
            assert scene.session.fact.stage is Stage.RETREATING
            assert await asyncio.gather(*waiting) == [b"back"]
            await scene.until(lambda: "c" in scene.over)
            assert scene.exits == [("a", LOST, False), ("c", -signal.SIGTERM, True)]
            [answer] = scene.reset("b")
            assert (await answer).split(b",")[:2] == [b"0", b"1"]
            assert scene.session.fact.stage is Stage.CONNECTING
            assert await asyncio.gather(*scene.call("b")) == [b"go"]
            await scene.join(0)
            await scene.until_state(SessionState.SETTLED)
            assert scene.worlds == [["a", "b"], ["b"]]

        play(act)

    def test_keeps_a_newcomer_that_is_there(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("b", "c")
            await scene.until_called("b", "c")
            await kill(scene, "a")
            scene.session.reform()
            assert await asyncio.gather(*waiting) == [b"back"] * 2
            answers = [(await each).split(b",")[:2] for each in scene.reset("c", "b")]
            assert answers == [[b"1", b"2"], [b"0", b"2"]]
            await scene.join(0, 1)
            await scene.until_state(SessionState.SETTLED)
            assert scene.worlds[-1] == ["b", "c"]

        play(act)

    def test_of_a_world_that_nobody_has_left_blames_who_has_not_come(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("a", "b")
            await scene.until_called("a", "b")
            scene.session.reform()
            assert await asyncio.gather(*waiting) == [b"back"] * 2
            await scene.until(lambda: "c" in scene.over)
            assert scene.exits == [("c", -signal.SIGTERM, False)]

        play(act)

    def test_has_who_is_inside_told_to_come_out(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            await asyncio.gather(*scene.call("a", "b", "c"))
            waiting = asyncio.create_task(scene.status("b", "GET", "/global/0"))
            await kill(scene, "a")
            scene.session.reform()
            assert await waiting == 410
            assert await scene.status("b", "GET", "/global/1") == 410
            answers = scene.reset("b", "c")
            await asyncio.gather(*answers)
            rank = scene.session.rank_of["b"]
            assert await scene.status("b", "PUT", f"/global/{rank}") == 200
            assert await scene.status("c", "GET", f"/global/{rank}") == 200

        play(act)


class TestTheBarrier:
    def test_is_waited_at_for_those_who_have_not_come(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b", "c")
            answers = scene.reset("a")
            fact = await scene.until_state(SessionState.FORMING)
            assert (fact.stage, fact.awaited, fact.arrived) == (Stage.RETURNING, ("b", "c"), ("a",))
            scene.session.committed()  # What it has said before comes after it.
            answers += scene.reset("b")
            await scene.until(lambda: scene.session.fact.awaited == ("c",))
            scene.session.reform()
            assert scene.session.fact.given_up
            await asyncio.gather(*answers)
            fact = scene.session.fact
            assert (fact.stage, fact.given_up, fact.holders) == (Stage.CONNECTING, False, ("a", "b"))
            assert scene.exits == [("c", -signal.SIGTERM, False)]

        play(act)

    def test_is_where_nobody_is_yet_after_a_failure(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            (await scene.running("b")).end.set_result(1)
            fact = await scene.until_state(SessionState.FORMING)
            assert (fact.stage, fact.awaited, fact.arrived) == (Stage.RETURNING, ("a",), ())
            assert fact.detail == "rank 1 (b) ended with code 1"

        play(act)

    def test_is_where_who_has_not_come_as_all_is_closed_says_where_it_stands(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b", "c")
            answers = scene.reset("a")
            await scene.until_state(SessionState.FORMING)
            await scene.session.close(grace=1.0)
            await asyncio.gather(*answers, return_exceptions=True)
            assert scene.dumped == ["b", "c"]

        play(act)

    def test_shows_that_who_ended_with_0_has_done_so_early(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b", "c")
            (await scene.running("a")).end.set_result(0)
            await scene.until_state(SessionState.FINISHING)
            answers = scene.reset("b")
            assert (await scene.until_state(SessionState.FORMING)).awaited == ("c",)
            scene.session.reform()
            assert (await scene.until_state(SessionState.ENDED)).outcome is SessionOutcome.EARLY_EXIT
            await asyncio.gather(*answers, return_exceptions=True)

        play(act)

    def test_is_where_all_come_back_to_when_one_could_not_connect(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            await asyncio.gather(*scene.call("a", "b", "c"))
            inside = asyncio.create_task(scene.status("b", "GET", "/global/0"))
            answers = scene.reset("c")
            assert await inside == 410
            fact = scene.session.fact
            assert (fact.stage, fact.awaited, fact.arrived) == (Stage.RETREATING, ("a", "b"), ("c",))
            answers += scene.reset("b")
            await scene.until(lambda: scene.session.fact.awaited == ("a",))
            scene.session.reform()
            await asyncio.gather(*answers)
            assert scene.exits == [("a", -signal.SIGTERM, False)]
            assert set(scene.session.rank_of) >= {"b", "c"}

        play(act)

    def test_is_not_waited_at_for_a_state_that_no_rank_can_keep(self) -> None:
        async def act(scene: Scene) -> None:
            await scene.train("a", "b", elastic=False)
            assert scene.session.fact.holders is None
            asking = asyncio.create_task(scene.ask("a", "GET", "/hosts_updated/a:0"))
            async with asyncio.timeout(10):
                while scene.session.fact.holders is None:  # noqa: ASYNC110 - nothing is said about it
                    await asyncio.sleep(0.005)
            assert scene.session.fact.holders == ("a", "b")
            scene.session._rendezvous.tell("a", b"1.0 1")
            await asking

        play(act)


class TestReformOfAWorldThatIsLate:
    def test_stops_one_who_has_the_state_and_does_not_come(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("b", "c")
            await scene.until_called("b", "c")
            scene.session.reform()
            assert await asyncio.gather(*waiting) == [b"back"] * 2
            await scene.until(lambda: "a" in scene.over)
            assert scene.exits == [("a", -signal.SIGTERM, False)]

        play(act)

    def test_spares_all_who_have_the_state_where_none_of_them_has_come(self) -> None:
        async def act(scene: Scene) -> None:
            await begin_to_grow(scene)
            waiting = scene.call("c")
            await scene.until_called("c")
            scene.session.reform()
            assert await asyncio.gather(*waiting) == [b"back"]
            assert scene.exits == []
            assert (scene.session.fact.stage, scene.session.fact.holders) == (Stage.RETREATING, ("a", "b"))

        play(act)


def test_ranks_that_all_fail_are_judged_by_the_driver_and_not_given_up_before() -> None:
    async def act(scene: Scene) -> None:
        await scene.train("a", "b")
        scene.session.committed()
        assert scene.session.fact.holders == ("a", "b")
        facts: list[SessionFact] = []
        scene.session._callbacks = replace(
            scene.session._callbacks, on_over=lambda _: (facts.append(scene.session.fact), scene.changed.set())[1]
        )
        for rank_id in ("a", "b"):
            (await scene.running(rank_id)).end.set_result(3)
        fact = await scene.until_state(SessionState.ENDED)
        assert fact.outcome is SessionOutcome.FAILED
        # Without holders, a session that forms a world is closed, and the script is started again.
        assert [each for each in facts if each.state is SessionState.FORMING and each.holders == ()] == []

    play(act)
