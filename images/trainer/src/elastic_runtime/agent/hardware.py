"""Figures of this worker: what its processes use, its network interfaces carry, and its GPUs do."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil

from elastic_runtime.agent.devices import Pools
from elastic_runtime.printable import printable
from elastic_runtime.run.status import MAX_GPU_NAME
from elastic_runtime.run.status_figures import GpuFigures

LOOPBACK = "lo"


class Usage:
    """Processor time and memory of a changing set of processes, by psutil."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def measure(self, pids: Iterable[int]) -> tuple[float, int]:
        """Percent of one core since the last call, and resident bytes, summed over these processes."""
        self._known = {pid: self._known.get(pid) or process for pid in pids if (process := _process(pid))}
        cpu, memory = 0.0, 0
        for process in self._known.values():
            try:
                cpu += process.cpu_percent()
                memory += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return round(cpu, 1), memory


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped that process."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _counters() -> Mapping[str, Any]:
    counters: Mapping[str, Any] = psutil.net_io_counters(pernic=True)
    return counters


class Network:
    """Bytes a second of all interfaces but the loopback, by psutil; in a pod these are its own.

    Args:
        counters: bytes received and sent so far, by interface.
        clock: monotonic seconds.
    """

    def __init__(
        self, counters: Callable[[], Mapping[str, Any]] = _counters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters, self._clock = counters, clock
        self._before: tuple[float, int, int] | None = None

    def measure(self) -> tuple[float | None, float | None]:
        """Received and sent since the last call; None at the first one, after a counter went back, or when unknown."""
        try:
            cards = [each for name, each in self._counters().items() if name != LOOPBACK]
        except OSError:  # No /proc/net here.
            return None, None
        now = self._clock(), sum(each.bytes_recv for each in cards), sum(each.bytes_sent for each in cards)
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None, None
        return _rate(before[1], now[1], now[0] - before[0]), _rate(before[2], now[2], now[0] - before[0])


def _rate(before: int, after: int, seconds: float) -> float | None:
    """An interface may have gone, and its bytes with it."""
    return float(round((after - before) / seconds)) if after >= before else None


# Figures of this worker's own GPUs, by their vendors' libraries where they are installed.
#
# Both are optional, imported when first asked, in a thread: a driver that hangs must not hold up the agent. What is
# called of them (tests/unit/runtime/test_gpus.py plays them):
#
# * NVIDIA's NVML (nvidia-ml-py, pynvml): nvmlInit; nvmlDeviceGetCount, nvmlDeviceGetHandleByIndex,
#   nvmlDeviceGetHandleByUUID (of a MIG device), nvmlDeviceGetUUID; nvmlDeviceGetName,
#   nvmlDeviceGetUtilizationRates(handle).gpu, nvmlDeviceGetMemoryInfo(handle).used and .total.
# * AMD's SMI (amdsmi): amdsmi_init, amdsmi_get_processor_handles, amdsmi_get_gpu_device_uuid; market_name of
#   amdsmi_get_gpu_asic_info, gfx_activity of amdsmi_get_gpu_activity, vram_used and vram_total (MiB) of
#   amdsmi_get_gpu_vram_usage.

log = logging.getLogger(__name__)

MOST = 64
"""GPUs of one worker that are told of."""
ANSWER_TIMEOUT = 10.0
"""Seconds for an answer; after one that took longer, nothing is asked any more."""
FAILURES = 3
"""In a row, after which nothing is asked any more."""
_MIB = 1024 * 1024


class Gpus:
    """The figures, as of a moment ago: asked for in a thread, one question at a time.

    Args:
        pools: this worker's devices, as :func:`.devices.pools` finds them.
        find: imports a library by name; raises ImportError.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pools: Pools,
        find: Callable[[str], Any] = importlib.import_module,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._questions = list(_questions(pools, find))
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._failures = 0
        self._answer: tuple[GpuFigures, ...] = ()

    def latest(self) -> tuple[GpuFigures, ...]:
        """Return the last answer, without blocking. None: there is none yet, or the library is not asked any more."""
        if not self._questions:
            return ()
        if self._thread is None or not self._thread.is_alive():
            self._asked = self._clock()
            self._thread = threading.Thread(target=self._ask, name="gpus", daemon=True)
            self._thread.start()
        elif self._clock() - self._asked > ANSWER_TIMEOUT:
            self._give_up(f"no answer in {ANSWER_TIMEOUT:.0f} s")
        return self._answer

    def close(self) -> None:
        """Wait a moment for an answer that is under way."""
        if self._thread is not None:
            self._thread.join(0.2)

    def _ask(self) -> None:
        questions = self._questions
        try:
            figures = [each for question in questions for each in question()]
        except ImportError:
            self._questions = []  # Nothing is wrong: who wants figures installs the library.
        except Exception as error:  # noqa: BLE001  # a library's own errors, of no common class; figures are all that is lost
            self._failures += 1
            if self._failures >= FAILURES:
                self._give_up(f"{type(error).__name__}: {printable(error, 200)}")
        else:
            self._failures = 0
            if self._questions:
                self._answer = tuple(figures[:MOST])

    def _give_up(self, why: str) -> None:
        self._questions, self._answer = [], ()
        log.warning("figures of GPUs are not asked for any more: %s", why)


def _questions(pools: Pools, find: Callable[[str], Any]) -> Iterable[Callable[[], Sequence[GpuFigures]]]:
    if names := pools.get("CUDA_VISIBLE_DEVICES"):
        yield _Nvidia(names, find)
    if names := pools.get("HIP_VISIBLE_DEVICES") or pools.get("ROCR_VISIBLE_DEVICES"):
        yield _Amd(names, find)


class _Nvidia:
    def __init__(self, names: Sequence[str], find: Callable[[str], Any]) -> None:
        self._names, self._find = names, find
        self._handles: list[Any] | None = None

    def __call__(self) -> list[GpuFigures]:
        nvml = self._find("pynvml")
        if self._handles is None:
            nvml.nvmlInit()
            found = [_handle(nvml, name) for name in self._names]
            self._handles = [handle for handle in found if handle is not None]
        return [self._figures(nvml, index, handle) for index, handle in enumerate(self._handles)]

    @staticmethod
    def _figures(nvml: Any, index: int, handle: Any) -> GpuFigures:
        try:
            percent = _percent(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except nvml.NVMLError:  # A MIG device has no such figure.
            percent = None
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuFigures(index, _name(nvml.nvmlDeviceGetName(handle)), percent, int(memory.used), int(memory.total))


def _handle(nvml: Any, name: str) -> Any:
    """Of a device as CUDA_VISIBLE_DEVICES names it: by its index, the begin of its UUID, or a MIG device's UUID."""
    count = nvml.nvmlDeviceGetCount()
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name)) if int(name) < count else None
    if name.startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    return next((each for each in handles if _text(nvml.nvmlDeviceGetUUID(each)).startswith(name)), None)


