"""What a quota's refusal says with its quantities. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from elastic_training.kubernetes_syntax import amount


def exceeds(refusal: str) -> bool:
    """Whether a quota's refusal asks for more than the whole quota, so that waiting for others is of no use.

    Args:
        refusal: ``exceeded quota: q, requested: limits.cpu=4,pods=1, used: limits.cpu=0,pods=1, limited: …``.
    """
    parts = {name: _amounts(text) for name, text in re.findall(r"(requested|limited): ([^ ]+)", refusal)}
    requested, limited = parts.get("requested", {}), parts.get("limited", {})
    return any(name in limited and wanted > limited[name] for name, wanted in requested.items())


def _amounts(pairs: str) -> dict[str, Decimal]:
    found = {}
    for pair in pairs.split(","):
        name, _, text = pair.partition("=")
        try:
            found[name] = amount(text.strip())
        except ValueError:
            continue  # A word after the list.
    return found
