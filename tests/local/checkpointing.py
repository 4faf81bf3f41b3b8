"""What tests of checkpoints under faults look for."""

from __future__ import annotations

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import StoredCheckpoint, opened_checkpoint
from elastic_runtime.run.status import EventKind, Phase, Status
from elastic_runtime.torch import load_checkpoint
from tests.local.harness import ScriptedRun
from tests.paced import Undisturbed

BALLAST = "3"
"""Megabytes in each checkpoint."""
WORLDS = (EventKind.STARTED, EventKind.SCALED, EventKind.SUSPENDED, EventKind.RESUMED, EventKind.RESTARTED,
          EventKind.NOTICE, EventKind.LOST, EventKind.RANK_FAILED, EventKind.FINISHED)  # fmt: skip
"""Every kind of event but those of checkpoints, and of workers that leave when all is over."""


def checkpoints(status: Status) -> list[str]:
    """``10`` for a checkpoint of step 10, ``-10`` for one that failed, each step once in a row."""
    steps: list[str] = []
    for event in status.events:
        if event.kind in (EventKind.CHECKPOINT, EventKind.HANDOVER):
            step, failed, _ = event.message.removeprefix("durable checkpoint of step ").partition(" FAILED")
            word = f"-{step}" if failed else step.partition(" ")[0]
            steps += [word] if steps[-1:] != [word] else []
    return steps


def until_checkpoint(run: ScriptedRun, step: int) -> Status:
    return run.until_status(lambda status: status.checkpoint and status.checkpoint.step == step, f"checkpoint {step}")


def until_failed(run: ScriptedRun, step: int) -> None:
    run.until_status(lambda status: f"-{step}" in checkpoints(status), f"checkpoint {step} has failed")


def assert_as_undisturbed(run: ScriptedRun, status: Status, undisturbed: Undisturbed) -> None:
    """Every step once, the same weights, and the last checkpoint holds them."""
    assert status.phase is Phase.SUCCEEDED, run.report("no success")
    assert set(run.ledger().steps().items()) == {(step, 1) for step in range(1, 71)}
    undisturbed.assert_same(run)
    assert status.checkpoint is not None
    assert status.checkpoint.step == 70
    model = load_checkpoint(status.checkpoint.uri)["model"]
    assert [float(w) for tensor in model.values() for w in tensor.flatten()] == run.weights()


def assert_ends_durably(run: ScriptedRun) -> None:
    """A run that is asked to end, after its tenth step, writes a checkpoint first."""
    run.until_status(lambda status: (status.step or 0) >= 10, "step 10")
    run.folder.ask_to_end("the task was cleared")
    status = run.end(max_wait=30.0)
    assert status.reason == "cancelled: the task was cleared"
    assert status.checkpoint is not None
    assert status.checkpoint.step >= 10


def published(uri: str) -> list[StoredCheckpoint]:
    """The earliest first."""
    store = open_store(uri)
    found = []
    for name in store.names():
        with opened_checkpoint(f"{uri}/{name}") as stored:
            found.append(stored)
    store.close()
    return sorted(found, key=lambda each: (each.manifest.step, each.name))  # of one step, names go by time
