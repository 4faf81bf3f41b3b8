"""What a checkpoint consists of: published last, so that a checkpoint with a manifest is whole."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument

MANIFEST_VERSION = 1


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
    """One checkpoint."""

    step: int
    """Optimizer steps that it holds."""
    time: datetime
    """When the state was taken, by the writer's clock."""
    fence: int
    """Fencing token of its writer."""
    parts: tuple[Part, ...]
    handover: bool = False
    """Written because of a reclaim notice."""
    version: int = MANIFEST_VERSION


def encode_manifest(manifest: Manifest) -> bytes:
    """A line of JSON, and one with its sha256: an altered manifest must not pass either."""
    text = to_json(manifest).encode()
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode()


def decode_manifest(data: bytes) -> Manifest:
    """Raises InvalidDocument when it is torn, altered, or of a version that this one does not know."""
    text, _, digest = data.partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise InvalidDocument("its manifest is torn or altered")
    manifest = from_json(Manifest, text)
    if manifest.version > MANIFEST_VERSION:
        raise InvalidDocument(f"its manifest has version {manifest.version}, newer than this runtime's")
    return manifest
