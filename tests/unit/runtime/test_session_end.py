"""A session of the ElasticDriver: how it ends, by itself and when it is closed."""

from __future__ import annotations

import asyncio
import signal

import pytest

from elastic_runtime.engines.base import SessionOutcome, SessionState
from elastic_runtime.engines.exits import LOST, describe
from tests.unit.runtime.session_bench import Scene, play


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

    def test_comes_not_while_somebody_has_the_state_whom_nobody_has_listed(self) -> None:
        """Upstream ends, for want of a survivor: one that was to take over may just have been lost."""

        async def act(scene: Scene) -> None:
            await scene.train("a", "b")
            scene.session.list_ranks(("c",), 1)
            answers = scene.reset("a", "b")
            assert (await scene.until_state(SessionState.WAITING)).holders == ("a", "b")
            scene.session.list_ranks(("b", "c"), 1)
            assert [(await each).split(b",")[0] for each in answers] == [b"-1", b"0"]

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
