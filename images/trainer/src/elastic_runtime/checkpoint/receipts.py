"""Training receipt: which steps led to each checkpoint, as a chain of hashes beside the checkpoints.

Each checkpoint has a segment, ``receipt/CHECKPOINT.json``: the steps since the checkpoint before it, the samples they
covered, the worlds that trained them, and the digest of the checkpoint. A segment has the hash of the segment before
it, so none can be changed, left out or exchanged without changing all later ones. A segment is written before its
checkpoint is published, under a name that has the fence of its writer. So a writer that lost its run adds nothing to
the chain of the next owner.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime

from elastic_runtime.checkpoint.manifest import MOST_STEPS
from elastic_runtime.checkpoint.store import NAME, CheckpointStore
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.marks import VERSION

FOLDER = "receipt"
UNTIL = "ELASTIC_RUNTIME_REPLAY_UNTIL"
"""Environment variable: the step at which a state ends the ranks of a replay, once it is durable."""
RECEIPT_VERSION = 1
MOST_SEGMENTS = 10_000
"""Segments of a run that stay: a week of a checkpoint a minute, some 10 MB."""
LONGEST_SEGMENT = 4 << 20
"""Bytes."""
MODULUS = 1 << 256
"""Sums of samples are below it."""
_FILE = re.compile(rf"{FOLDER}/({NAME.pattern})\.json")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Batches:
    """How the samples of each step follow from its number: the arguments of ``GlobalBatches``."""

    samples: int
    """In the data set: samples, or shards."""
    size: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    unit: str = "samples"
    """``samples`` or ``shards``."""


@dataclass(frozen=True, slots=True)
class Span:
    """Steps that one world has trained, one after the other."""

    first: int
    last: int
    world: int
    """Number of the world in this chain, from 1; 0: of several."""
    ranks: int
    """World size; 0: several."""
    total: str
    """Sum modulo 2**256 of the digests of the samples of all steps from the beginning to ``last``, hexadecimal."""
    batches: Batches | None = None
    """None: the script does not use ``GlobalBatches`` or ``Shards`` over ``step``, so its samples are not known."""


@dataclass(frozen=True, slots=True)
class Segment:
    """From one checkpoint to the next."""

    checkpoint: str
    """Name of the checkpoint at its end."""
    manifest: str
    """sha256 of the manifest of that checkpoint."""
    parts: Mapping[str, str]
    """sha256 of each part of it."""
    after: str
    """Name of the checkpoint before it; empty: the chain begins here."""
    previous: str
    """Hash of the segment of that checkpoint; empty: the chain begins here."""
    start: int
    """Last step before it."""
    step: int
    """Last step in it."""
    time: datetime
    """Of the checkpoint."""
    spans: tuple[Span, ...] = ()
    resumed: bool = False
    """A process loaded the checkpoint ``after``. Steps that others had trained since then were lost."""
    version: int = field(default=RECEIPT_VERSION, metadata=VERSION)


def encode_segment(segment: Segment) -> bytes:
    """One line of JSON."""
    return to_json(segment).encode() + b"\n"


def hash_of(data: bytes) -> str:
    """Return the sha256 of a segment's file, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def decode_segment(data: bytes) -> Segment:
    """Read one, and check it. Raises InvalidDocument."""
    segment = from_json(Segment, data)
    if encode_segment(segment) != data:
        raise InvalidDocument("it is not written as this runtime writes it")
    numbers = [segment.start, segment.step, *(n for span in segment.spans for n in (span.first, span.last))]
    if not all(0 <= each <= MOST_STEPS for each in numbers):
        raise InvalidDocument("it has a step that no training has")
    named = [segment.manifest, *segment.parts.values(), *(span.total for span in segment.spans)]
    if not all(_HASH.fullmatch(each) for each in (*named, *([segment.previous] if segment.previous else []))):
        raise InvalidDocument("it has a hash that is none")
    return segment


def file_of(checkpoint: str) -> str:
    """Return the name of the file of this checkpoint's segment."""
    return f"{FOLDER}/{checkpoint}.json"


def segment_names(store: CheckpointStore) -> list[str]:
    """Names of the checkpoints that have a segment, sorted. Raises StoreUnavailable, InvalidSettings."""
    found = [match[1] for name in store.files(FOLDER) if (match := _FILE.fullmatch(name))]
    return sorted(found, key=order_of)


def order_of(checkpoint: str) -> tuple[int, int, int]:
    """Fence, step and time in a checkpoint's name."""
    match = NAME.fullmatch(checkpoint)
    assert match is not None, checkpoint
    fence, step, time = map(int, match.groups())
    return fence, step, time


def read_segment(store: CheckpointStore, checkpoint: str) -> tuple[Segment, str]:
    """Return a segment and its hash. Raises InvalidDocument, also if there is none, and StoreUnavailable."""
    with closing(store.open_beside(file_of(checkpoint), LONGEST_SEGMENT)) as stream:
        data = stream.read(LONGEST_SEGMENT + 1)
    return decode_segment(data), hash_of(data)


def write_segment(store: CheckpointStore, segment: Segment) -> str:
    """Write it, and return its hash. Raises StoreUnavailable, InvalidSettings."""
    data = encode_segment(segment)
    with store.write_file(file_of(segment.checkpoint)) as stream:
        stream.write(data)
    return hash_of(data)
