"""What becomes of NCCL's communicators when a world breaks, with played groups."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from elastic_runtime.engines.torch.communicators import abort_communicators, complete_collectives


class Backend:
    """Of a process group."""

    def __init__(self, name: str, said: list[str], error: str = "") -> None:
        self._name, self._said, self._error = name, said, error

    def name(self) -> str:
        return self._name

    def abort(self) -> None:
        self._said.append("abort")
        if self._error:
            raise RuntimeError(self._error)

    def _group_start(self) -> None:
        self._said.append("start")

    def _group_end(self) -> None:
        self._said.append("end")


class Group:
    """With a backend for GPUs, or without."""

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend

    def _get_backend(self, device: torch.device) -> Backend:
        if device.type != "cuda" or self._backend is None:
            raise RuntimeError(f"no backend for {device}")
        return self._backend


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[Group, str]:
    groups: dict[Group, str] = {}
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(distributed_c10d._world, "_pg_names", groups, raising=False)
    monkeypatch.setattr(type(distributed_c10d._world), "pg_names", groups)
    return groups


def test_all_are_aborted_at_once_and_others_are_left(there: dict[Group, str]) -> None:
    said: list[str] = []
    backends = [Backend("nccl", said), Backend("gloo", said), None, Backend("nccl", said)]
    there.update({Group(backend): str(number) for number, backend in enumerate(backends)})
    abort_communicators()
    assert said == ["start", "abort", "abort", "end"]


def test_one_that_does_not_end_leaves_the_others_to_end(
    there: dict[Group, str], caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    there.update({Group(Backend("nccl", said, "unhandled system error")): "0", Group(Backend("nccl", said)): "1"})
    with caplog.at_level(logging.WARNING):
        abort_communicators()
    assert said == ["start", "abort", "abort", "end"]
    assert caplog.messages == ["a communicator of NCCL does not end: unhandled system error"]


def test_without_nccl_nothing_is_touched(there: dict[Group, str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    there[Group(Backend("nccl", said))] = "0"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    abort_communicators()
    assert said == []


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """GPUs whose current streams were waited for. There are three; this process uses the first and the last."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index != 1, raising=False)
    stream = lambda index: SimpleNamespace(synchronize=lambda: found.append(index))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    return found


def test_with_nccl_the_gpus_in_use_are_waited_for(there: dict[Group, str], waited: list[int]) -> None:
    there[Group(Backend("nccl", []))] = "0"
    assert complete_collectives()
    assert waited == [0, 2]


def test_without_nccl_no_gpu_is_waited_for(there: dict[Group, str], waited: list[int]) -> None:
    there.update({Group(Backend("gloo", [])): "0", Group(None): "1"})
    assert not complete_collectives()
    assert waited == []
