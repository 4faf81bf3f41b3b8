"""Manifest of a checkpoint's parts: published last, so that a checkpoint with a manifest is whole."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import DamagedCheckpoint, InvalidDocument
from elastic_runtime.marks import VERSION

MANIFEST_VERSION = 1
LONGEST_MANIFEST = 4 << 20
"""Bytes; some 30,000 parts."""
LARGEST = 1 << 50
"""Bytes of all parts."""
MOST_STEPS = 10**15
"""Highest step of a checkpoint. Far beyond it, names are too long to be found, and launchers refuse reports."""
LONGEST_PART = 120
"""Characters of a part's name."""
PART = re.compile(rf"\w[\w.-]{{0,{LONGEST_PART - 1}}}")
"""Pattern of a part's name: no separator, no dot first, nothing invisible."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part, as it was written."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """Hexadecimal."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one checkpoint."""

    step: int
    """Optimizer steps that it holds."""
    time: datetime
    """When the state was taken, by the writer's clock."""
    fence: int
    """Fencing token of its writer."""
    parts: tuple[Part, ...]
    handover: bool = False
    """Written because of a reclaim notice."""
    version: int = field(default=MANIFEST_VERSION, metadata=VERSION)


def encode_manifest(manifest: Manifest) -> bytes:
    """A line of JSON, and one with its sha256: an altered manifest must not pass either.

    Raises:
        InvalidDocument: nobody could read it again.
    """
    _check(manifest)
    text = to_json(manifest).encode()
    data = text + b"\n" + hashlib.sha256(text).hexdigest().encode()
    if len(data) > LONGEST_MANIFEST:
        raise InvalidDocument(f"its manifest has more than {LONGEST_MANIFEST} bytes")
    return data


def decode_manifest(data: bytes) -> Manifest:
    """Read one, of which nothing is believed: whoever can write it can also write its sum.

    Raises:
        DamagedCheckpoint: it is torn or altered.
        InvalidDocument: it is of a version that this one does not know, or says what none of ours says.
    """
    if len(data) > LONGEST_MANIFEST:
        raise InvalidDocument(f"its manifest has more than {LONGEST_MANIFEST} bytes")
    text, _, digest = data.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise DamagedCheckpoint("its manifest is torn or altered")
    manifest = from_json(Manifest, text)
    # So nothing is in it twice, nor anything else, and no value is written in another way than ours.
    if encode_manifest(manifest) != data:
        raise InvalidDocument("its manifest is not written as this runtime writes it")
    return manifest


def _check(manifest: Manifest) -> None:
    if manifest.step < 0 or manifest.fence < 0:
        raise InvalidDocument("its manifest has a step or a fence below 0")
    if manifest.step > MOST_STEPS:
        raise InvalidDocument(f"its manifest has a step above {MOST_STEPS}")
    check_parts(manifest.parts)


def check_parts(parts: tuple[Part, ...]) -> None:
    """Check the parts of a manifest, or for one. Raise InvalidDocument."""
    if any(PART.fullmatch(part.name) is None for part in parts):
        raise InvalidDocument("its manifest names a part that cannot be one")
    if len({part.name for part in parts}) < len(parts):
        raise InvalidDocument("its manifest names a part twice")
    if any(part.size < 0 for part in parts) or sum(part.size for part in parts) > LARGEST:
        raise InvalidDocument("its manifest has sizes that no checkpoint has")
