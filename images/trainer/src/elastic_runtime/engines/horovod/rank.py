"""What is put right in every rank, before the user's script runs; the table is in the package's docstring.

:func:`install` is called by the warm process that ranks are forked from; a rank that was started cold gets it by
importing :mod:`elastic_runtime.torch`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.torch
import horovod.torch.elastic
import horovod.torch.elastic.state as elastic_state
import horovod.torch.mpi_ops
import torch
from horovod.common.elastic import run_fn
from horovod.runner.elastic import worker

from elastic_runtime.engines.horovod.gloo_sockets import PythonSockets, cut, notice_silence, open_sockets
from elastic_runtime.engines.horovod.rendezvous_client import (
    all_are_here,
    cut_when_given_up,
    still_assigned,
    while_waiting,
)
from elastic_runtime.engines.horovod.rendezvous_tokens import TOKEN
from elastic_runtime.rank_link import PEER_SILENCE

DEFAULT_SILENCE = 10.0
"""Seconds; see :data:`elastic_runtime.rank_link.PEER_SILENCE`."""
before_reset: list[Callable[[], None]] = []
"""Called at the begin of each reset, when all ranks stand at the same step and the old world is still connected."""
CONNECT_ATTEMPTS = 3
"""Worlds in a row that this rank may fail to connect to; one that is broken costs each of its ranks an attempt."""


class _Rank:
    """The adapted ``hvd.init`` and reset of this process."""

    def __init__(self) -> None:
        self._init, self._shutdown = horovod.torch.mpi_ops.init, horovod.torch.mpi_ops.shutdown
        self._python_sockets = PythonSockets()
        self._gloo_sockets: dict[int, str] = {}
        self._timeline = self._take_over_timeline()
        self._tracing = False
        self._generation = 0

    @staticmethod
    def _take_over_timeline() -> str | None:
        path = os.environ.get("HOROVOD_TIMELINE")
        if not path or path == "DYNAMIC":
            return None
        os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
        return path

    def init(self, *args: Any, **kwargs: Any) -> None:
        """``hvd.init`` into the first world that can be completed; a rank that is in none ends, with success.

        Raises:
            ValueError: Horovod's, after :data:`CONNECT_ATTEMPTS`.
        """
        if horovod.torch.mpi_ops.is_initialized():
            self._init(*args, **kwargs)
            return
        failures = 0
        while True:
            try:
                if all_are_here():
                    self._connect(*args, **kwargs)
                    return
            except ValueError:  # A rank was lost on the way in.
                failures += 1
                self._disconnect()
                if failures == CONNECT_ATTEMPTS or "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
                    raise
            if not still_assigned():
                sys.exit(0)

    def _connect(self, *args: Any, **kwargs: Any) -> None:
        """Remembering the sockets that Gloo opens."""
        before = open_sockets()

        def opened() -> dict[int, str]:
            others = self._python_sockets.seen()
            return {fd: name for fd, name in open_sockets().items() if before.get(fd) != name and fd not in others}

        with self._python_sockets.watching(), cut_when_given_up(opened):
            try:
                self._init(*args, **kwargs)
            finally:
                self._gloo_sockets = opened()
        notice_silence(self._gloo_sockets, float(os.environ.get(PEER_SILENCE, DEFAULT_SILENCE)))
        self._generation += 1
        if self._timeline and horovod.torch.mpi_ops.rank() == 0:
            path = Path(self._timeline)
            generation = f"{path.stem}.{os.environ.get('HOROVOD_HOSTNAME', 'host')}.{self._generation}{path.suffix}"
            horovod.torch.mpi_ops.start_timeline(str(path.with_name(generation)))
            self._tracing = True

    def reset(self) -> None:
        """From one world to the next; a rank that was taken out ends here, with success."""
        for hook in before_reset:
            hook()
        if self._tracing:
            # Or events that are not written yet have the next start_timeline() replace a running std::thread: abort.
            horovod.torch.mpi_ops.stop_timeline()
            self._tracing = False
        self._disconnect()
        if not still_assigned():
            sys.exit(0)
        self.init()

    def _disconnect(self) -> None:
        self._shutdown()
        cut(self._gloo_sockets)
        self._gloo_sockets = {}


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """``hvd.elastic.run``, after which a state that has a word for its end (``on_run_end``) may say it.

    It is said inside upstream's loop: should a rank be lost meanwhile, the others come back to it. And while the rank
    waits for a world, a state that has something to do then (``on_wait``) may do it.
    """

    @functools.wraps(func)
    def to_the_end(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(state, *args, **kwargs)
        on_run_end = getattr(state, "on_run_end", None)
        if on_run_end is not None:
            on_run_end()
        return result

    wrapped: Callable[..., Any] = run_fn(to_the_end, _current_reset)

    @functools.wraps(func)
    def with_hook(state: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = [hook for hook in [getattr(state, "on_wait", None)] if hook is not None]
        while_waiting.extend(hooks)
        try:
            return wrapped(state, *args, **kwargs)
        finally:
            for hook in hooks:
                while_waiting.remove(hook)

    return with_hook


def _current_reset() -> None:
    horovod.torch.elastic._reset()


_installed: _Rank | None = None


def install() -> None:
    """Adapt this process; once, and only where an agent's rendezvous is.

    Raises:
        SystemExit: the environment asks for something that cannot work with elastic runs.
    """
    global _installed
    if _installed is not None:
        return
    if os.environ.get("HOROVOD_AUTOTUNE", "0").lower() in ("1", "true"):
        sys.exit("HOROVOD_AUTOTUNE hangs when rank 0 leaves an elastic run (horovod#2835): unset it")
    if TOKEN in os.environ and not hasattr(worker, TOKEN):
        sys.exit(
            "This image's Horovod shows the rendezvous no token, and would be refused there: build it with "
            "images/trainer/build-horovod.sh, which amends it"
        )
    _installed = rank = _Rank()
    for module in (horovod.torch.mpi_ops, horovod.torch, horovod.torch.elastic):
        module.init = rank.init
    horovod.torch.elastic._reset = rank.reset
    horovod.torch.elastic.run = run
    # Only now: to import that package in a cold rank is to call this function.
    from elastic_runtime.torch.state.handlers import StateDictHandler

    schedulers = (torch.optim.lr_scheduler.LRScheduler, StateDictHandler)
    optimizers = (torch.optim.Optimizer, StateDictHandler)  # The first that fits is taken.
    elastic_state.set_handler_registry([optimizers, *elastic_state.get_handler_registry(), schedulers])
