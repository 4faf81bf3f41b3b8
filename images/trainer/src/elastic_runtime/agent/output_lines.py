"""Lines of a rank's output, with those of a progress bar among them, which never ends its line but rewrites it. Pure.

A carriage return begins the line anew, and so does the cursor's way up (``ESC [ A``) that nested bars end with. What
the line shows then is a *frame*. Of frames the newest is told now and then; a line that ends is told in any case.
"""

from __future__ import annotations

import re

EVERY = 5.0
"""Seconds between two frames of a stream that are told, at least: a bar may be drawn ten times a second, for days."""
_UP, _LONGEST_UP = re.compile(rb"(?:\x1b\[\d{0,3}A)+\Z"), 64


def _without_up(text: bytes) -> bytes:
    """What is drawn, without the cursor's way up after it."""
    found = _UP.search(text, max(0, len(text) - _LONGEST_UP))
    return text[: found.start()] if found else text


class OutputLines:
    """Cuts one stream of a rank into lines; however small the pieces, each byte is looked at once.

    Args:
        longest: bytes. A longer line comes in parts of this size.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = bytearray()
        """Of the line, since it was begun anew."""
        self._frame = b""
        """The newest that was overwritten, not yet by anything that can be seen."""
        self._redrawn = False
        """The line was begun anew, so it shows a frame."""
        self._told: bytes | None = None
        """Of this line."""
        self._due = float("-inf")
        """When a frame may be told next."""

    def feed(self, piece: bytes, now: float) -> list[bytes]:
        """Return the lines to send now, without their ends.

        Args:
            piece: of the stream.
            now: monotonic seconds.
        """
        found: list[bytes] = []
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._draw(end, found)
            self._end_line(found)
        self._draw(rest, found)
        return [*found, *self.tick(now)]

    def wait(self, now: float) -> float | None:
        """Seconds until :meth:`tick` has something to tell; None: nothing but more of the stream can change that."""
        return max(0.0, self._due - now) if self._untold else None

    def tick(self, now: float) -> list[bytes]:
        """The newest frame, where it is time for one."""
        if not self._untold or now < self._due:
            return []
        self._told, self._due = self._shown, now + EVERY
        return [self._told]

    def end(self) -> list[bytes]:
        """Return the last line, if it has no end."""
        shown = self._shown
        return [shown] if shown and shown != self._told else []

    @property
    def _shown(self) -> bytes:
        return _without_up(bytes(self._rest)) or self._frame

    @property
    def _untold(self) -> bool:
        return self._redrawn and self._shown != self._told and bool(self._shown.strip())

    def _draw(self, text: bytes, found: list[bytes]) -> None:
        """More of the line, without its end."""
        before, redrawn, after = text.rpartition(b"\r")
        if redrawn:
            self._redrawn = True
            first, _, others = before.partition(b"\r")
            self._rest += first
            newest = next((each for each in (*reversed(others.split(b"\r")), bytes(self._rest)) if each), b"")
            self._frame = _without_up(newest) or self._frame
            self._rest.clear()
        self._rest += after
        while len(self._rest) > self._longest:
            found.append(bytes(self._rest[: self._longest]))
            del self._rest[: self._longest]

    def _end_line(self, found: list[bytes]) -> None:
        if len(_without_up(bytes(self._rest))) < len(
            self._rest
        ):  # The bar above is drawn next; this one again after it.
            self._frame, self._redrawn = self._shown, True
            self._rest.clear()
            return
        shown = self._shown
        if self._told is None or shown != self._told:
            found.append(shown)
        self._rest.clear()
        self._frame, self._redrawn, self._told = b"", False, None
