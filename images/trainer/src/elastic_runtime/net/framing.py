"""JSON objects, one a line: how everything on a wire of ours is framed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.lines import LineSplitter

MAX_LINE = 4 * 1024 * 1024
"""Bytes. A peer that sends more without a newline is not one of ours."""


def encode_line(plain: Mapping[str, Any]) -> bytes:
    """The object as one line."""
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """One line as an object. Raises InvalidDocument."""
    try:
        plain = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"not a line of JSON: {line[:200]!r}") from error
    if not isinstance(plain, dict):
        raise InvalidDocument(f"not a JSON object: {line[:200]!r}")
    return plain


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class LineReader:
    """Cuts a stream of bytes into objects.

    Args:
        longest: bytes of a line.
    """

    def __init__(self, longest: int = MAX_LINE) -> None:
        self._lines = LineSplitter(longest)

    def allow(self, longest: int) -> None:
        """From now on, lines may have so many bytes."""
        self._lines.longest = longest

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Objects completed by ``data``. Raises InvalidDocument, also for a line of the longest and more."""
        for line in self._lines.feed(data):
            if len(line) >= self._lines.longest:
                raise InvalidDocument(f"a line of {self._lines.longest} bytes or more")
            if line:
                yield decode_line(line)
