"""What a rank notes of its steps for the training receipt (:mod:`elastic_runtime.checkpoint.receipts`).

All ranks note the same at each commit, without a collective: the samples of a step follow from its number. So any rank
can go on with the chain if it becomes the first one.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from elastic_runtime.checkpoint import receipts
from elastic_runtime.checkpoint.checkpoints import StoredCheckpoint
from elastic_runtime.checkpoint.manifest import Manifest
from elastic_runtime.checkpoint.receipts import MODULUS, Batches, Segment, Span
from elastic_runtime.checkpoint.store import CheckpointStore
from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidDocument, InvalidSettings, StoreUnavailable
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.training.batches.plan import BatchPlan

MOST_SPANS = 1000
"""Spans in memory; more, while a store is away for long, are joined into spans of several worlds."""
MOST_AT_ONCE = 10_000
"""Steps of one commit whose samples are noted."""
LOOK = 100
"""Checkpoints of one process from one removal of old segments to the next."""
_AT_ONCE = 150
"""Segments that are removed then, at most."""
_log = script_logger(__name__)


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain stands."""

    checkpoint: str = ""
    hash: str = ""
    step: int = 0
    total: int = 0
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class _Note:
    """What other ranks take over from rank 0."""

    checkpoint: str
    hash: str
    start: int
    resumed: bool
    base: str
    """Total at the head, hexadecimal."""
    total: str
    step: int
    world: int
    spans: tuple[Span, ...]


def digest_of(plan: BatchPlan, step: int) -> int:
    """Digest of the samples of all ranks in a step: BLAKE2b of step and samples as 64-bit numbers."""
    digest = hashlib.blake2b(step.to_bytes(8, "little"), digest_size=32)
    digest.update(plan.batch(step).astype("<i8", copy=False).data)
    return int.from_bytes(digest.digest(), "big")


