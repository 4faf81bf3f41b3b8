"""The receipt of a training: what it proves, and where it says that something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.audit.__main__ import main
from elastic_runtime.audit.verifying import ReceiptBroken, verify
from elastic_runtime.checkpoint import receipts
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, GlobalBatches
from elastic_runtime.training.batches.plan import BatchPlan
from elastic_runtime.training.receipt import StepLog

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")
DATA = list(range(10))


def trained(spec: CheckpointSpec, to: int, every: int = 2, **changed: Any) -> None:
    """Train up to a step, with a durable checkpoint of every second one."""
    state = DurableState(step=0, checkpoint=spec)
    for batch in GlobalBatches(DATA, **{"size": 4, "seed": 0, "state": state, "epochs": 9, **changed}):
        state.commit()
        if batch.step % every == 0:
            state.finish()
        if batch.step == to:
            break
    if to % every:
        state.finish()


def segment_file(spec: CheckpointSpec, step: int) -> Path:
    (found,) = Path(spec.uri.removeprefix("file://")).glob(f"receipt/*-s{step:012d}-*")
    return found


def test_a_training_through_several_processes_is_whole(
    spec: CheckpointSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(spec, 4)
    trained(replace(spec, fence=2), 9)
    found = verify(open_store(spec.uri))
    assert (found.first, found.step, found.resumed, found.unknown, found.cut) == (0, 9, 1, 0, 0)
    assert (found.samples, found.epochs) == (30, 3.0)
    assert len(found.checkpoints) == spec.keep
    assert main(["verify", spec.uri]) == 0
    assert "steps 1 to 9, each once" in capsys.readouterr().out


def test_steps_that_were_lost_are_cut(spec: CheckpointSpec) -> None:
    trained(spec, 4)
    # The newest checkpoint is damaged, so the next process goes on from the one before.
    (newest,) = Path(spec.uri.removeprefix("file://")).glob("ckpt-*-s000000000004-*")
    (newest / "attributes.json").write_bytes(b"{}")
    trained(replace(spec, fence=2), 6)
    found = verify(open_store(spec.uri))
    assert (found.step, found.cut, found.resumed, found.samples) == (6, 1, 1, 20)


def test_a_script_without_batches_has_steps_alone(spec: CheckpointSpec) -> None:
    with DurableState(step=0, checkpoint=spec) as state:
        for _ in range(3):
            state.step += 1
            state.commit()
    found = verify(open_store(spec.uri))
    assert (found.step, found.unknown, found.samples) == (3, 3, 0)


def changed(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(values)


def other_samples(document: dict[str, Any]) -> None:
    document["spans"][0]["batches"]["seed"] = 1


def one_step_less(document: dict[str, Any]) -> None:
    document["spans"][0]["first"] += 1


@pytest.mark.parametrize(
    ("step", "alter", "where"),
    [
        (4, changed(resumed=True), "step 4: the segment of checkpoint .* was altered"),
        (8, other_samples, "step 7: dataset, size or seed have changed|steps 7 to 8: the samples are not"),
        (8, one_step_less, "step 7 is missing"),
        (8, changed(manifest="0" * 64), "step 8: checkpoint .* is not the one that was written"),
    ],
)
def test_the_first_place_that_is_broken_is_named(
    spec: CheckpointSpec,
    step: int,
    alter: Callable[[dict[str, Any]], None],
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained(spec, 8)
    path = segment_file(spec, step)
    document = json.loads(path.read_text())
    alter(document)
    segment = receipts.from_json(receipts.Segment, json.dumps(document))
    path.write_bytes(receipts.encode_segment(segment))
    with pytest.raises(ReceiptBroken, match=where):
        verify(open_store(spec.uri))
    assert main(["verify", spec.uri]) == 1
    assert capsys.readouterr().err.startswith("verify: ")


def test_a_segment_or_a_checkpoint_that_is_gone_or_altered_is_named(spec: CheckpointSpec) -> None:
    trained(spec, 8)
    removed = segment_file(spec, 4)
    kept = removed.read_bytes()
    removed.unlink()
    with pytest.raises(ReceiptBroken, match=r"no segment of it|step 4: the segment of checkpoint .* is missing"):
        verify(open_store(spec.uri))
    removed.write_bytes(kept)
    (newest,) = Path(spec.uri.removeprefix("file://")).glob("ckpt-*-s000000000008-*")
    (newest / "attributes.json").write_bytes(b"{}")
    with pytest.raises(ReceiptBroken, match=r"step 8: checkpoint .*attributes\.json has 2 bytes"):
        verify(open_store(spec.uri))


def test_a_data_set_that_nobody_can_have_is_refused(spec: CheckpointSpec) -> None:
    """It would be sorted in memory."""
    trained(spec, 2)
    segment = segment_file(spec, 2)
    segment.write_bytes(segment.read_bytes().replace(b'"samples":10,', b'"samples":1000000000000,'))
    with pytest.raises(InvalidSettings, match="a data set of 1000000000000 samples; up to"):
        verify(open_store(spec.uri))


def test_other_batches_within_an_epoch_are_named(spec: CheckpointSpec) -> None:
    trained(spec, 4)
    trained(replace(spec, fence=2), 6, seed=1)
    with pytest.raises(ReceiptBroken, match="step 5: dataset, size or seed have changed within an epoch"):
        verify(open_store(spec.uri))


def test_another_rank_goes_on_with_the_chain(spec: CheckpointSpec) -> None:
    """It has noted the same, and finds what the first rank has written meanwhile."""
    plan = BatchPlan(10, 4, 0, epochs=9)
    first, other = StepLog(), StepLog()
    other.take(first.note())
    store = open_store(spec.uri)
    first_writes, other_writes = (_Writer(store, log) for log in (first, other))
    for log in (first, other):
        log.in_world()
        log.trains_on(plan, "samples", 0)
    for step in range(1, 7):
        first.committed(step, 2)
        other.committed(step, 2)
        if step == 4:
            first_writes(step)
    other.in_world()
    other.committed(7, 1)
    other_writes(7)
    found = verify(store)
    assert (found.step, found.segments, found.worlds) == (7, 2, [(1, 2), (7, 1)])


class _Writer:
    def __init__(self, store: Any, log: StepLog) -> None:
        from elastic_runtime.checkpoint.checkpoints import Checkpoints

        self._checkpoints, self._log = Checkpoints(store, 1, 5), log

    def __call__(self, step: int) -> None:
        from elastic_runtime.clock import utc_now

        record = self._log.recorder(self._checkpoints.store, 1)
        self._checkpoints.write(step, utc_now(), {}, record=record)
