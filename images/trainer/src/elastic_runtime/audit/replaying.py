"""Trains the steps between two recorded checkpoints again, at another world size, and compares the result."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elastic_runtime.audit.verifying import read_chain
from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.checkpoint.manifest import encode_manifest
from elastic_runtime.checkpoint.receipts import UNTIL, Segment
from elastic_runtime.checkpoint.store import CheckpointStore, open_store
from elastic_runtime.errors import ElasticError, InvalidSettings
from elastic_runtime.run.observe import ObserveSpec
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec

_YEAR = 365 * 86400.0
_LAST_LINES = 2000
"""Characters of the log in an error."""


class NotReplayed(ElasticError):
    """The steps could not be trained again."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What has come of it."""

    start: int
    """Step of the checkpoint that it began with; 0: the beginning."""
    step: int
    differing: tuple[str, ...]
    """Parts whose bits differ; empty: the result is equal to the bit."""
    tensors: tuple[tuple[str, float, float], ...] | None
    """Of those parts, each tensor that differs: name, greatest difference, and that relative to the greatest value.
    None: the checkpoint of the run is no longer kept, so only digests were compared."""

    def is_within(self, limit: float) -> bool:
        """Whether no tensor differs by more, relative to its greatest value."""
        return not self.differing or (self.tensors is not None and all(each <= limit for _, _, each in self.tensors))


def replay(spec: RunSpec, step: int, workers: int, timeout: float) -> Replayed:
    """Load the checkpoint at or before a step, train on to the next one that the receipt has, and compare.

    The run's own store is only read.

    Args:
        spec: of the run. Its command is executed on this machine.
        step: from 0.
        workers: world size, in workers of as many slots as the run has.
        timeout: seconds for the training.

    Raises:
        ReceiptBroken: the receipt is not whole.
        InvalidSettings: the run has no checkpoints, or none after the step.
        NotReplayed: the training failed, or did not end in time.
        StoreUnavailable: the store does not answer.
    """
    if spec.checkpoint is None:
        raise InvalidSettings("RUN", "it has no checkpoint store", "Replay a run with checkpoint_uri")
    with closing(open_store(spec.checkpoint.uri)) as store:
        start, target = choose(store, step)
        base = Path(tempfile.mkdtemp(prefix="elastic-replay-"))
        try:
            again = open_store((base / "store").as_uri())
            fence = _copy(start, again) if start else 1
            _train(_changed(spec, workers, again.uri, fence, target.step), base, timeout)
            return _compared(store, again, start, target)
        finally:
            shutil.rmtree(base, ignore_errors=True)


def choose(store: CheckpointStore, step: int) -> tuple[StoredCheckpoint | None, Segment]:
    """Return the newest checkpoint at or before a step that is kept, and the first segment after it that reaches it."""
    segments = read_chain(store).segments
    kept = set(store.names())
    starts = [each for each in segments if each.step <= step and each.checkpoint in kept]
    begins = starts[-1].step if starts else 0
    for segment in segments:
        if segment.step > begins and segment.step >= step:
            found = Checkpoints(store, 0, 1).stored(starts[-1].checkpoint) if starts else None
            return found, segment
    raise InvalidSettings("--step", f"{step} has no checkpoint after it", f"Give less than {segments[-1].step}")


def _copy(stored: StoredCheckpoint, onto: CheckpointStore) -> int:
    manifest = stored.manifest
    with onto.begin(stored.name) as draft:
        for part in manifest.parts:
            with closing(stored.open_part(part.name)) as source, draft.part(part.name) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        draft.publish(encode_manifest(manifest), manifest.fence)
    return manifest.fence + 1


def _changed(spec: RunSpec, workers: int, uri: str, fence: int, until: int) -> RunSpec:
    assert spec.checkpoint is not None
    return replace(
        spec,
        name="replay",
        uid=secrets.token_hex(8),
        workers=WorkersSpec(workers, workers, workers, spec.workers.slots),
        checkpoint=replace(spec.checkpoint, uri=uri, every=_YEAR, keep=10, resume=True, fence=fence, owner=""),
        environment={**spec.environment, UNTIL: str(until)},
        size_plan=None, deadline=None, join=None, pool=None, jupyter=None, hostfile=None, observe=ObserveSpec(),
    )  # fmt: skip


def _train(spec: RunSpec, base: Path, timeout: float) -> None:
    folder = RunDir(base / "run")
    folder.create(spec, owner="replay")
    with folder.log.open("ab") as log:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "elastic_runtime.launcher", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        status = launcher.wait(timeout)
    except subprocess.TimeoutExpired:
        raise NotReplayed(f"the training did not end in {timeout:g} s. Give more by --timeout") from None
    finally:
        if launcher.poll() is None:  # It ends its workers, and they their ranks.
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGTERM)
            launcher.wait()
    if status:
        told = folder.read_status()
        lines = folder.log.read_text(errors="replace")[-_LAST_LINES:]
        raise NotReplayed(f"the training failed: {told.reason if told else 'the launcher did not start'}. Log: {lines}")


def _compared(
    store: CheckpointStore, again: CheckpointStore, start: StoredCheckpoint | None, target: Segment
) -> Replayed:
    begins = start.manifest.step if start else 0
    stored = [Checkpoints(again, 0, 1).stored(name) for name in again.names()]
    found = [each for each in stored if each.manifest.step == target.step]
    if not found:
        raise NotReplayed(f"the training ended without a checkpoint of step {target.step}: it commits other steps")
    parts = {part.name: part.sha256 for part in found[-1].manifest.parts}
    differing = tuple(sorted(name for name in {*parts, *target.parts} if parts.get(name) != target.parts.get(name)))
    tensors = None
    if differing and target.checkpoint in store.names():
        original = Checkpoints(store, 0, 1).stored(target.checkpoint)
        tensors = tuple(_differences(original, found[-1]))
    return Replayed(begins, target.step, differing, tensors)


def _differences(one: StoredCheckpoint, other: StoredCheckpoint) -> Iterator[tuple[str, float, float]]:
    from elastic_runtime.torch import load_checkpoint  # Which imports torch.

    theirs: dict[str, Any] = dict(_leaves(load_checkpoint(other.uri)))
    for name, value in _leaves(load_checkpoint(one.uri)):
        mine: Any = theirs.get(name)
        if not hasattr(value, "dtype"):
            if value != mine:
                yield name, float("inf"), float("inf")
        elif not hasattr(mine, "dtype") or value.shape != mine.shape or value.dtype != mine.dtype:
            yield name, float("inf"), float("inf")
        elif value.numel() and not bool((value == mine).all()):
            apart = float((value.double() - mine.double()).abs().max())
            yield name, apart, apart / (float(value.double().abs().max()) or 1.0)


def _leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}".lstrip("."))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{name}.{number}")
    else:
        yield name, tree
