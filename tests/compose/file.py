"""docker-compose.yml as a test reads it: its services with what they inherit, and their variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
_VARIABLE = re.compile(r"\$\{(\w+)(?::(?:\?|-)([^}]*))?\}")


def text() -> str:
    """As it stands."""
    return FILE.read_text(encoding="utf-8")


def variables() -> set[str]:
    """Names of those that have to be in ``.env``."""
    return {found[1] for found in re.finditer(r"\$\{(\w+):\?", text())}


def services(values: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By name, merged.

    Args:
        values: of variables; one that is not given has the file's default.
    """
    filled = _VARIABLE.sub(lambda found: values.get(found[1], found[2] or ""), text()).replace("$$", "$")
    made: dict[str, dict[str, Any]] = yaml.safe_load(filled)["services"]
    return made
