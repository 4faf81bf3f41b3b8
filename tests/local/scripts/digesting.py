"""One digest of all that is in a value, for scripts of every framework."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

EVERY = 5
"""Steps after which states are digested."""
Content = Callable[[Any], tuple[str, bytes] | None]
"""Type and shape of a framework's tensor, and its bytes; None: it is something else."""


def digest(value: Any, content: Content) -> str:
    """Of keys, types, shapes, and every bit of its tensors."""
    sha = hashlib.sha256()
    _feed(sha.update, value, content)
    return sha.hexdigest()[:12]


def _feed(update: Callable[[bytes], None], value: Any, content: Content) -> None:
    if found := content(value):
        kind, data = found
        update(kind.encode())
        update(data)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            update(f"{key!r}:".encode())
            _feed(update, value[key], content)
    elif isinstance(value, list | tuple):
        update(f"{type(value).__name__}{len(value)}".encode())
        for item in value:
            _feed(update, item, content)
    else:
        update(f"{value!r},".encode())
