"""Figures of a worker's own GPUs, by libraries that are played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from elastic_runtime.agent.hardware import ANSWER_TIMEOUT, FAILURES, Gpus
from elastic_runtime.run.status_figures import GpuFigures

GIB = 1024**3


class NVMLError(Exception):
    pass


class PlayedNvml:
    """Two GPUs, the second with a MIG device."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.inits = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "MIG-c":
            raise NVMLError("not found")
        return "mig"

    def nvmlDeviceGetUUID(self, handle: str) -> str | bytes:  # noqa: N802
        return {"gpu0": "GPU-aaaa-1", "gpu1": b"GPU-bbbb-2"}[handle]

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return f"H100 {handle}\x1b[2J"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if handle == "mig":
            raise NVMLError("not supported")
        return SimpleNamespace(gpu=40 if handle == "gpu0" else 60)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(used=GIB, total=80 * GIB)


AMD = SimpleNamespace(
    amdsmi_init=lambda: None,
    amdsmi_get_processor_handles=lambda: ["one", "two"],
    amdsmi_get_gpu_device_uuid=lambda handle: f"{handle}-uuid",
    amdsmi_get_gpu_asic_info=lambda _: {"market_name": "MI300X"},
    amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 7 if handle == "one" else "N/A"},
    amdsmi_get_gpu_vram_usage=lambda _: {"vram_used": 1024, "vram_total": 2048},
)


def answer(gpus: Gpus) -> tuple[GpuFigures, ...]:
    gpus.latest()
    gpus.close()
    figures = gpus.latest()
    gpus.close()
    return figures


@pytest.mark.parametrize(
    ("names", "percents"),
    [
        (["0", "1"], [40.0, 60.0]),
        (["1"], [60.0]),
        (["7"], []),
        (["GPU-bbbb"], [60.0]),
        (["GPU-cccc"], []),
        (["MIG-c"], [None]),
    ],
)
def test_nvidias_own_alone_by_whatever_name(names: list[str], percents: list[float | None]) -> None:
    nvml = PlayedNvml()
    figures = answer(Gpus({"CUDA_VISIBLE_DEVICES": names}, {"pynvml": nvml}.__getitem__))
    assert [each.percent for each in figures] == percents
    assert [each.index for each in figures] == list(range(len(percents)))
    assert all((each.memory_bytes, each.memory_total_bytes) == (GIB, 80 * GIB) for each in figures)
    assert all(each.name.isprintable() for each in figures)
    assert nvml.inits == 1


@pytest.mark.parametrize(("names", "percents"), [(["0", "1"], [7.0, None]), (["GPU-two-uuid"], [None]), (["5"], [])])
def test_amds(names: list[str], percents: list[float | None]) -> None:
    figures = answer(Gpus({"HIP_VISIBLE_DEVICES": names}, {"amdsmi": AMD}.__getitem__))
    assert [each.percent for each in figures] == percents
    assert all(each == GpuFigures(at, "MI300X", percents[at], GIB, 2 * GIB) for at, each in enumerate(figures))


def test_without_a_gpu_no_library_is_looked_for() -> None:
    def find(name: str) -> Any:
        raise AssertionError(name)

    assert answer(Gpus({"ZE_AFFINITY_MASK": ["0"]}, find)) == ()


def test_without_a_library_there_are_no_figures_and_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def find(name: str) -> Any:
        asked.append(name)
        raise ModuleNotFoundError(name)

    gpus = Gpus({"CUDA_VISIBLE_DEVICES": ["0"]}, find)
    assert answer(gpus) == answer(gpus) == ()
    assert asked == ["pynvml"]
    assert not caplog.records


def test_a_library_that_fails_is_not_asked_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def find(name: str) -> Any:
        asked.append(name)
        raise RuntimeError("the driver does not match\x1b[2J")

    gpus = Gpus({"CUDA_VISIBLE_DEVICES": ["0"]}, find)
    for _ in range(3 * FAILURES):
        assert answer(gpus) == ()
    assert len(asked) == FAILURES
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().isprintable()


class TestAHangingLibrary:
    @pytest.fixture
    def stuck(self) -> Callable[[str], Any]:
        self.free, self.asked = threading.Event(), 0

        def find(name: str) -> Any:
            self.asked += 1
            self.free.wait()
            raise RuntimeError(name)

        return find

    def test_holds_nobody_up_and_is_given_up(
        self, stuck: Callable[[str], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        now = 0.0
        gpus = Gpus({"CUDA_VISIBLE_DEVICES": ["0"]}, stuck, lambda: now)
        assert gpus.latest() == gpus.latest() == ()
        now = ANSWER_TIMEOUT + 1
        for _ in range(3):
            assert gpus.latest() == ()
        assert [each.getMessage() for each in caplog.records] == [
            "figures of GPUs are not asked for any more: no answer in 10 s"
        ]
        self.free.set()
        gpus.close()
        assert gpus.latest() == ()
        assert self.asked == 1
