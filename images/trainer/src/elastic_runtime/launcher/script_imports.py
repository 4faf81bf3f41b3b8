"""Before a run starts: does this Python have the framework that the command's script imports?

For launchers that have the workers' image. A script that cannot be read here, or is no Python, is let through: its
ranks will say what is wrong with it. So is an import that the script may do without, inside ``try``, ``if`` or a
function.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from elastic_runtime.agent.command import Entry, parse
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.shipment import MAX_UNPACKED, unpack
from elastic_runtime.run.spec import RunSpec

_FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
"""Packages that only some families of the trainer's image have, and the family."""
_PREFIXES = ("horovod.", "elastic_runtime.")
"""Of packages with a part for each framework."""


def check_frameworks(spec: RunSpec) -> None:
    """Do nothing where all is there, as far as can be told.

    Raises:
        InvalidSettings: the script cannot run on this Python; it says which of the trainer's images would do.
        InvalidDocument: the files that came with the run are not what can be shipped.
    """
    source = _source(spec)
    if source is None or "PYTHONPATH" in spec.environment:
        return
    needed = sorted({name for name in _imported(source) if name in _FRAMEWORKS})
    missing = [name for name in needed if find_spec(name) is None]
    if not missing:
        return
    families = sorted({_FRAMEWORKS[name] for name in needed})
    family = families[0] if len(families) == 1 else "both"
    raise InvalidSettings(
        "command",
        f"its script imports {' and '.join(missing)}, which {sys.executable} has not",
        f"Use the trainer's image of the family {family} (make image FAMILY={family}), or an interpreter that has it",
    )


def _source(spec: RunSpec) -> str | bytes | None:
    """Of the script, if this Python will run it and it can be read here."""
    python = parse(spec.command)
    if python is None or python.entry is Entry.MODULE:
        return None
    if python.entry is Entry.CODE:
        return python.target
    shipped = unpack(spec.scripts) if spec.scripts else {}
    if (name := os.path.normpath(python.target)) in shipped:
        return shipped[name]
    path = Path(spec.working_directory or ".", python.target)
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_UNPACKED else None
    except OSError:
        return None


def _imported(source: str | bytes) -> Iterator[str]:
    """Names of packages, or of a part's framework, that the script imports whatever happens."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in statements:
        if isinstance(statement, ast.Import):
            modules = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            modules = [statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)]
        else:
            continue
        for module in modules:
            part = next((module.removeprefix(prefix) for prefix in _PREFIXES if module.startswith(prefix)), module)
            yield part.partition(".")[0]
