"""Numbers among the words of a command line. Raises what argparse turns into a message."""

from __future__ import annotations

from argparse import ArgumentTypeError


def whole_number_of(what: str, word: str, most: int, least: int = 1) -> int:
    """Parse a whole number."""
    if not word.isdecimal() or len(word) > 18 or not least <= int(word) <= most:
        raise ArgumentTypeError(f"{word!r} is not a number of {what}, {least} to {most}")
    return int(word)


def number_of(what: str, word: str, most: float, *, zero: bool = False) -> float:
    """Parse a number above 0; ``zero``: or 0."""
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not (0 < number <= most or (zero and number == 0)):
        raise ArgumentTypeError(f"{word!r} is not a number of {what}, at most {most:g}")
    return number
