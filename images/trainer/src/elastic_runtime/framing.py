"""JSON objects, one a line: how everything on a wire of ours is framed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.lines import LineSplitter

MAX_LINE = 4 * 1024 * 1024
"""Bytes. A peer that sends more without a newline is not one of ours."""


def encode_line(plain: Mapping[str, Any]) -> bytes:
    """The object as one line."""
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """One line as an object. Raises InvalidDocument."""
    try:
        plain = json.loads(line)
    except ValueError as error:
        raise InvalidDocument(f"not a line of JSON: {line[:200]!r}") from error
    if not isinstance(plain, dict):
        raise InvalidDocument(f"not a JSON object: {line[:200]!r}")
    return plain


class LineReader:
    """Cuts a stream of bytes into objects."""

    def __init__(self) -> None:
        self._lines = LineSplitter(MAX_LINE)

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Objects completed by ``data``. Raises InvalidDocument, also for a line of :data:`MAX_LINE`."""
        for line in self._lines.feed(data):
            if len(line) >= MAX_LINE:
                raise InvalidDocument(f"a line of {MAX_LINE} bytes or more")
            if line:
                yield decode_line(line)
