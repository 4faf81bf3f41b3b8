"""The rank's end of its line to the agent."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest

from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.rank_link import (
    MOST_LEAVING,
    AgentWord,
    CommitDeadline,
    Handover,
    MayEnd,
    Progress,
    RankLink,
    TrainingEnded,
    decode_rank_message,
    encode_rank_message,
)
from elastic_runtime.protocol.rank_sockets import RANK_FD, RANK_FD_INODE
from elastic_runtime.protocol.shards import ShardGiven, ShardWanted

WANTED = Handover("worker-1", datetime(2026, 1, 2, tzinfo=UTC))
LAST = CommitDeadline(datetime(2026, 1, 3, tzinfo=UTC))


@pytest.fixture
def pair() -> Iterator[tuple[RankLink, socket.socket]]:
    ours, agents = socket.socketpair()
    link = RankLink(ours)
    with agents:
        yield link, agents
    link.close()
    link.close()


def heard(link: RankLink) -> list[AgentWord]:
    """What is new."""
    words: list[AgentWord] = []
    link.hearers.append(words.append)
    link.hear()
    link.hearers.remove(words.append)
    return words


def test_sends_lines(pair: tuple[RankLink, socket.socket]) -> None:
    link, agent = pair
    link.send(Progress(7))
    link.send(Progress(8))
    assert list(LineReader().feed(agent.recv(65536))) == [
        {"type": "progress", "step": 7},
        {"type": "progress", "step": 8},
    ]


def test_hears_what_was_said_since_and_never_waits(pair: tuple[RankLink, socket.socket]) -> None:
    link, agent = pair
    assert heard(link) == []
    line = encode_rank_message(WANTED)
    agent.sendall(line + b'{"type":"colour"}\n' + line[:10])
    assert heard(link) == [WANTED]
    assert heard(link) == []
    agent.sendall(line[10:] + encode_rank_message(LAST) + encode_rank_message(CommitDeadline(None)))
    assert heard(link) == [WANTED, LAST, CommitDeadline(None)]


def test_a_signals_handler_that_interrupts_it_does_not_wait_for_its_own_thread(
    pair: tuple[RankLink, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, agent = pair
    link._read_ahead = queue.SimpleQueue()  # As with a thread, which has not come to it.
    feed = link._lines.feed

    def interrupted(data: bytes) -> Iterator[dict[str, object]]:
        link.hear()
        return feed(data)

    monkeypatch.setattr(link._lines, "feed", interrupted)
    agent.sendall(encode_rank_message(WANTED))
    hearing = threading.Thread(target=link.hear, daemon=True)
    hearing.start()
    hearing.join(30.0)
    assert (hearing.is_alive(), [*link.leaving]) == (False, ["worker-1"])


def test_remembers_who_leaves_and_no_more_than_so_many(pair: tuple[RankLink, socket.socket]) -> None:
    link, agent = pair
    later = datetime(2026, 1, 4, tzinfo=UTC)
    agent.sendall(encode_rank_message(WANTED) + encode_rank_message(LAST))
    link.hear()
    for number in range(MOST_LEAVING + 5):
        agent.sendall(encode_rank_message(Handover(f"other-{number}", later)))
        link.hear()
    agent.sendall(encode_rank_message(Handover("worker-1", later)))
    link.hear()
    assert (len(link.leaving), link.leaving["worker-1"], link.last_commit) == (MOST_LEAVING, later, LAST)


def test_an_agent_that_is_gone_is_no_error(pair: tuple[RankLink, socket.socket]) -> None:
    link, agent = pair
    agent.close()
    assert heard(link) == []
    link.send(Progress(1))
    assert heard(link) == []


def test_sending_to_one_that_is_gone_is_none_either(pair: tuple[RankLink, socket.socket]) -> None:
    link, agent = pair
    agent.close()
    link.send(Progress(1))
    link.send(Progress(2))
    assert heard(link) == []


def test_is_found_in_the_environment_and_leaves_its_descriptor_to_others() -> None:
    ours, agent = socket.socketpair()
    with ours, agent:
        for step in (1, 2):
            link = RankLink.from_environment({RANK_FD: str(ours.fileno())})
            assert link.connected
            link.send(Progress(step))
            link.close()
        assert len(list(LineReader().feed(agent.recv(65536)))) == 2


def test_a_process_that_inherits_the_variables_alone_has_no_agent() -> None:
    """There the number is free, or that of another file."""
    ours, agent = socket.socketpair()
    with ours, agent:
        number, inode = str(ours.fileno()), str(os.fstat(ours.fileno()).st_ino)
        link = RankLink.from_environment({RANK_FD: number, RANK_FD_INODE: inode})
        assert link.connected
        link.close()
        assert not RankLink.from_environment({RANK_FD: str(agent.fileno()), RANK_FD_INODE: inode}).connected
    assert not RankLink.from_environment({RANK_FD: number, RANK_FD_INODE: inode}).connected


def test_without_an_agent_nobody_listens() -> None:
    link = RankLink.from_environment({})
    assert not link.connected
    link.send(Progress(1))
    assert heard(link) == []


@pytest.mark.parametrize("has_thread", [False, True])
def test_a_rank_that_has_ended_its_training_waits_until_it_may_go_on(has_thread: bool) -> None:
    ours, theirs = socket.socketpair()
    noticed: list[bool] = []
    with ours:
        ours.settimeout(10.0)
        link = RankLink(theirs)
        if has_thread:
            link.set_engine_callbacks(lambda _word: None, lambda: None, lambda: noticed.append(True))
        looks: list[int] = []

        def look() -> None:
            looks.append(1)
            if len(looks) == 3:
                ours.sendall(encode_rank_message(MayEnd()))

        link.end_together(12, look)
        assert decode_rank_message(json.loads(ours.recv(4096).splitlines()[0])) == TrainingEnded(12)
        assert len(looks) >= 3
        assert noticed == []
        link.close()


def test_a_rank_without_an_agent_ends_at_once() -> None:
    RankLink(None).end_together(12, lambda: None)


def test_a_rank_takes_the_answer_to_its_request_alone() -> None:
    ours, agents = socket.socketpair()
    link, wanted = RankLink(ours), ShardWanted("step", "digest", step=3, size=8, number=0)

    def answer() -> None:
        lines = LineReader()
        for number, positions in enumerate(([4, 4], [5])):  # Two answers: it was repeated.
            (asked,) = lines.feed(agents.recv(65536))
            assert asked == {"type": "shard_wanted", **asdict(replace(wanted, serial=number + 1))}
            for position in positions:
                agents.sendall(encode_rank_message(ShardGiven(number + 1, position)))

    with agents, ThreadPoolExecutor() as threads:
        answered = threads.submit(answer)
        assert [link.take_shard(wanted).position for _ in range(2)] == [4, 5]
        answered.result()
        agents.shutdown(socket.SHUT_RDWR)
        link.hear()
        with pytest.raises(ConnectionError):
            link.take_shard(wanted)
    link.close()
