"""Copies of GPUs' tensors in host memory, made beside the training.

They are made on a stream of their own, into page-locked memory, since only so a copy runs while the GPU computes; the
training thread does no more than ask for them. What is overwritten later on that GPU is so only after them, which the
GPU's own queue sees to; nobody waits for them but who reads them. torch keeps page-locked memory for the next time.

After "Asynchronous execution", "CUDA streams" and "Use pinned memory buffers" in PyTorch's `CUDA semantics`_ notes. HIP
has the same names, so it is the same for AMD.

.. _CUDA semantics: https://pytorch.org/docs/stable/notes/cuda.html
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.training.family import HostCopies

_log = script_logger(__name__)


class HostCopier:
    """Copier to host memory, from all GPUs of this process.

    Args:
        gpus: has streams and events as ``torch.cuda`` has them.
        device_type: of the tensors that those are for.
    """

    def __init__(self, gpus: ModuleType | Any = torch.cuda, device_type: str = "cuda") -> None:
        self._gpus = gpus
        self._type = device_type
        self._streams: dict[torch.device, Any] = {}
        self._under_way: dict[torch.device, Any] = {}
        """The event behind the last copy of each."""
        self._written_on: dict[torch.device, Any] = {}
        """The stream on which what is to be copied was made last: another thread's current one may be another."""
        self._is_locking = True

    def begin(self, tensors: Sequence[Tensor]) -> HostCopies:
        """Copies of tensors of any device. Those that are on none of these GPUs are complete at once."""
        copies = [self.host_memory_like(tensor) for tensor in tensors]
        by_device = defaultdict[torch.device, list[tuple[Tensor, Tensor]]](list)
        for copy, tensor in zip(copies, tensors, strict=True):
            if self._is_ours(tensor):
                by_device[tensor.device].append((copy, tensor.detach()))
            else:
                copy.copy_(tensor)
        events = [self._begin(device, pairs) for device, pairs in by_device.items()]

        def wait() -> None:
            for event in events:
                event.synchronize()

        return HostCopies(copies, wait)

    def before_overwriting(self, devices: Iterable[torch.device]) -> None:
        """Make further work in the GPUs' current streams begin after the copies that were started."""
        for device in devices:
            if (event := self._under_way.pop(device, None)) is not None:
                self._gpus.current_stream(device).wait_event(event)

    def made(self, devices: Iterable[torch.device]) -> None:
        """Copies were just made on the current streams of these; :meth:`begin` may be called in another thread."""
        for device in devices:
            if device.type == self._type:
                self._written_on[device] = self._gpus.current_stream(device)

    def host_memory_like(self, tensor: Tensor) -> Tensor:
        """Uninitialized; page-locked where it is for a tensor of a GPU, as far as the system allows it."""
        if self._is_locking and self._is_ours(tensor) and tensor.layout == torch.strided:
            try:
                return torch.empty_like(tensor, device="cpu", pin_memory=True)
            except RuntimeError as error:
                self._is_locking = False
                _log.warning("checkpoints are copied through memory that is not page-locked: %s", printable(error, 200))
        return torch.empty_like(tensor, device="cpu")

    def _begin(self, device: torch.device, pairs: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """The event behind copies (first) of tensors of that GPU."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = self._gpus.Stream(device)
        current = self._gpus.current_stream(device)
        stream.wait_stream(current)  # which may still write to them
        if (made_on := self._written_on.get(device)) is not None and made_on != current:
            stream.wait_stream(made_on)
        copies, sources = map(list, zip(*pairs, strict=True))
        with self._gpus.stream(stream):
            torch._foreach_copy_(copies, sources, non_blocking=True)
        for source in sources:
            source.record_stream(stream)  # Should it be freed meanwhile, nobody else gets its memory before.
        event = self._under_way[device] = self._gpus.Event(blocking=True)  # waiting for it takes no core
        event.record(stream)
        return event

    def _is_ours(self, tensor: Tensor) -> bool:
        return tensor.device.type == self._type
