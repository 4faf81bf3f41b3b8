"""A hand-over for scripts that use no state of ours: a callback before workers are taken; a stock state in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script, sizes_of

pytestmark = pytest.mark.timeout(300)


def told(run: ScriptedRun) -> list[dict[str, Any]]:
    """What callbacks noted."""
    return [note for note in run.notes() if "told" in note]


def take_all(run: ScriptedRun, seconds: float) -> None:
    """Both workers, and nobody comes before they are gone."""
    for name in [run.worker(rank).name for rank in (0, 1)]:
        run.reclaim(name, seconds)
    run.until_status(lambda _: len(run.events(EventKind.NOTICE)) == 2, "both notices")


def test_a_callback_is_told_on_every_rank_before_one_leaves(start: Start) -> None:
    run = start(Script("stock.py", ("notice",), epochs=1, holds=(5,)), (1, 2, 2))
    run.at(5)
    leaver = run.worker(1).name
    run.reclaim(leaver, seconds=20)
    run.worlds(2, 1, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED) == []
    notes = {note["rank"]: note for note in told(run)}
    assert len(told(run)) == 2
    assert {rank: note["mine"] for rank, note in notes.items()} == {0: False, 1: True}
    for note in notes.values():
        assert (note["told"], note["workers"], note["everyone"], note["seconds"]) == (5, [leaver], False, 0.0)


def test_a_plain_script_saves_its_own_file_before_all_are_taken_and_begins_with_it(start: Start) -> None:
    # The 40 steps that are left take 12 s on any machine, more than the workers have.
    script = Script("stock.py", ("notice",), epochs=2, holds=(20,), step_seconds=0.3)
    run = start(script, (2, 2, 2), recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    take_all(run, 8.0)
    run.until(lambda: {note["rank"] for note in told(run) if note["everyone"]} == {0, 1}, "both ranks have been told")
    run.go(20)
    run.worlds(2, 0, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 0, 2, 0]
    assert {note["told"] for note in told(run)} == {20}
    assert sorted(note["joined"] for note in run.notes() if "joined" in note) == [0, 0, 20, 20]


def test_a_stock_state_wrapped_in_one_line_loses_no_step_when_all_are_taken(start: Start, tmp_path: Path) -> None:
    script = Script("stock.py", ("durable",), epochs=2, holds=(20,), step_seconds=0.3)
    checkpoint = CheckpointSpec((tmp_path / "checkpoints").as_uri(), every=3600.0)
    run = start(script, (2, 2, 2), checkpoint=checkpoint, recovery=RecoverySpec(backoff=0.1))
    run.at(20)
    take_all(run, 8.0)
    run.go(20)
    run.worlds(2, 0, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 0, 2, 0]
    assert run.events(EventKind.LOST) == []
    [step] = [each.step for each in status.events if each.kind is EventKind.RESUMED and "checkpoint" in each.message]
    assert step is not None
    assert 20 < step < 60, "it trained on for as long as it could"
    ledger = run.ledger()
    assert set(ledger.steps().items()) == {(step, 1) for step in range(1, 61)}
    for epoch in (0, 1):
        assert ledger.samples(epoch) == dict.fromkeys(range(120), 1)