def plan_of(batches: Batches) -> BatchPlan:
    """Return the plan by which the samples of a span were chosen. Raises InvalidSettings."""
    found = BatchPlan(batches.samples, batches.size, batches.seed, shuffle=batches.shuffle)
    return replace(found, drop_last=batches.drop_last)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the samples of steps are from."""

    after: int
    """Step after which they are."""
    plan: BatchPlan
    batches: Batches


class StepLog:
    """Steps since the last segment. Of two threads: the one that trains, and the one that writes checkpoints."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # A signal's handler may come here, too.
        self._head = Head()
        self._spans: list[Span] = []
        self._open: tuple[tuple[int, int, Batches | None], int] | None = None
        """World, ranks and batches of the span that goes on, and its first step."""
        self._total = self._step = self._world = 0
        self._sources: list[_Source] = []
        """Of the steps since the last commit, in their order."""
        self._has_looked = self._refused = False
        self._written = 0

    def trains_on(self, plan: BatchPlan, unit: str, step: int) -> None:
        """The samples of the steps after this one."""
        self._sources = [each for each in self._sources if each.after < step]  # Others, if training has gone back.
        if not self._sources or plan is not self._sources[-1].plan:
            batches = Batches(plan.samples, plan.size, plan.seed, plan.shuffle, plan.drop_last, unit)
            self._sources.append(_Source(step, plan, batches))

    def in_world(self) -> None:
        """The next steps are those of another world."""
        self._world += 1

    def committed(self, step: int, ranks: int) -> None:
        """Note the steps up to a commit."""
        if step == self._step:
            return
        first, beyond = self._step + 1, step + 1
        if not 0 < beyond - first <= MOST_AT_ONCE:
            self._note(min(first, step), step, ranks, None)  # A script that has gone back: the receipt says so.
            return
        sources = [each for each in self._sources if each.after < step]
        points = [(first - 1, None), *((each.after, each) for each in sources), (step, None)]
        for (after, source), (until, _) in pairwise(points):
            self._note(max(first, after + 1), until, ranks, source)
        self._sources = self._sources[max(0, len(sources) - 1) :]

    def _note(self, first: int, step: int, ranks: int, source: _Source | None) -> None:
        """Of steps with samples from one source."""
        if step < first:
            return
        added = sum(digest_of(source.plan, each) for each in range(first, step + 1)) if source else 0
        key = self._world, ranks, source.batches if source else None
        with self._lock:
            if self._open is None or self._open[0] != key or first != self._step + 1:
                self._close()
                self._open = key, first
            self._step, self._total = step, (self._total + added) % MODULUS

    def _close(self) -> None:
        """The open span is complete: with the lock."""
        if self._open is None:
            return
        (world, ranks, batches), first = self._open
        self._open = None
        new = Span(first, self._step, world, ranks, f"{self._total:064x}", batches)
        spans = self._spans
        if spans and (last := spans[-1]).last + 1 == new.first and last.batches == new.batches:
            if (last.world, last.ranks) == (world, ranks):
                spans[-1] = replace(new, first=last.first)
                return
            if len(spans) >= MOST_SPANS:
                spans[-1] = replace(new, first=last.first, world=0, ranks=0)
                return
        spans.append(new)

    # Between ranks

    def note(self) -> str:
        """For ranks that take this one's state over."""
        with self._lock:
            self._close()
            head = self._head
            return to_json(
                _Note(
                    head.checkpoint, head.hash, head.step, head.resumed, f"{head.total:064x}",
                    f"{self._total:064x}", self._step, self._world, tuple(self._spans),
                )
            )  # fmt: skip

    def take(self, note: str) -> None:
        """Go on from another rank's."""
        taken = from_json(_Note, note)
        with self._lock:
            self._head = Head(taken.checkpoint, taken.hash, taken.start, int(taken.base, 16), taken.resumed)
            self._spans, self._open = list(taken.spans), None
            self._total, self._step, self._world = int(taken.total, 16), taken.step, taken.world
            self._has_looked = False

    # Between processes

    def resume(self, stored: StoredCheckpoint) -> None:
        """Go on from a checkpoint that was loaded. Without its segment, the chain begins there."""
        step, total, world, digest, name = stored.manifest.step, 0, 0, "", ""
        try:
            segment, digest = receipts.read_segment(stored.store, stored.name)
            name = stored.name
            if segment.spans:
                total, world = int(segment.spans[-1].total, 16), max(span.world for span in segment.spans)
        except (InvalidDocument, InvalidSettings, StoreUnavailable) as error:
            _log.warning("the training receipt begins anew at step %d: %s", step, printable(error))
        with self._lock:
            self._head = Head(name, digest, step, total, resumed=True)
            self._spans, self._open = [], None
            self._total, self._step, self._world = total, step, world

    def recorder(self, store: CheckpointStore, fence: int) -> Callable[[str, Manifest, bytes], None]:
        """Return what writes the segment of a checkpoint of the last commit."""
        with self._lock:
            self._close()
            return partial(self._record, store, fence, tuple(self._spans))

    def _record(
        self, store: CheckpointStore, fence: int, spans: tuple[Span, ...], name: str, manifest: Manifest, encoded: bytes
    ) -> None:
        """Raises nothing that a store may raise: training does not end for it."""
        if self._refused:
            return
        try:
            head = self._head_before(store, fence, manifest.step)
            segment = Segment(
                checkpoint=name,
                manifest=receipts.hash_of(encoded),
                parts={part.name: part.sha256 for part in manifest.parts},
                after=head.checkpoint,
                previous=head.hash,
                start=head.step,
                step=manifest.step,
                time=manifest.time,
                spans=_after(spans, head.step),
                resumed=head.resumed,
            )
            digest = receipts.write_segment(store, segment)
        except InvalidSettings as error:
            self._refused = True
            _log.warning("the training receipt is not kept: %s", printable(error))
            return
        except (StoreUnavailable, InvalidDocument, OSError) as error:
            _log.warning("the training receipt has no segment of step %d: %s", manifest.step, printable(error))
            return
        total = int(segment.spans[-1].total, 16) if segment.spans else head.total
        with self._lock:
            self._head = Head(name, digest, manifest.step, total)
            self._spans = list(_after(tuple(self._spans), manifest.step))
        self._written += 1
        if self._written % LOOK == 2:  # Not with the first, which may be that of a rank in haste.
            self._retire(store)

    def _head_before(self, store: CheckpointStore, fence: int, step: int) -> Head:
        """The last segment of this owner that is not after the step: another rank may have written it."""
        if self._has_looked and self._head.step <= step:
            return self._head
        for name in reversed(receipts.segment_names(store)):
            if (order := receipts.order_of(name))[0] == fence and order[1] <= step:
                segment, digest = receipts.read_segment(store, name)
                total = int(segment.spans[-1].total, 16) if segment.spans else self._head.total
                self._has_looked = True
                return Head(name, digest, segment.step, total)
        self._has_looked = True
        return self._head

    def _retire(self, store: CheckpointStore) -> None:
        try:
            for name in receipts.segment_names(store)[: -receipts.MOST_SEGMENTS][:_AT_ONCE]:
                store.delete_file(receipts.file_of(name))
        except (StoreUnavailable, InvalidSettings, OSError) as error:
            _log.warning("old segments of the training receipt stay for now: %s", printable(error))


def _after(spans: tuple[Span, ...], step: int) -> tuple[Span, ...]:
    """Those after the step. A total is from the beginning, so a span that is cut keeps its own."""
    return tuple(replace(span, first=max(span.first, step + 1)) for span in spans if span.last > step)
