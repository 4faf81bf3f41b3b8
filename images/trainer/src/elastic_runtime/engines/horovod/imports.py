"""Have something called as soon as a module is imported, be that now or later: nothing is imported for it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder:
    """First of the finders, for modules that somebody waits for."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], None]] = {}

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls once it has executed the module."""
        callback = self.waiting.pop(name, None)
        spec = importlib.util.find_spec(name) if callback else None
        if spec is None or spec.loader is None or callback is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            callback()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Call it now if that module has been imported, else right after it is, before whoever imports it goes on."""
    if name in sys.modules:
        callback()
        return
    _finder.waiting[name] = callback
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
