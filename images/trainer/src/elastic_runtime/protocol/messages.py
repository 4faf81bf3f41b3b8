"""Messages on a wire of ours: unions of dataclasses, told apart by the type that each line carries beside their fields.

A message's type is its class' name in snake case: ``{"type": "rank_exited", "rank_id": …}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_args

from elastic_runtime.documents import from_plain, tag_union, to_plain
from elastic_runtime.net.framing import encode_line

T = TypeVar("T")


def type_of(kind: type) -> str:
    """Return the type of a message of that class."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


class Vocabulary(Generic[T]):
    """The messages that one side understands.

    Args:
        union: of their classes.
    """

    def __init__(self, union: Any) -> None:
        self._union = union
        self._types = {type_of(kind) for kind in get_args(union)}
        tag_union(union, "type", type_of)

    def write(self, message: T) -> bytes:
        """Return the message as one line."""
        return encode_line(self.plain(message))

    def plain(self, message: T) -> dict[str, Any]:
        """Return the message as plain JSON, for a field of another message."""
        plain: dict[str, Any] = to_plain(message, self._union)
        return plain

    def read(self, plain: Mapping[str, Any]) -> T | None:
        """None for a type that is not in it. Raises InvalidDocument for a wrong field."""
        kind = plain.get("type")
        known = isinstance(kind, str) and kind in self._types
        return from_plain(self._union, plain) if known else None
