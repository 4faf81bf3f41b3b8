"""Lines from a stream of bytes."""

from __future__ import annotations


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
