"""Arguments of scripts that are to be whole numbers."""

from __future__ import annotations

from elastic_runtime.errors import InvalidSettings


def whole_number(field: str, value: object, most: int, least: int = 1) -> int:
    """Return the value. Raise InvalidSettings, with that field, for what is not a whole number from least to most."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSettings(field, f"{value!r:.60} is not a whole number from {least} to {most}", "Give one")
    return value
