"""Plain values to JSON and back without loss: what JSON lacks is tagged.

``None``, bool, int, finite float, str, list and dict with string keys stand for themselves. A tuple becomes
``{"$tuple": […]}``, a float that is not finite ``{"$float": "inf"}``, and a dict with other keys, or whose first one
begins with ``$``, ``{"$items": [[key, value], …]}``. So do ``$set``, ``$counter``, ``$ordered`` (an OrderedDict with
its attributes), ``$bytes`` and ``$bytearray`` (in base64), and ``$complex``.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

DEEPEST = 32
"""Containers within each other."""
MOST_LEVELS = 250
"""Of JSON: a container is up to three of them, and up to five where ranks send each other what is encoded."""
Maker = Callable[[Any], Any]
"""Of a tagged value: given what stands beside the tag, decoded."""


class NotPlain(ValueError):
    """The value is not made of plain values alone."""


def refuse(value: object) -> Any:
    """Raise NotPlain with the type that has no place in JSON."""
    raise NotPlain(f"{type(value).__module__}.{type(value).__qualname__}")


def encode(value: object, other: Callable[[object], Any] = refuse, *, deepest: int = DEEPEST, depth: int = 0) -> Any:
    """As what ``json.dumps`` takes.

    Args:
        value: to encode.
        other: encodes what is none of the above, or raises NotPlain.
        deepest: containers within each other that there may be.
        depth: containers around it.

    Raises:
        NotPlain: a part of it has no place in JSON, or it is nested deeper.
    """
    # Exact types: a subclass would come back as its base.
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    encoder = _CONTAINERS.get(kind)
    if encoder is None:
        return other(value)
    if depth == deepest:
        raise NotPlain(f"more than {deepest} containers within each other")
    return encoder(value, lambda item: encode(item, other, deepest=deepest, depth=depth + 1))


def decode(plain: Any, makers: Mapping[str, Maker] | None = None, depth: int = 0) -> Any:
    """Undo :func:`encode`.

    Args:
        plain: what it returned, which somebody else may have changed.
        makers: for the tags of its ``other``.
        depth: containers around it.

    Raises:
        ValueError: it is something else, or nested too deep; or TypeError.
    """
    if not isinstance(plain, list | dict):
        return plain
    if depth > MOST_LEVELS:
        raise ValueError("nested too deep")

    def inner(item: Any) -> Any:
        return decode(item, makers, depth + 1)

    if isinstance(plain, list):
        return [inner(item) for item in plain]
    tag = next(iter(plain), "")
    if not tag.startswith("$"):
        return {key: inner(item) for key, item in plain.items()}
    if tag == "$ordered":
        items, attributes = inner(plain[tag]), inner(plain.get("vars", {}))
        if not (type(items) is type(attributes) is dict):
            raise ValueError("an OrderedDict that is not made of dicts")
        ordered = OrderedDict(items)
        vars(ordered).update(attributes)
        return ordered
    maker = (makers or {}).get(tag) or _MAKERS.get(tag)
    # What a dict means may be large, as a tensor is, and be taken apart. So may be a pair's.
    if maker is None or isinstance(plain[tag], dict) or (tag in _PAIRS and not _are_pairs(plain[tag])):
        raise ValueError(f"no value with the tag {tag[:20]}")
    return maker(inner(plain[tag]))


def _are_pairs(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, list) and len(item) == 2 for item in items)


_Inner = Callable[[object], Any]


def _dict(value: dict[Any, Any], inner: _Inner) -> Any:
    if all(type(key) is str for key in value) and not next(iter(value), "").startswith("$"):
        return {key: inner(item) for key, item in value.items()}
    return {"$items": [[inner(key), inner(item)] for key, item in value.items()]}


def _ordered(value: OrderedDict[Any, Any], inner: _Inner) -> Any:
    return {"$ordered": _dict(value, inner), **({"vars": inner(vars(value))} if vars(value) else {})}


_CONTAINERS: dict[type, Callable[[Any, _Inner], Any]] = {
    list: lambda value, inner: [inner(item) for item in value],
    tuple: lambda value, inner: {"$tuple": [inner(item) for item in value]},
    # Sorted, for ranks that have the same set may go through it in different orders.
    set: lambda value, inner: {"$set": sorted((inner(item) for item in value), key=json.dumps)},
    dict: _dict,
    OrderedDict: _ordered,
    Counter: lambda value, inner: {"$counter": [[inner(key), inner(item)] for key, item in value.items()]},
    bytes: lambda value, _: {"$bytes": base64.b64encode(value).decode()},
    bytearray: lambda value, _: {"$bytearray": base64.b64encode(value).decode()},
    complex: lambda value, inner: {"$complex": [inner(value.real), inner(value.imag)]},
}
_PAIRS = ("$items", "$counter")
_MAKERS: dict[str, Maker] = {
    "$float": float,
    "$tuple": tuple,
    "$set": set,
    "$items": dict,
    "$counter": lambda items: Counter(dict(items)),
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "$complex": lambda parts: complex(*parts),
}
