"""Copies of GPUs' tensors beside the training: torch's streams are played, with queues that run when one waits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from elastic_runtime.torch.family import TorchFamily
from elastic_runtime.torch.host_copies import HostCopier
from elastic_runtime.training.state.copies import Loan, RenewedCopy, host_memory


class Stream:
    """What is put into it runs when somebody waits, in its order; what it waits for runs before."""

    def __init__(self, device: object = None) -> None:
        self.device = device
        self.queue: deque[Callable[[], object]] = deque()

    def run(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def wait_stream(self, other: Stream) -> None:
        self.queue.append(other.run)

    def wait_event(self, event: Event) -> None:
        event.synchronize()  # a main stream that runs everything at once


class Event:
    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "a thread that waits must not take a core"
        self.stream = Stream()

    def record(self, stream: Stream) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        self.stream.run()


class Gpus:
    """As ``torch.cuda``, for tensors of the processor."""

    Stream, Event = Stream, Event

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = Stream()
        self._inside: list[Stream] = []
        self.in_use: list[Tensor] = []
        real = torch._foreach_copy_

        def copy(copies: list[Tensor], sources: list[Tensor], non_blocking: bool = False) -> None:
            if self._inside:
                assert non_blocking
                self._inside[-1].queue.append(lambda: real(copies, sources))
            else:
                real(copies, sources)

        monkeypatch.setattr(torch, "_foreach_copy_", copy)
        monkeypatch.setattr(Tensor, "record_stream", lambda tensor, _: self.in_use.append(tensor))

    def current_stream(self, _: object) -> Stream:
        return self.main

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self._inside.append(stream)
        yield
        self._inside.pop()


class OnGpu(TorchFamily):
    """Whose tensors count as a GPU's."""

    def in_host_memory(self, tensor: Tensor) -> bool:
        del tensor
        return False


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    return Gpus(monkeypatch)


@pytest.fixture
def family(gpus: Gpus) -> TorchFamily:
    return OnGpu(HostCopier(gpus, "cpu"))


def lent(family: TorchFamily, copy: RenewedCopy) -> Loan:
    return host_memory(family, copy.lend())


def test_a_copy_is_complete_when_somebody_has_waited_and_not_before(family: TorchFamily, gpus: Gpus) -> None:
    copy = RenewedCopy(family)
    copy.renew({"w": torch.full((5,), 7.0), "step": 3})
    loan = lent(family, copy)
    assert loan.tree["step"] == 3
    loan.tree["w"].fill_(0)
    loan.wait()
    assert loan.tree["w"].tolist() == [7.0] * 5
    assert [tensor.data_ptr() for tensor in gpus.in_use] == [copy.newest["w"].data_ptr()]


def test_the_copy_begins_after_what_the_training_has_asked_for(family: TorchFamily, gpus: Gpus) -> None:
    copy = RenewedCopy(family)
    copy.renew({"w": torch.zeros(2)})
    gpus.main.queue.append(lambda: copy.newest["w"].fill_(1))
    loan = lent(family, copy)
    loan.wait()
    assert loan.tree["w"].tolist() == [1, 1]


def test_commits_go_on_over_the_same_memory_and_the_copy_has_what_was_there(family: TorchFamily) -> None:
    copy = RenewedCopy(family)
    copy.renew({"w": torch.ones(3)})
    place = copy.newest["w"].data_ptr()
    loans = []
    for value in (2.0, 3.0, 4.0):
        loans.append(lent(family, copy))
        copy.renew({"w": torch.full((3,), value)})
        assert copy.newest["w"].data_ptr() == place
    for loan, value in zip(loans, (1, 2, 3), strict=True):
        loan.wait()
        assert loan.tree["w"].tolist() == [value] * 3
    assert copy.newest["w"].tolist() == [4] * 3


def test_memory_that_cannot_be_page_locked_is_said_once_and_does_as_well(
    family: TorchFamily, caplog: pytest.LogCaptureFixture
) -> None:
    copy = RenewedCopy(family)
    copy.renew({"a": torch.ones(2), "b": torch.ones(2)})
    copy.reserve()
    loan = lent(family, copy)
    loan.wait()
    assert loan.tree["b"].tolist() == [1, 1]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "not page-locked: pin_memory=True requires" in caplog.text


def test_a_tree_partly_in_host_memory_is_copied_there_at_once(gpus: Gpus) -> None:
    copier = HostCopier(gpus, "meta")
    source: Any = torch.ones(2)
    copies = copier.begin([source])
    source.fill_(2)
    copies.wait()
    assert copies.tensors[0].tolist() == [1, 1]
    assert not gpus.in_use


def test_a_copy_into_new_memory_overwrites_nothing() -> None:
    overwritten: list[torch.device] = []
    copier: Any = SimpleNamespace(before_overwriting=overwritten.extend, made=lambda _devices: None)
    family = TorchFamily(copier)
    source = torch.ones(3)
    [copy] = family.copy([source], [None])
    assert overwritten == []
    family.copy([source], [copy])
    assert overwritten == [source.device]
