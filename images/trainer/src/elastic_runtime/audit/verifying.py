"""Is the receipt of a training whole, does each step occur once, and are the checkpoints those that it names?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.checkpoint.manifest import encode_manifest
from elastic_runtime.checkpoint.receipts import (
    MODULUS,
    MOST_SEGMENTS,
    Batches,
    Segment,
    order_of,
    read_segment,
    segment_names,
)
from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.training.batches.plan import BatchPlan
from elastic_runtime.training.receipt import digest_of, plan_of

MOST_SAMPLES = 1 << 30
"""Of a data set that is checked: they are sorted in memory, and others may write what a store has."""


class ReceiptBroken(ElasticError):
    """The receipt, or a checkpoint, is not as the training left it; the message has the first place."""


@dataclass(slots=True)
class Chain:
    """Segments of a run, in order."""

    segments: list[Segment]
    hashes: list[str]
    cut: int = 0
    """Segments in the store that are not in the chain: their steps were lost, and trained again."""
    is_whole: bool = True
    """False: the oldest segments have been removed, as there were more than stay."""


@dataclass(slots=True)
class Verified:
    """What a receipt proves."""

    first: int
    step: int
    head: str
    """Hash of the last segment."""
    segments: int
    cut: int
    samples: int = 0
    """Samples, or shards, over all steps: each of an epoch once."""
    epochs: float = 0.0
    unknown: int = 0
    """Steps whose samples are not known."""
    worlds: list[tuple[int, int]] = field(default_factory=list)
    """World sizes, each with the first step that it trained."""
    resumed: int = 0
    """Times that a process has gone on from a checkpoint."""
    checkpoints: list[str] = field(default_factory=list)
    """That are in the store, and were read."""


def read_chain(store: CheckpointStore) -> Chain:
    """Read the segments that lead to the newest checkpoint.

    Raises:
        ReceiptBroken: a segment is missing, altered, or not the one that the next one names.
        StoreUnavailable: the store does not answer.
    """
    names = segment_names(store)
    published = sorted(store.names(), key=order_of)
    if not names:
        raise ReceiptBroken(f"{store.uri} has no receipt. Runs with DurableState and GlobalBatches leave one there")
    if without := [each for each in published if each not in names]:
        raise ReceiptBroken(f"checkpoint {without[0]}: the receipt has no segment of it")
    wanted, expected = (published or names)[-1], ""
    found: list[tuple[Segment, str]] = []
    known, seen = set(names), set[str]()
    while wanted:
        if wanted not in known:
            if len(found) >= MOST_SEGMENTS - 1:
                return Chain(*_in_order(found), cut=len(known) - len(seen), is_whole=False)
            raise ReceiptBroken(f"step {found[-1][0].start}: the segment of checkpoint {wanted} is missing")
        if wanted in seen:
            raise ReceiptBroken(f"checkpoint {wanted}: its segment follows itself")
        seen.add(wanted)
        segment, digest = _read(store, wanted)
        if expected and digest != expected:
            problem = "was altered, or is not the one that the next segment follows"
            raise ReceiptBroken(f"step {segment.step}: the segment of checkpoint {wanted} {problem}")
        found.append((segment, digest))
        wanted, expected = segment.after, segment.previous
        if bool(wanted) != bool(expected):
            raise ReceiptBroken(
                f"step {segment.start}: the segment of {segment.checkpoint} names half of what it follows"
            )
    return Chain(*_in_order(found), cut=len(known) - len(seen))


def _in_order(found: list[tuple[Segment, str]]) -> tuple[list[Segment], list[str]]:
    return [each for each, _ in reversed(found)], [each for _, each in reversed(found)]


def _read(store: CheckpointStore, name: str) -> tuple[Segment, str]:
    try:
        segment, digest = read_segment(store, name)
    except InvalidDocument as error:
        raise ReceiptBroken(f"the segment of checkpoint {name} cannot be read: {error}") from error
    if segment.checkpoint != name or order_of(name)[1] != segment.step:
        raise ReceiptBroken(f"step {segment.step}: the segment of checkpoint {name} is that of another")
    return segment, digest


def verify(store: CheckpointStore) -> Verified:
    """Check all of it.

    Raises:
        ReceiptBroken: with the first place, in the order of the steps.
        InvalidSettings: a data set is too large to be checked.
        StoreUnavailable: the store does not answer.
    """
    chain = read_chain(store)
    first, last = chain.segments[0], chain.segments[-1]
    found = Verified(first.start, last.step, chain.hashes[-1], len(chain.segments), chain.cut)
    if chain.is_whole and first.start:
        raise ReceiptBroken(f"step {first.start}: the receipt begins there. What led to it is not in the store")
    _check_steps(chain.segments, found)
    published = set(store.names())
    for segment in chain.segments:
        if segment.checkpoint in published:
            _check_checkpoint(Checkpoints(store, 0, 1).stored(segment.checkpoint), segment)
            found.checkpoints.append(segment.checkpoint)
    return found


def _check_steps(segments: Iterable[Segment], found: Verified) -> None:
    step, total, samples = found.first, 0, _Samples(found)
    is_first = True
    for segment in segments:
        found.resumed += segment.resumed
        if segment.start != step:
            raise ReceiptBroken(f"step {step}: the next segment begins after step {segment.start}")
        for span in segment.spans:
            if span.first != step + 1 or span.last < span.first:
                problem = "is missing" if span.first > step + 1 else "was trained twice"
                raise ReceiptBroken(
                    f"step {min(step + 1, span.first)} {problem}: the receipt has {span.first} to {span.last} next"
                )
            if not found.worlds or found.worlds[-1][1] != span.ranks:
                found.worlds.append((span.first, span.ranks))
            added = samples.of(span.batches, range(span.first, span.last + 1))
            total, before = int(span.total, 16), total
            # The sum before the first segment that is left is not known.
            if (found.first == 0 or not is_first) and (total - before - added) % MODULUS:
                where = f"steps {span.first} to {span.last}"
                raise ReceiptBroken(f"{where}: the samples are not those of their batches")
            is_first, step = False, span.last
        if segment.step != step:
            raise ReceiptBroken(f"step {step + 1}: the segment of checkpoint {segment.checkpoint} does not have it")


class _Samples:
    """Each sample of each epoch once."""

    def __init__(self, found: Verified) -> None:
        self._found = found
        self._batches: Batches | None = None
        self._plan: BatchPlan | None = None
        self._checked = -1

    def of(self, batches: Batches | None, steps: range) -> int:
        """Return the sum of the digests of these steps."""
        if batches is None:
            self._found.unknown += len(steps)
            return 0
        if batches.samples > MOST_SAMPLES:
            problem = f"its receipt names a data set of {batches.samples} samples; up to {MOST_SAMPLES} are checked"
            raise InvalidSettings("RUN", problem, "Look who can write to the store, if the data set is smaller")
        plan = self._plan
        if plan is None or batches != self._batches:
            if plan is not None and (steps.start - 1) % plan.steps_per_epoch:
                raise ReceiptBroken(f"step {steps.start}: dataset, size or seed have changed within an epoch")
            plan = plan_of(batches)
            self._batches, self._plan, self._checked = batches, plan, -1
        total = 0
        for step in steps:
            epoch = (step - 1) // plan.steps_per_epoch
            if epoch != self._checked:
                self._check_epoch(plan, epoch)
            total += digest_of(plan, step)
            self._found.samples += len(plan.batch(step))
        self._found.epochs += len(steps) / plan.steps_per_epoch
        return total

    def _check_epoch(self, plan: BatchPlan, epoch: int) -> None:
        """Its batches have no sample twice, and without ``drop_last`` all of them."""
        first = epoch * plan.steps_per_epoch + 1
        seen = np.zeros(plan.samples, dtype=np.int64)
        for step in range(first, first + plan.steps_per_epoch):
            seen[plan.batch(step)] += 1
        if seen.max() > 1 or (seen.min() < 1 and not plan.drop_last):
            raise ReceiptBroken(f"epoch {epoch}: its batches do not have each sample once")
        self._checked = epoch


def _check_checkpoint(stored: StoredCheckpoint, segment: Segment) -> None:
    if hashlib.sha256(encode_manifest(stored.manifest)).hexdigest() != segment.manifest:
        raise ReceiptBroken(f"step {segment.step}: checkpoint {stored.name} is not the one that was written")
    for part in stored.manifest.parts:
        if segment.parts.get(part.name) != part.sha256:
            raise ReceiptBroken(f"step {segment.step}: part {part.name} of {stored.name} is not the one of the receipt")
        try:
            stored.open_part(part.name).close()
        except InvalidDocument as error:
            raise ReceiptBroken(f"step {segment.step}: checkpoint {stored.name}: {error}") from error
