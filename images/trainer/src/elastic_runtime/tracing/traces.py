"""Traces of a run's ranks beside its checkpoints: names, and the merge of the timeline.

======================================  ===========================================================================
``traces/piece-FENCE-TIME-SIZE-….gz``   a world's timeline, or a sample of it, as Horovod wrote it, compressed
``traces/timeline-FENCE.json.gz``       all of them, merged (:mod:`elastic_runtime.tracing.timeline`)
``traces/profile-FENCE-….json.gz``      torch's profiler of one rank
``tensorboard/events.out.tfevents.…``   what rank 0 reported, for TensorBoard
``outputs-FENCE/…``                     what the script itself left (:mod:`elastic_runtime.script.kept_outputs`)
======================================  ===========================================================================

``python -m elastic_runtime.tracing.traces URI FENCE`` merges by hand, where no worker was left to do so.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, cast

from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.documents import from_json
from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.tracing.timeline import LIMIT, Mark, Merged, Piece, merge

FOLDER, TENSORBOARD_FOLDER = "traces", "tensorboard"
OWNERS = 10
"""Owners of a run, the newest, whose traces stay."""
MOST_EVENTS = 100
"""TensorBoard's files that stay, the newest; each process of rank 0 writes one."""
_DELETIONS = 200
"""At most, at once: the worker may be about to go."""
MOST_PIECES = 1000
"""Worlds of a merged timeline, or samples of them."""
LARGEST = 64 * 1024 * 1024
"""Bytes of one file in the store."""
_TRACE = re.compile(r"traces/(piece|timeline|profile)-([0-9]{1,18})[-.][A-Za-z0-9._-]{1,180}")
_EVENTS = re.compile(r"tensorboard/events\.out\.tfevents\.[A-Za-z0-9._-]{1,180}")
_PIECE = re.compile(r"traces/piece-([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,6})-[A-Za-z0-9._-]{1,150}\.gz")
_CHUNK = 64 * 1024
_MARKS = 4 * 1024 * 1024
_PLAIN = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks that the launcher passes to the merge."""

    marks: tuple[Mark, ...] = ()


def piece_name(fence: int, begin: int, size: int, host: str) -> str:
    """Return the name of a world's timeline, or of a sample. ``begin``: microseconds since 1970; ``size``: ranks."""
    return f"{FOLDER}/piece-{fence}-{begin:016d}-{size}-{_PLAIN.sub('_', host)[:150]}.gz"


def timeline_name(fence: int) -> str:
    """Return the name of a run's merged timeline."""
    return f"{FOLDER}/timeline-{fence}.json.gz"


def outputs_folder(fence: int) -> str:
    """Return the folder of the outputs of rank 0's script."""
    return f"outputs-{fence}"


def profile_name(fence: int, file: str) -> str:
    """Return the name of a rank's profile by torch's profiler."""
    return f"{FOLDER}/profile-{fence}-{_PLAIN.sub('_', PurePosixPath(file).name)[:150]}"


def has_pieces(store: CheckpointStore, fence: int) -> bool:
    """Whether there is anything to merge. Raises StoreUnavailable, InvalidSettings."""
    return any(_pieces(store, fence))


def _pieces(store: CheckpointStore, fence: int) -> list[re.Match[str]]:
    return [match for name in store.files(FOLDER) if (match := _PIECE.fullmatch(name)) and int(match[1]) == fence]


def merge_stored(store: CheckpointStore, fence: int, marks: Sequence[Mark]) -> Merged | None:
    """Merge the pieces of a run in its store, into its store; None when there are none.

    Raises:
        StoreUnavailable, InvalidSettings: the store cannot be used.
    """
    ordered = sorted(_pieces(store, fence), key=lambda match: (int(match[2]), match[0]))[:MOST_PIECES]
    if not ordered:
        return None
    pieces = (Piece(int(match[2]), int(match[3]), _chunks(store, match[0])) for match in ordered)
    with store.write_file(timeline_name(fence)) as stream, packed(stream) as target:
        return merge(pieces, marks, target.write)


def retire(store: CheckpointStore, fence: int) -> None:
    """Delete the traces of owners long before this one, the pieces of timelines that are merged, and old events.

    Nothing of this owner's, nor of a newer one's.

    Raises:
        StoreUnavailable, InvalidSettings: the store cannot be used.
    """
    found = [match for name in store.files(FOLDER) if (match := _TRACE.fullmatch(name))]
    before = [(int(match[2]), match[1], match[0]) for match in found if int(match[2]) < fence]
    kept = sorted({owner for owner, _, _ in before}, reverse=True)[: OWNERS - 1]
    merged = {owner for owner, kind, _ in before if kind == "timeline"}
    old = [name for owner, kind, name in before if owner not in kept or (kind == "piece" and owner in merged)]
    ages = {name: age for name, age in store.ages(TENSORBOARD_FOLDER).items() if _EVENTS.fullmatch(name)}
    old += sorted(ages, key=lambda name: ages[name])[MOST_EVENTS:]
    for name in old[:_DELETIONS]:
        store.delete_file(name)


def packed(stream: BinaryIO) -> gzip.GzipFile:
    """Return a writer whose data is compressed into the stream, which stays open."""
    return gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=5, mtime=0, filename="")


def _chunks(store: CheckpointStore, name: str) -> Iterator[bytes]:
    """Of a piece, unpacked; what cannot be read ends them."""
    try:
        with closing(store.open_beside(name, LARGEST)) as stream, gzip.GzipFile(fileobj=stream) as unpacked:
            left = LIMIT
            while left > 0 and (chunk := unpacked.read(_CHUNK)):
                left -= len(chunk)
                yield chunk
    except (InvalidDocument, OSError, EOFError, zlib.error) as error:
        sys.stderr.write(f"{name} is not read to its end: {printable(error)}\n")


def main() -> None:
    """Marks on stdin, if any; exit status 3 when there is no timeline."""
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit(
            "usage: python -m elastic_runtime.tracing.traces CHECKPOINT_URI FENCE   (the fence is in the pieces' names)"
        )
    text = "" if sys.stdin.isatty() else cast(BinaryIO, sys.stdin.buffer).read(_MARKS).decode(errors="replace")
    try:
        marks = from_json(Marks, text).marks if text.strip() else ()
        store = open_store(sys.argv[1])
        with closing(store):
            done = merge_stored(store, int(sys.argv[2]), marks)
    except (ElasticError, InvalidSettings) as error:
        sys.exit(f"the timeline is not merged: {error}")
    if done is None:
        sys.exit(3)
    if done.left_out or done.full:
        rest = ", and what was beyond its limit" if done.full else ""
        sys.stderr.write(f"{done.left_out} places of the timeline that cannot be read as events were left out{rest}\n")


if __name__ == "__main__":
    main()
