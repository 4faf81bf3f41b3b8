"""A compromised worker that speaks to the engine: for ranks of others, or more than can be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_runtime.engines.base import SessionFact, SessionState
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.launcher import agent_reports
from elastic_runtime.launcher.agent_reports import AgentReports
from elastic_runtime.launcher.worker_pool import WorkerPool
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.rank_link import EngineWord, TotalSteps, encode_rank_message
from elastic_runtime.protocol.shards import ShardGiven
from elastic_runtime.protocol.wire import GiveShard, Hello, RankSaid, RankState
from elastic_runtime.run.spec import RecoverySpec

WORD = decode_line(encode_rank_message(EngineWord({"type": "peer_lost", "world": 1})))

SHARD = {"type": "shard_wanted", "stream": "step", "digest": "x", "step": 1, "size": 4, "number": 0}


class Session:
    fact = SessionFact(SessionState.SETTLED, ("worker-0.0.0",), world=1)

    def __init__(self) -> None:
        self.heard_of: list[str] = []
        self.rank_of = {"worker-0.0.0": 0}

    def heard(self, rank_id: str, _word: Any) -> None:
        self.heard_of.append(rank_id)


@pytest.fixture
def scene() -> SimpleNamespace:
    """A launcher's reports, with worker-0, which runs its rank."""
    session, pool = Session(), WorkerPool(RecoverySpec(), 1.0, lambda: 0.0)
    no: Any = SimpleNamespace()
    told: list[Any] = []
    record: Any = SimpleNamespace(rank_said=lambda message, _worker: told.append(message))
    platform: Any = SimpleNamespace(workers=SimpleNamespace(came=lambda _worker: None))
    reports = AgentReports(pool, record, no, platform, lambda: session, lambda: 1, lambda: None, no, no, no, no, no)  # type: ignore[arg-type, return-value]
    sent: list[Any] = []
    connection = SimpleNamespace(hello=Hello("worker-0", "node", 1, 1, "lo"), send=sent.append, sent=sent)
    loop = SimpleNamespace(time=lambda: 0.0, call_later=lambda _seconds, _call: SimpleNamespace(when=lambda: 1.0))
    return SimpleNamespace(session=session, told=told, pool=pool, reports=reports, connection=connection, loop=loop)


def come(scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_reports.asyncio, "get_running_loop", lambda: scene.loop)
    scene.reports.came(scene.connection)
    scene.pool.workers["worker-0"].ranks["worker-0.0.0~0"] = 1


def test_a_rank_that_runs_is_heard(scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    come(scene, monkeypatch)
    scene.reports.said(scene.connection, RankSaid("worker-0.0.0~0", WORD))
    assert scene.session.heard_of == ["worker-0.0.0"]


def test_nobody_speaks_for_a_rank_that_does_not_run_there(
    scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    come(scene, monkeypatch)
    told = [WORD, {"type": "busy", "what": "x", "seconds": 9.0}, {"type": "standing", "commits": 1}, SHARD]
    told.append({"type": "own_time", "seconds": 9.0, "waited": 1.0, "steps": 5})
    for process in ("worker-1.0.0~0", "worker-0.0.1~0"):
        for message in (*(RankSaid(process, word) for word in told), RankState(process, True)):
            with pytest.raises(InvalidDocument, match="no rank"):
                scene.reports.said(scene.connection, message)
    assert scene.session.heard_of == []


def test_only_a_rank_of_the_world_gets_shards_and_only_possible_ones(
    scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    come(scene, monkeypatch)
    process, sent = "worker-0.0.0~0", scene.connection.sent
    scene.reports.said(scene.connection, RankSaid(process, {**SHARD, "serial": 7}))
    assert sent == [GiveShard(process, ShardGiven(7, 0))]
    impossible: list[dict[str, Any]] = [
        {"step": 10**30}, {"size": 0}, {"size": 10**6}, {"number": -1}, {"number": 5}, {"serial": -1},
        {"stream": "x" * 200}, {"digest": "\x1b[2J"}, {"step": "1"}, {"lease": -1}, {"lease": 1e9}, {"lease": "1"},
        {"seconds": -1}, {"seconds": 61},
    ]  # fmt: skip
    for fields in impossible:
        with pytest.raises(InvalidDocument):
            scene.reports.said(scene.connection, RankSaid(process, {**SHARD, **fields}))
    scene.session.rank_of = {}
    scene.reports.said(scene.connection, RankSaid(process, SHARD))
    assert len(sent) == 1


def test_a_flood_is_refused(scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_reports, "ENGINE_WORDS_AT_ONCE", 100.0)
    come(scene, monkeypatch)

    def flood() -> None:
        for _ in range(200):
            scene.reports.said(scene.connection, RankSaid("worker-0.0.0~0", WORD))

    with pytest.raises(InvalidDocument, match="more words"):
        flood()
    assert 90 < len(scene.session.heard_of) <= 101


@pytest.mark.parametrize(("rank", "heard"), [(0, 1), (1, 0)])
def test_only_rank_0_tells_how_many_steps_there_are(
    scene: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, rank: int, heard: int
) -> None:
    come(scene, monkeypatch)
    scene.session.rank_of["worker-0.0.0"] = rank
    word = decode_line(encode_rank_message(TotalSteps(100, by_script=True)))
    scene.reports.said(scene.connection, RankSaid("worker-0.0.0~0", word))
    assert scene.told == [TotalSteps(100, by_script=True)] * heard
