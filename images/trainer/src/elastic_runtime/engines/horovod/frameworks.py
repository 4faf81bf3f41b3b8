"""Which of the frameworks that Horovod serves a rank uses. Each has a Horovod of its own, in a library of its own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from elastic_runtime.world import Handler, current_world

_HERE = "elastic_runtime.engines.horovod"
MODULES = {"horovod.torch": f"{_HERE}.torch", "horovod.tensorflow": f"{_HERE}.tensorflow"}
"""Horovod's module for a framework, and ours, whose :class:`Framework` is named ``FRAMEWORK``."""


class Framework(Protocol):
    """Part of a rank that depends on the framework."""

    calls: Any
    """Horovod's module with ``init``, ``shutdown``, ``is_initialized``, ``rank``, ``size`` and the timeline's."""

    modules: Sequence[Any]
    """Those from which a script calls the same."""

    def adapt(
        self,
        init: Callable[..., None],
        reset: Callable[[], bool],
        run: Callable[..., Any],
        trained: Callable[[int], None],
    ) -> None:
        """Have all its modules use the first three, and put right what is wrong with it alone.

        ``trained`` is to be called with the number of steps that the script has trained.
        """

    def is_loss(self, error: BaseException) -> bool:
        """Whether a collective says by this error, which is not Horovod's own, that a rank was lost."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def maximum(self, numbers: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over all ranks."""

    def broadcast(self, tensors: Sequence[Any]) -> None:
        """Replace all ranks' tensors by rank 0's."""

    def handler(self, value: object) -> Handler | None:
        """Return what keeps a value of the state."""


def imported() -> list[Framework]:
    """Those of which Horovod's side has been imported in this process."""
    return [import_module(ours).FRAMEWORK for theirs, ours in MODULES.items() if theirs in sys.modules]


def current() -> Framework | None:
    """The one that has a world, else the first that was imported; None: none was."""
    found = imported()
    return next((each for each in found if each.calls.is_initialized()), found[0] if found else None)


@cache
def built() -> tuple[str, ...]:
    """Names of the frameworks that the installed Horovod was built for; imports nothing."""
    spec = find_spec("horovod")
    if spec is None or spec.origin is None:
        return ()
    folder = Path(spec.origin).parent
    names = [module.removeprefix("horovod.") for module in MODULES]
    return tuple(name for name in names if any((folder / name).glob("mpi_lib*.so")))


def prepare_with_framework() -> None:
    """Prepare this rank once a framework's Horovod is imported. Horovod's own import calls it (images/trainer/patches).

    A rank that was forked from a warm process is prepared before its script. If a command such as ``sh -c`` starts the
    rank, or the rank starts a process, only the import shows that the process uses Horovod.
    """
    for theirs in MODULES:
        when_imported(theirs, lambda: current_world().prepare())


_incomplete: dict[str, Callable[[Framework], None]] = {}
"""What waits for one of our modules to have its ``FRAMEWORK``, by the module's name."""


def when_complete(ours: str, callback: Callable[[Framework], None]) -> None:
    """Import one of our modules and call this with its framework; later if that module is being imported already."""
    framework = getattr(import_module(ours), "FRAMEWORK", None)
    if framework is None:
        _incomplete[ours] = callback
    else:
        callback(framework)


def complete(ours: str, framework: Framework) -> Framework:
    """Called by our module of a framework at its end. Returns the framework."""
    if (callback := _incomplete.pop(ours, None)) is not None:
        callback(framework)
    return framework


# Have something called as soon as a module is imported, be that now or later: nothing is imported for it.


class _Finder:
    """First of the finders, for modules that somebody waits for."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls once it has executed the module."""
        callbacks = self.waiting.pop(name, [])
        spec = importlib.util.find_spec(name) if callbacks else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for callback in callbacks:
                callback()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Call it now if that module has been imported, else right after it is, before whoever imports it goes on."""
    if name in sys.modules:
        callback()
        return
    _finder.waiting.setdefault(name, []).append(callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
