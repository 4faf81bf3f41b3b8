"""Lines from a stream of bytes; and JSON objects, one a line: how everything on a wire of ours is framed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from elastic_runtime.errors import InvalidDocument


class LineSplitter:
    """Cuts pieces of a stream into lines; holds the unfinished rest.

    However small the pieces, each byte is looked at once, so that a peer that drips costs no more than one that pours.

    Args:
        longest: bytes. A longer line comes in parts of this size, so that a peer that never ends its line cannot fill
            the memory. May be changed meanwhile.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Lines that are complete now, without their ends, and the full parts of one that is not."""
        *ends, rest = piece.split(b"\n")
        found: list[bytes] = []
        for end in ends:
            found += self._parts(bytes(self._rest) + end if self._rest else end)
            self._rest.clear()
        self._rest += rest
        while len(self._rest) > self.longest:
            found.append(bytes(self._rest[: self.longest]))
            del self._rest[: self.longest]
        return found

    def end(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest = bytes(self._rest)
        self._rest.clear()
        return [rest] if rest else []

    def _parts(self, line: bytes) -> list[bytes]:
        if len(line) <= self.longest:
            return [line]
        return [line[start : start + self.longest] for start in range(0, len(line), self.longest)]


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
