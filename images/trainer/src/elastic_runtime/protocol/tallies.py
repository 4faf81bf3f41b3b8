"""What a rank tells its agent of what it has begun, for ranks to be compared with each other."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field

MARKS = string.ascii_letters + string.digits
"""Of the kinds of collectives in :attr:`Tally.tail`."""
OTHER, COMMIT = "*", "."
"""Marks of a collective that is not of the kinds that are told, and of a commit that was over."""
IN_GROUP = " in group "
"""Between a kind and the name of the group, where it is not the usual one."""
MAX_KINDS = 32
"""Kinds of collectives that a rank tells of."""
MAX_TAIL = 1024
"""Marks of :attr:`Tally.tail`."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What the rank has begun in its world by the beginning of a commit. All ranks tell of the same commits.

    What is None is not known, or may differ between ranks.
    """

    commit: int
    """Its number in this world, from 1."""
    step: int | None = None
    """Global step."""
    collectives: int | None = None
    """Of all ranks together: those of parts of them, and messages between two, do not count."""
    order: int | None = None
    """Digest of their kinds, in the order in which they were begun in each group of all ranks."""
    steps: int | None = None
    """Of the optimizers in the state, since the world's first commit."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Collectives by kind, for people; those that begin inside of the framework are not among them."""
    marks: int = 0
    """Marks of these collectives, and of commits, in this world."""
    tail: str = ""
    """The last of them in their order: of the first kind the first of :data:`MARKS`."""