class _Amd:
    def __init__(self, names: Sequence[str], find: Callable[[str], Any]) -> None:
        self._names, self._find = names, find
        self._handles: list[Any] | None = None

    def __call__(self) -> list[GpuFigures]:
        smi = self._find("amdsmi")
        if self._handles is None:
            smi.amdsmi_init()
            every = smi.amdsmi_get_processor_handles()
            ids = {str(index): each for index, each in enumerate(every)}
            ids |= {f"GPU-{_text(smi.amdsmi_get_gpu_device_uuid(each))}".lower(): each for each in every}
            self._handles = [ids[name.lower()] for name in self._names if name.lower() in ids]
        return [self._figures(smi, index, handle) for index, handle in enumerate(self._handles)]

    @staticmethod
    def _figures(smi: Any, index: int, handle: Any) -> GpuFigures:
        memory: Mapping[str, int] = smi.amdsmi_get_gpu_vram_usage(handle)
        activity = smi.amdsmi_get_gpu_activity(handle).get("gfx_activity")
        name = _name(smi.amdsmi_get_gpu_asic_info(handle).get("market_name", ""))
        percent = _percent(activity) if isinstance(activity, int | float) else None  # "N/A" where there is none
        return GpuFigures(index, name, percent, memory["vram_used"] * _MIB, memory["vram_total"] * _MIB)


def _percent(value: float) -> float:
    return float(min(100, max(0, value)))


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # of older ones, bytes


def _name(value: str | bytes) -> str:
    return printable(_text(value), MAX_GPU_NAME)
