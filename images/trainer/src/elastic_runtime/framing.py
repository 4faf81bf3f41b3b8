"""JSON objects, one a line: how everything on a wire of ours is framed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from elastic_runtime.errors import InvalidDocument

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
    """Cuts a stream of bytes into objects; holds the unfinished rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Objects completed by ``data``. Raises InvalidDocument, also for a line over :data:`MAX_LINE`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise InvalidDocument(f"a line of more than {MAX_LINE} bytes")
        for line in lines:
            if line:
                yield decode_line(line)
