"""Values of settings, given or rendered: numbers, flags, time spans."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from elastic_runtime.errors import InvalidSettings
from elastic_training.settings.templating import Settings

S = TypeVar("S", bound=Settings)
E = TypeVar("E", bound=StrEnum)

IntOrTemplate = int | str | Any
"""A whole number, a template of one, or the output of another task."""
BoolOrTemplate = bool | str | Any
"""True or False, a template of one of them, or the output of another task."""
Duration = timedelta | float | str | Any
"""A time span, seconds, a template of seconds, or the output of another task."""


def settings_of(kind: type[S], field: str, value: object, example: str) -> S:
    """Settings, or the same as a mapping, which is what another task can return.

    Args:
        kind: of settings.
        field: as the user writes it.
        value: given, or rendered.
        example: of what to write.

    Raises:
        InvalidSettings: it is neither, or has a name that these settings do not have.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise InvalidSettings(field, f"a {type(value).__name__} is not a {kind.__name__}", f"Write {example}")
    names = [each.name for each in fields(kind)]
    for name in value:
        if name not in names:
            raise InvalidSettings(f"{field}.{name}", "no field has this name", f"Write one of {', '.join(names)}")
    return kind(**value)


def parse_bool(field: str, value: object) -> bool:
    """A flag, given or rendered, as Jinja prints Python's, JSON's and YAML's. Raises InvalidSettings for others."""
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off", "none", ""):
        return False
    raise InvalidSettings(field, f"{value!r} is neither true nor false", "Write True or False, or a template of one")


def whole_number(field: str, value: object, *, least: int) -> int:
    """A whole number, given or rendered. Raises InvalidSettings under ``least`` or for anything else."""
    remedy = f"Write a whole number of {least} or more"
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
    except ValueError:
        raise InvalidSettings(field, f"{value!r} is not a whole number", remedy) from None
    if number < least:
        raise InvalidSettings(field, f"{number} is less than {least}", remedy)
    return number


def real_number(field: str, value: object, *, least: float, most: float) -> float:
    """A number, given or rendered. Raises InvalidSettings outside of these bounds or for anything else."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InvalidSettings(
            field, f"{value!r} is not a number from {least:g} to {most:g}", "Write one, or a template of one"
        )
    return number


def member_of(field: str, value: object, kind: type[E]) -> E:
    """One of these values, given or rendered. Raises InvalidSettings for anything else."""
    if value not in tuple(kind):
        choices = ", ".join(repr(each.value) for each in kind)
        raise InvalidSettings(field, f"{value!r} is not one of its values", f"Write one of {choices}")
    return kind(str(value))


def seconds_of(field: str, value: object, *, zero: bool = False) -> float:
    """A time span in seconds, given or rendered. Raises InvalidSettings unless positive; ``zero``: or 0."""
    remedy = "Write a timedelta or seconds, " + ("0 or more" if zero else "more than 0")
    try:
        if isinstance(value, bool) or not isinstance(value, timedelta | int | float | str):
            raise ValueError
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except ValueError:
        raise InvalidSettings(field, f"{value!r} is not a time span", remedy) from None
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        raise InvalidSettings(field, f"{value!r} is {seconds:g} s", remedy)
    return seconds
