"""Lines from a stream of bytes."""

from __future__ import annotations


class LineSplitter:
    """Cuts pieces of a stream into lines; holds the unfinished rest.

    Args:
        longest: bytes. A longer line comes in parts of this size, so that a peer that never ends its line cannot fill
            the memory.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Lines that are complete now, without their ends, and the full parts of one that is not."""
        *lines, rest = (self._rest + piece).split(b"\n")
        found = [part for line in lines for part in self._parts(line)]
        *full, self._rest = self._parts(rest)
        return found + full

    def end(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _parts(self, line: bytes) -> list[bytes]:
        if len(line) <= self._longest:
            return [line]
        return [line[start : start + self._longest] for start in range(0, len(line), self._longest)]
