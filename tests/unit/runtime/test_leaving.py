"""What a script is told before workers are taken: when, how often, and that nothing of it ends the training."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta

import pytest

import elastic_runtime
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import CommitDeadline, Handover, RankLink
from elastic_runtime.script import leaving
from elastic_runtime.script.leaving import MOST_CALLBACKS, Leaving, Notice
from tests.unit.runtime.rank_bench import Agent

pytestmark = pytest.mark.usefixtures("no_thread_left")


class Rank:
    """One on ``worker-1``, with its agent, and what its callback was told."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.now = agent, utc_now().replace(microsecond=0)
        self.leaving = Leaving(agent.link, "worker-1", lambda: self.now)
        self.told: list[Notice] = []
        self.leaving.add(self.told.append)

    def at(self, seconds: float) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def hears(self, *words: Handover | CommitDeadline) -> list[Notice]:
        """What it is told of these at the next look."""
        for word in words:
            self.agent.say(word)
        self.told.clear()
        self.leaving.look()
        return list(self.told)


@pytest.fixture
def rank(agent: Agent) -> Rank:
    return Rank(agent)


class TestWhatIsTold:
    def test_who_leaves_and_when(self, rank: Rank) -> None:
        assert rank.hears() == []
        other = rank.at(20)
        assert rank.hears(Handover("worker-2", other)) == [Notice(other, ("worker-2",), False, False)]
        assert rank.hears() == []

    def test_of_several_at_once_in_one_call(self, rank: Rank) -> None:
        words = Handover("worker-2", rank.at(20)), Handover("worker-1", rank.at(10))
        assert rank.hears(*words) == [Notice(rank.at(10), ("worker-1", "worker-2"), True, False)]

    def test_again_when_it_gets_worse_and_not_otherwise(self, rank: Rank) -> None:
        assert len(rank.hears(Handover("worker-2", rank.at(20)))) == 1
        assert len(rank.hears(Handover("worker-2", rank.at(20)))) == 0
        assert len(rank.hears(Handover("worker-2", rank.at(10)))) == 1
        assert len(rank.hears(Handover("worker-3", rank.at(15)))) == 1
        assert [notice.everyone for notice in rank.hears(CommitDeadline(rank.at(10)))] == [True]
        assert len(rank.hears(CommitDeadline(rank.at(10)))) == 0
        assert len(rank.hears(CommitDeadline(None))) == 0

    def test_nothing_of_a_deadline_that_has_passed(self, rank: Rank) -> None:
        words = Handover("worker-2", rank.at(20)), CommitDeadline(rank.at(20))
        rank.now += timedelta(seconds=21)
        assert rank.hears(*words) == []
        assert rank.leaving.newest() is None

    def test_a_callback_that_comes_late_hears_of_what_is_known(self, rank: Rank) -> None:
        rank.hears(Handover("worker-2", rank.at(20)))
        late: list[Notice] = []
        rank.leaving.add(late.append)
        assert rank.hears() == []
        assert [notice.workers for notice in late] == [("worker-2",)]


class TestCallbacks:
    def test_one_that_raises_is_logged_and_the_others_are_called(
        self, rank: Rank, caplog: pytest.LogCaptureFixture
    ) -> None:
        second: list[Notice] = []
        rank.leaving.add(lambda _: 1 / 0)
        rank.leaving.add(second.append)
        rank.hears(Handover("worker-2", rank.at(20)))
        assert len(second) == 1
        assert "training goes on" in caplog.text
        assert "ZeroDivisionError" in caplog.text

    def test_one_that_does_not_return_holds_training_up_to_the_deadline(
        self, rank: Rank, caplog: pytest.LogCaptureFixture
    ) -> None:
        release = threading.Event()
        waited: list[bool] = []
        rank.leaving.add(lambda _: waited.append(release.wait(30)))
        with caplog.at_level(logging.WARNING):
            rank.hears(Handover("worker-2", rank.at(0.05)))
        assert "training goes on beside it" in caplog.text
        assert rank.hears(Handover("worker-3", rank.at(0.05))) == [], "not beside the one that still runs"
        assert waited == []
        release.set()
        assert rank.leaving._running is not None
        rank.leaving._running.join()
        assert len(rank.hears()) == 1

    def test_one_that_asks_for_the_notice_is_answered(
        self, rank: Rank, monkeypatch: pytest.MonkeyPatch, agent: Agent
    ) -> None:
        monkeypatch.setattr(leaving, "_shared", lambda: rank.leaving)
        monkeypatch.setattr(leaving, "shared_link", lambda: agent.link)
        seen: list[datetime | None] = []
        rank.leaving.add(lambda _: seen.append(elastic_runtime.notice()))
        rank.hears(Handover("worker-2", rank.at(20)))
        assert seen == [rank.at(20)]

    def test_there_are_only_so_many(self, rank: Rank) -> None:
        with pytest.raises(InvalidSettings, match="cannot be called"):
            rank.leaving.add("save")  # type: ignore[arg-type]
        for _ in range(MOST_CALLBACKS - 1):
            rank.leaving.add(print)
        with pytest.raises(InvalidSettings, match="100 callbacks"):
            rank.leaving.add(print)


class TestOfAScript:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
        made = Leaving(agent.link, "worker-1")
        monkeypatch.setattr(leaving, "_shared", lambda: made)
        monkeypatch.setattr(leaving, "shared_link", lambda: agent.link)

    def test_notice_gives_the_deadline_and_calls_back(self, agent: Agent) -> None:
        told: list[Notice] = []

        @elastic_runtime.on_notice
        def save(notice: Notice) -> None:
            told.append(notice)

        assert elastic_runtime.notice() is None
        deadline = utc_now().replace(microsecond=0) + timedelta(seconds=30)
        agent.say(Handover("worker-1", deadline))
        assert elastic_runtime.notice() == deadline
        assert elastic_runtime.notice() == deadline
        assert told == [Notice(deadline, ("worker-1",), mine=True, everyone=False)]

    def test_notice_does_without_a_callback(self, agent: Agent) -> None:
        deadline = utc_now().replace(microsecond=0) + timedelta(seconds=30)
        agent.say(CommitDeadline(deadline))
        assert elastic_runtime.notice() == deadline


def test_without_an_agent_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    link = RankLink(None)
    alone = Leaving(link, "")
    monkeypatch.setattr(leaving, "_shared", lambda: alone)
    monkeypatch.setattr(leaving, "shared_link", lambda: link)
    elastic_runtime.on_notice(lambda _: pytest.fail("nobody leaves"))
    leaving.call_back()
    assert elastic_runtime.notice() is None
