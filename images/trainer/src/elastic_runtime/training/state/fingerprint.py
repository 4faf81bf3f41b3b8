"""Fingerprints of states: what each entry is, in a few bytes, so that ranks can compare without sending the state."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.trees import Path, leaves_of

_BITS = 52
"""A number of so many, and its negative, are exact as a float64."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LONGEST = 100
"""Characters of a plain value that are kept as they are; of longer ones a digest is kept."""


class Entry(NamedTuple):
    """One leaf of a tree."""

    name: str
    """For people, as ``optimizer.state.0.exp_avg``."""
    digest: str
    """Its type, and its value or a digest of it."""


Fingerprint = Mapping[str, Entry]
"""Entries by what is different for different paths."""


def fingerprint(family: Family, tree: Tree) -> dict[str, Entry]:
    """Fingerprint of a tree. It does not depend on the order of dicts, on strides, or on devices."""
    leaves = list(leaves_of(family, tree))
    digests = iter(family.digests([leaf for _, leaf in leaves if family.is_tensor(leaf)]))
    return {
        repr(path): Entry(name_of(path), next(digests) if family.is_tensor(leaf) else _plain(leaf))
        for path, leaf in leaves
    }


def name_of(path: Path) -> str:
    """Return the path for users."""
    return ".".join(map(str, path))


def number_of(entries: Iterable[tuple[str, str]]) -> int:
    """Digest of keys and digests, in any order, that a float64 holds exactly, as does its negative."""
    digest = hashlib.blake2b(repr(sorted(entries)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _BITS)


def first_difference(one: Fingerprint, other: Fingerprint) -> str | None:
    """Name of the first entry that only one of them has, or that differs; None: they are equal."""
    if one == other:
        return None
    key = min(key for key in {*one, *other} if one.get(key) != other.get(key))
    return (one.get(key) or other[key]).name


def _plain(leaf: Any) -> str:
    text = repr(sorted(map(repr, leaf)) if isinstance(leaf, set | frozenset) else leaf)
    text = _ADDRESS.sub("", text)
    if len(text) > _LONGEST:
        text = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{type(leaf).__qualname__} {text}"
