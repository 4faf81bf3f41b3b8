"""`Quantities`_ of resources as numbers, and what a quota's refusal says with them. Pure.

.. _Quantities: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache

QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_SUFFIXES = {
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    "m": Decimal("1e-3"),
    "u": Decimal("1e-6"),
    "n": Decimal("1e-9"),
}


def amount(text: str) -> Decimal:
    """A quantity, ``500m``, ``2Gi``, ``1e3``, for comparing two of them. Raises ValueError."""
    found = QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, suffix, exponent = found.groups()
    factor = _SUFFIXES[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return Decimal(number) * factor


@lru_cache
def bytes_of(text: str) -> int:
    """A quantity of memory in bytes, a part of one counting as a whole. Raises ValueError."""
    return math.ceil(amount(text))


def quantity_of(count: int) -> str:
    """Return bytes as a quantity, exactly: ``12Gi``, ``1536Mi``."""
    unit = next((each for each in ("Gi", "Mi", "Ki") if count % bytes_of(f"1{each}") == 0), "")
    return f"{count // bytes_of(f'1{unit}')}{unit}"


def exceeds(refusal: str) -> bool:
    """Whether a quota's refusal asks for more than the whole quota, so that waiting for others is of no use.

    Args:
        refusal: ``exceeded quota: q, requested: limits.cpu=4,pods=1, used: limits.cpu=0,pods=1, limited: …``.
    """
    parts = {name: _amounts(text) for name, text in re.findall(r"(requested|limited): ([^ ]+)", refusal)}
    requested, limited = parts.get("requested", {}), parts.get("limited", {})
    return any(name in limited and wanted > limited[name] for name, wanted in requested.items())


def _amounts(pairs: str) -> dict[str, Decimal]:
    split = [pair.partition("=") for pair in pairs.split(",")]
    # The last may be a word after the list.
    return {name: amount(text.strip()) for name, _, text in split if QUANTITY.fullmatch(text.strip())}
