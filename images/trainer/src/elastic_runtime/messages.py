"""Messages on a wire of ours: dataclasses that name their type, which each line carries beside their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.framing import encode_line


class Message(Protocol):
    """A dataclass with a type of its own."""

    type: ClassVar[str]


T = TypeVar("T", bound=Message)


def encode(message: Message) -> bytes:
    """One line."""
    return encode_line({"type": message.type, **to_plain(message)})


class Vocabulary(Generic[T]):
    """The messages that one side understands.

    Args:
        kinds: their classes.
    """

    def __init__(self, *kinds: type[T]) -> None:
        self._kinds = {kind.type: kind for kind in kinds}

    def read(self, plain: Mapping[str, Any]) -> T | None:
        """None for a type that is not in it. Raises InvalidDocument for a wrong field."""
        kind = self._kinds.get(str(plain.get("type")))
        return None if kind is None else from_plain(kind, plain)
