"""What report() sends, and what it leaves out."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import horovod.torch.mpi_ops as hvd
import numpy as np
import pytest
import torch

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol import batched_lines
from elastic_runtime.protocol.rank_link import RankLink, Returned
from elastic_runtime.torch import report
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training import reporting
from elastic_runtime.training.observing import Observing


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    agent, rank_end = socket.socketpair()
    link = RankLink(rank_end)
    monkeypatch.setattr(reporting, "shared_link", lambda: link)
    monkeypatch.setattr(batched_lines, "BATCHING", 0.0)
    monkeypatch.setattr(reporting, "_warned", set())
    monkeypatch.setattr(reporting, "_total", [])
    monkeypatch.setattr(hvd, "is_initialized", lambda: True)
    monkeypatch.setattr(hvd, "rank", lambda: 0)
    yield agent
    link.close()
    agent.close()


def heard(agent: socket.socket) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in agent.recv(65536, socket.MSG_DONTWAIT).splitlines()]
    except BlockingIOError:
        return []


def test_numbers_and_single_tensors_are_sent(agent: socket.socket) -> None:
    report(7, loss=torch.tensor([0.5]), accuracy=1)
    assert heard(agent)[-1] == {"type": "metrics", "values": {"loss": 0.5, "accuracy": 1.0}, "step": 7}


def test_a_script_without_a_state_tells_its_progress(agent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Observing({})
    monkeypatch.setattr(reporting, "observing", lambda: here)
    report(7)
    assert heard(agent) == [{"type": "progress", "step": 7}]
    here.committed(21, TORCH)  # There is a state, and its steps are the progress.
    report(3, loss=0.5)
    assert [message["type"] for message in heard(agent)] == ["metrics"]


def test_what_is_reported_at_each_step_waits_for_more_only_in_a_script_with_a_state(
    agent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without may end by os._exit at any moment, and no state of ours says a last word there."""
    monkeypatch.setattr(batched_lines, "BATCHING", 600.0)
    here = Observing({})
    monkeypatch.setattr(reporting, "observing", lambda: here)
    for step in (1, 2):
        report(step, of=2, loss=0.5)
    assert [message.get("step") for message in heard(agent) if message["type"] == "metrics"] == [1, 2]
    here.committed(21, TORCH)
    for step in (22, 23, 24):
        report(step, loss=0.5)
    assert [message["step"] for message in heard(agent)] == [22]
    reporting.shared_link().send(Returned("{}"))
    assert [message.get("step") for message in heard(agent)] == [23, 24, None]


def test_the_number_of_steps_is_sent_when_it_changes(agent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Observing({})
    monkeypatch.setattr(reporting, "observing", lambda: here)
    here.committed(21, TORCH)
    for total in (50, 50, np.int64(60)):
        report(3, of=total)
    assert heard(agent) == [{"type": "total_steps", "steps": steps, "by_script": True} for steps in (50, 60)]


@pytest.mark.parametrize(
    "total", [0, -5, True, 2.5, "100", float("nan"), 2**53 + 1, pytest.param(10**5000, id="huge"), [3]]
)
def test_a_number_of_steps_that_is_none_is_refused(agent: socket.socket, total: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"^report\.of: .* is not a number of steps"):
        report(3, of=total)
    assert heard(agent) == []


def test_values_belong_to_the_step_that_was_committed_last(
    agent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Observing({})
    monkeypatch.setattr(reporting, "observing", lambda: here)
    report(loss=1.0)
    here.committed(21, TORCH)
    report(loss=0.5)
    assert [message.get("step") for message in heard(agent)] == [None, 21]


def test_what_is_not_finite_is_left_out_and_said_once(agent: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        report(loss=float("nan"), accuracy=0.25)
        report(loss=float("inf"))
    assert [message["values"] for message in heard(agent)] == [{"accuracy": 0.25}] * 2
    assert [record.message for record in caplog.records] == [
        "report: loss is nan and is left out; further ones are left out silently"
    ]


def test_other_ranks_say_nothing(agent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hvd, "rank", lambda: 1)
    report(loss=1.0)
    assert heard(agent) == []


def test_what_is_no_number_is_refused_by_name(agent: socket.socket) -> None:
    with pytest.raises(InvalidSettings, match=r"^report\.loss: .* is not a number"):
        report(loss=torch.zeros(2))


def test_without_an_agent_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "shared_link", lambda: RankLink(None))
    report(loss=1.0)
