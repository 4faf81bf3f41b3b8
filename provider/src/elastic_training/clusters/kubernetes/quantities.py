"""Kubernetes' quantities (``500m``, ``2Gi``) as numbers, and what a quota's refusal says with them. Pure."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_POWERS = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[MGTPE]i?|Ki)?")


def number(text: str) -> Decimal:
    """The value of a quantity, as in the `API reference`_. Raises ValueError.

    .. _API reference: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a quantity")
    digits, suffix = found[1], found[2] or ""
    try:
        value = Decimal(digits)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a quantity") from None
    if suffix.endswith("i"):
        return value * Decimal(1024 ** _POWERS[suffix[0].replace("K", "k")])
    return value.scaleb(3 * _POWERS[suffix])


def exceeds(refusal: str) -> bool:
    """Whether a quota's refusal asks for more than the whole quota, so that waiting for others is of no use.

    Args:
        refusal: ``exceeded quota: q, requested: limits.cpu=4,pods=1, used: limits.cpu=0,pods=1, limited: …``.
    """
    parts = {name: _amounts(text) for name, text in re.findall(r"(requested|limited): ([^ ]+)", refusal)}
    requested, limited = parts.get("requested", {}), parts.get("limited", {})
    return any(name in limited and amount > limited[name] for name, amount in requested.items())


def _amounts(text: str) -> dict[str, Decimal]:
    found = {}
    for pair in text.split(","):
        name, _, amount = pair.partition("=")
        try:
            found[name] = number(amount)
        except ValueError:
            continue  # A word after the list.
    return found
