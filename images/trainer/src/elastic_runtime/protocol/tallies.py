"""What a rank tells its agent of what it has begun, for ranks to be compared with each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_KINDS = 16
"""Kinds of collectives that a rank tells of."""


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
    """Digest of their kinds, in the order in which they were begun."""
    steps: int | None = None
    """Of the optimizers in the state, since the world's first commit."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Collectives by kind, for people; those that begin inside of the framework are not among them."""
