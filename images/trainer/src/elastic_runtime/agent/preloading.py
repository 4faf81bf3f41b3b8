"""Imports of a warm process before anything is forked from it."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Iterable

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import printable

PRELOAD = "ELASTIC_RUNTIME_PRELOAD"
"""Environment variable: further modules to import, with commas between them. What a script imports beyond its engine,
every rank that joins imports while the others wait for it."""
_is_warm = False


def preload(modules: Iterable[str]) -> str:
    """Import these, and those that the environment names. Returns why that failed, or nothing."""
    global _is_warm
    further = [name for name in os.environ.get(PRELOAD, "").split(",") if name]
    for name in (*modules, *further):
        try:
            importlib.import_module(name)
        except (ImportError, InvalidSettings) as error:  # The latter when a module will not work with what is there.
            return printable(f"cannot import {name}: {error}")
    gc.collect()
    gc.freeze()  # Keeps the collector from touching, and so copying, every page in the children.
    _is_warm = True
    return ""


def is_warm() -> bool:
    """Whether this process, or the one that it was forked from, has done so."""
    return _is_warm
