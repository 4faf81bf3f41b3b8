"""Plain values to JSON and back without loss: what JSON lacks is tagged.

``None``, bool, int, finite float, str, list and dict with string keys stand for themselves. A tuple becomes
``{"$tuple": […]}``, a float that is not finite ``{"$float": "inf"}``, any other dict ``{"$items": [[key, value], …]}``.
"""

from __future__ import annotations

import math
from typing import Any

_TAGS = ("$tuple", "$float", "$items")


class NotPlain(ValueError):
    """The value is not made of plain values alone."""


def encode(value: object) -> Any:
    """As what ``json.dumps`` takes. Raises NotPlain with the type that has no place in it."""
    # Exact types: a subclass would come back as its base.
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, list) and kind is list:
        return [encode(item) for item in value]
    if isinstance(value, tuple) and kind is tuple:
        return {"$tuple": [encode(item) for item in value]}
    if isinstance(value, dict) and kind is dict:
        if all(type(key) is str for key in value) and not any(tag in value for tag in _TAGS):
            return {key: encode(item) for key, item in value.items()}
        return {"$items": [[encode(key), encode(item)] for key, item in value.items()]}
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")


def decode(plain: Any) -> Any:
    """Undo :func:`encode`."""
    if isinstance(plain, list):
        return [decode(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    if "$tuple" in plain:
        return tuple(decode(item) for item in plain["$tuple"])
    if "$float" in plain:
        return float(plain["$float"])
    if "$items" in plain:
        return {decode(key): decode(item) for key, item in plain["$items"]}
    return {key: decode(item) for key, item in plain.items()}
