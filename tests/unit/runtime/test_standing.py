"""What a rank tells of where it stands, and of what it is busy with."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.net.framing import LineReader
from elastic_runtime.protocol.plausible import check_rank
from elastic_runtime.protocol.rank_link import (
    MAX_PLACE,
    AskStanding,
    Busy,
    RankLink,
    RankMessage,
    Standing,
    decode_rank_message,
    encode_rank_message,
)
from elastic_runtime.run.waits import LONGEST_BUSY
from elastic_runtime.script import standing
from elastic_runtime.script.standing import Ledger, busy
from elastic_runtime.torch import DurableState
from elastic_runtime.training.state import durable
from tests.unit.runtime.durable_bench import step, training

SOON = 20.0


@dataclass
class Rank:
    """A rank's ledger, whose agent notes what it hears, on a clock that a test sets."""

    now: float = 100.0
    told: list[RankMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link = RankLink(None)
        self.link.listener = self.told.append
        self.ledger = Ledger(self.link, lambda: self.now)

    def answer(self) -> Standing:
        self.ledger.answer()
        last = self.told[-1]
        assert isinstance(last, Standing)
        return last

    @property
    def busy(self) -> list[Busy]:
        """What it has said of that, which is forgotten."""
        found = [each for each in self.told if isinstance(each, Busy)]
        self.told.clear()
        return found


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    made = Rank()
    monkeypatch.setattr(standing, "ledger", lambda: made.ledger)
    return made


def test_tells_what_it_has_begun_in_its_world(rank: Rank) -> None:
    rank.ledger.collectives = lambda: 7
    rank.ledger.in_world()
    rank.ledger.commits(19)
    rank.ledger.commits(20)
    rank.now += 3.0
    answer = rank.answer()
    assert (answer.commits, answer.collectives, answer.step, answer.idle) == (2, 7, 20, 3.0)
    rank.ledger.in_world()
    assert rank.answer().commits == 0
    assert rank.answer().idle == 0.0


def test_an_engine_whose_world_ends_counts_nothing(rank: Rank) -> None:
    def ends() -> int:
        raise RuntimeError("the group is gone")

    rank.ledger.collectives = ends
    assert rank.answer().collectives is None


class Standstill:
    """A thread that trains, in another place each."""

    def __init__(self, rank: Rank, stand: Callable[[threading.Event], object]) -> None:
        self._go, self._stands = threading.Event(), threading.Event()
        self._rank, self._stand = rank, stand
        self._thread = threading.Thread(target=self._train)

    def _train(self) -> None:
        self._rank.ledger.in_world()
        self._stands.set()
        self._stand(self._go)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._stands.wait(SOON)

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._thread.join(SOON)


def until_at(rank: Rank, place: str) -> Standing:
    while place not in (answer := rank.answer()).place:
        assert len(rank.told) < 10**6
    return answer


def code(module: str, file: str, text: str, **names: Any) -> Any:
    """The last function of a module of that name."""
    made: dict[str, Any] = {"__name__": module, **names}
    exec(compile(text, file, "exec"), made)
    return list(made.values())[-1]


def test_says_at_which_line_of_the_script_it_works(rank: Rank) -> None:
    with Standstill(rank, code("__main__", "/srv/train.py", "\n\ndef load(go):\n    go.wait(20)\n")):
        answer = until_at(rank, "train.py:4")
    assert not answer.waits


def test_says_that_it_waits_for_others(rank: Rank) -> None:
    wait = code("torch.distributed.distributed_c10d", "c10d.py", "def all_reduce(go):\n    go.wait(20)\n")
    train = code("__main__", "/srv/train.py", "def train(go):\n    all_reduce(go)\n", all_reduce=wait)
    with Standstill(rank, train):
        while not until_at(rank, "train.py:2").waits:
            assert len(rank.told) < 10**6


def test_a_loader_of_an_installed_package_waits_for_no_rank(rank: Rank) -> None:
    load = code("torch.utils.data.dataloader", "dataloader.py", "def load(go):\n    go.wait(20)\n")
    train = code("package.train", "/site-packages/package/train.py", "def train(go):\n    load(go)\n", load=load)
    run = code("elastic_runtime.engines.through_worlds", "worlds.py", "def run(go):\n    train(go)\n", train=train)
    with Standstill(rank, run):
        assert not until_at(rank, "train.py:2").waits


def test_says_from_where_the_function_was_called(rank: Rank) -> None:
    text = "def mean(go):\n    go.wait(20)\n\ndef train(go):\n    mean(go)\n"
    with Standstill(rank, code("__main__", "/srv/train.py", text)):
        assert until_at(rank, "train.py:2").place.startswith("train.py:2 < train.py:5")


@pytest.mark.usefixtures("horovod")
def test_a_commit_of_a_state_counts(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "ledger", lambda: rank.ledger)
    state = DurableState(**training(), link=RankLink(None))
    step(state)
    state.commit()
    assert (rank.answer().commits, rank.answer().step) == (1, 1)


def test_answers_in_the_thread_that_reads_and_tells_the_engine_nothing() -> None:
    ours, agents = socket.socketpair()
    link, noticed = RankLink(ours), []
    link.set_engine_callbacks(lambda _: None, lambda: None, lambda: noticed.append("noticed"))
    Ledger(link).commits(5)
    with agents, contextlib.closing(link):
        agents.settimeout(SOON)
        agents.sendall(encode_rank_message(AskStanding()))
        found, reader = [], LineReader()
        while len(found) < 3:
            found += list(reader.feed(agents.recv(65536)))
    _tally, busy_now, answer = (decode_rank_message(each) for each in found)
    assert busy_now == Busy("", 0.0)
    assert isinstance(answer, Standing)
    assert (answer.commits, answer.step) == (1, 5)
    assert noticed == []


def test_is_busy_until_the_block_ends(rank: Rank) -> None:
    with busy("evaluation", at_most=timedelta(minutes=10)):
        assert rank.busy == [Busy("evaluation", 600.0)]
        rank.now += 60.0
    assert rank.busy == [Busy("", 0.0)]


def test_of_blocks_within_each_other_the_latest_limit_counts(rank: Rank) -> None:
    with busy("evaluation", at_most=100):
        with busy("loading", at_most=30):
            assert rank.busy == [Busy("evaluation", 100.0), Busy("evaluation", 100.0)]
        rank.now += 40.0
        with busy("metrics", at_most=90.0):
            assert rank.busy[-1] == Busy("metrics", 90.0)
        assert rank.busy == [Busy("evaluation", 60.0)]
    assert rank.busy == [Busy("", 0.0)]


def test_a_block_whose_time_is_over_says_so(rank: Rank) -> None:
    with busy("evaluation", at_most=10):
        rank.now += 11.0
        assert rank.answer() is not None
        assert rank.busy[-1] == Busy("evaluation", 0.0)


def test_is_busy_no_more_after_an_error(rank: Rank) -> None:
    with pytest.raises(KeyError), busy("evaluation", at_most=10):
        raise KeyError
    assert rank.busy[-1] == Busy("", 0.0)


def test_a_block_at_each_step_floods_nobody_and_the_answer_is_right(rank: Rank) -> None:
    for _ in range(1000):
        with busy("a step", at_most=10):
            rank.now += 0.001
    assert len(rank.busy) <= 2 * 21
    with busy("another", at_most=10):
        rank.answer()
        assert rank.busy[-1] == Busy("another", 10.0)


@pytest.mark.parametrize("at_most", [0, -1, LONGEST_BUSY + 1, float("nan"), float("inf"), True, None, "soon"])
def test_a_time_that_is_none_is_refused(rank: Rank, at_most: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"busy\.at_most"), busy("evaluation", at_most=at_most):
        pass
    assert rank.busy == []


@pytest.mark.parametrize("what", ["", "  ", None, 3])
def test_a_name_that_is_none_is_refused(rank: Rank, what: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"busy\.what"), busy(what, at_most=10):
        pass


def test_a_name_is_told_on_one_short_line(rank: Rank) -> None:
    with busy("evaluation\n::group::" + "x" * 100, at_most=10):
        [said] = rank.busy
    check_rank(said)
    assert len(said.what) == MAX_PLACE


@pytest.fixture
def hostile() -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(encode_rank_message(Standing(1, 2, 3, 4.0, True, "train.py:1")))
    return plain


@pytest.mark.parametrize(
    "changes",
    [
        {"commits": -1},
        {"commits": 10**30},
        {"collectives": -1},
        {"step": 10**30},
        {"idle": -1.0},
        {"idle": 10.0**30},
        {"place": "a\nb"},
        {"place": "x" * (MAX_PLACE + 1)},
        {"waits": 1},
    ],
)
def test_an_answer_that_cannot_be_is_refused(hostile: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument):
        check_rank(_read({**hostile, **changes}))


@pytest.mark.parametrize(
    "said",
    [
        {"seconds": -1.0},
        {"seconds": LONGEST_BUSY + 1},
        {"seconds": 1e300},
        {"what": "x" * (MAX_PLACE + 1)},
        {"what": "\x1b["},
    ],
)
def test_a_busy_rank_that_cannot_be_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument):
        check_rank(_read({"type": "busy", "what": "evaluation", "seconds": 1.0, **said}))


def _read(plain: dict[str, Any]) -> RankMessage:
    message = decode_rank_message(plain)
    assert message is not None
    return message
