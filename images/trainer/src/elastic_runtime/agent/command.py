"""Which rank commands can start warm: those that the interpreter of the warm process would run itself."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_BARE = re.compile(r"python(3(\.\d+)?)?")


class Entry(StrEnum):
    """Kinds of code that Python is started with: a file, ``-m`` or ``-c``."""

    SCRIPT = "script"
    MODULE = "module"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """``python [-u] script …``, ``python -m module …`` or ``python -c code …``, taken apart."""

    entry: Entry
    target: str
    arguments: tuple[str, ...]


def is_own_interpreter(program: str) -> bool:
    """Whether this word means the interpreter that runs this code: its path, or a bare ``python``."""
    return bool(_BARE.fullmatch(program)) or os.path.abspath(program) == os.path.abspath(sys.executable)


def parse(command: Sequence[str]) -> PythonCommand | None:
    """The command taken apart, or None if it must be started cold."""
    return parse_arguments(command[1:]) if is_own_interpreter(command[0]) else None


def parse_arguments(arguments: Sequence[str]) -> PythonCommand | None:
    """Parse the arguments that follow a Python interpreter. None: they are not of a form that starts warm."""
    words = list(arguments)
    while words and words[0] == "-u":
        words.pop(0)
    if not words:
        return None
    first, rest = words[0], words[1:]
    if first in ("-m", "-c"):
        entry = Entry.MODULE if first == "-m" else Entry.CODE
        return PythonCommand(entry, rest[0], tuple(rest[1:])) if rest else None
    return None if first.startswith("-") else PythonCommand(Entry.SCRIPT, first, tuple(rest))


def cold(command: Sequence[str]) -> list[str]:
    """Return the command to execute: a bare ``python`` is the agent's own interpreter, whatever PATH says."""
    return [sys.executable if _BARE.fullmatch(command[0]) else command[0], *command[1:]]
