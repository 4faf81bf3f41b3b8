"""States of which each rank has a part, beyond what tests with ``each_engine`` show: whole digests, and checkpoints."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec
from elastic_runtime.run.status import EventKind, Phase
from elastic_runtime.torch import load_checkpoint
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.checkpointing.parts import part_writers
from tests.local.conftest import Start
from tests.local.harness import ScriptedRun
from tests.paced import Script

pytestmark = pytest.mark.timeout(300)


def digest(values: dict[str, Any]) -> str:
    """Of a checkpoint, as the script has it."""
    sha = hashlib.sha256()
    for tensor in values["model"].values():
        sha.update(tensor.numpy().tobytes())
    for _, of_parameter in sorted(values["optimizer"]["state"].items()):
        for _, tensor in sorted(of_parameter.items()):
            sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def begin(start: Start, script: Script, workers: tuple[int, int, int], **more: Any) -> ScriptedRun:
    return start(script, workers, engine="torch", recovery=RecoverySpec(backoff=0.5), **more)


def lose_one_of_four(run: ScriptedRun, rank: int) -> None:
    """By SIGKILL; awaits the world of four after that."""
    worlds = run.trains(4)
    run.kill_rank(rank)
    run.until_status(
        lambda status: run.events(EventKind.RANK_FAILED) and len(status.history) > worlds and status.world_size == 4,
        "four ranks again",
    )


def assert_nothing_changed_between_steps(run: ScriptedRun) -> None:
    """All ranks had the same state after each step, before and after the world changed."""
    notes = [note for note in run.notes() if "digest" in note]
    steps = {note["step"]: note["digest"] for note in notes if "step" in note}
    for note in notes:
        if step := note.get("step") or note.get("after") or note.get("joined"):
            assert note["digest"] == steps[step], (step, note)
        assert note.get("seen") in (None, [step] * 2)


@pytest.mark.shows(engine="torch-sharded", fault=("resize", "rank"), place="local")
@pytest.mark.parametrize("in_place", ["", pytest.param("1", marks=pytest.mark.long)])
def test_weights_and_the_optimizers_state_are_the_same_before_and_after_each_change(
    start: Start, in_place: str
) -> None:
    script = Script("sharded.py", epochs=6, holds=(8, 16, 24))
    run = begin(start, script, (1, 4, 4), environment={"IN_PLACE": in_place})
    for step, workers in ((8, 3), (16, 4)):
        run.at(step)
        run.resize(workers)
        run.until_status(lambda status, size=workers: status.world_size == size, f"{workers} ranks")
        run.go(step)
    run.at(24)
    lose_one_of_four(run, rank=1)
    run.go(24)
    assert run.finish().phase is Phase.SUCCEEDED
    assert set(run.ledger().steps().values()) == {1}
    assert_nothing_changed_between_steps(run)


@pytest.mark.shows(engine="torch-sharded", fault="resize", place="local")
@pytest.mark.parametrize("copies", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_nothing_is_lost_with_ranks_that_leave_together(start: Start, copies: str) -> None:
    run = begin(start, Script("sharded.py", epochs=3, holds=(8,)), (1, 5, 5), environment={"COPIES": copies})
    run.at(8)
    run.resize(1)  # With neighbours' copies alone, parts of three ranks would be gone.
    run.until_status(lambda status: status.world_size == 1, "one rank")
    run.go(8)
    assert run.finish().phase is Phase.SUCCEEDED
    assert set(run.ledger().steps().values()) == {1}
    assert_nothing_changed_between_steps(run)


@pytest.mark.shows(engine="torch-sharded", fault="rank", place="local")
def test_replicas_make_up_for_a_loss_without_copies(start: Start) -> None:
    run = begin(
        start, Script("sharded.py", epochs=3, holds=(8,)), (1, 4, 4), environment={"COPIES": "0", "MESH": "replicas"}
    )
    run.at(8)
    lose_one_of_four(run, rank=3)
    run.go(8)
    assert run.finish().phase is Phase.SUCCEEDED
    assert_nothing_changed_between_steps(run)


@pytest.mark.shows(engine="torch-sharded", fault="rank", place="local")
def test_more_losses_than_copies_go_back_to_the_checkpoint_that_all_have_written(start: Start, tmp_path: Path) -> None:
    store = CheckpointSpec(uri=(tmp_path / "store").as_uri(), every=0.05)
    run = begin(start, Script("sharded.py", epochs=3, holds=(8,)), (1, 3, 3), checkpoint=store)
    run.at(8)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 8, "a checkpoint of step 8")
    run.kill_ranks(1, 2)
    run.until_status(lambda status: len(run.events(EventKind.RANK_FAILED)) == 2 and status.world_size == 3, "three")
    run.go(8)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    assert "resumed" in " ".join(run.events(EventKind.RESUMED)), run.report("events")
    assert_nothing_changed_between_steps(run)
    [end] = {note["digest"] for note in run.notes() if "done" in note}
    assert status.checkpoint is not None
    stored = load_checkpoint(status.checkpoint.uri)
    assert (digest(stored), stored["step"], stored["seen"].tolist()) == (end, 21, [21, 21])


def test_more_losses_than_copies_before_the_first_checkpoint_start_over(start: Start, tmp_path: Path) -> None:
    store = CheckpointSpec(uri=(tmp_path / "store").as_uri(), every=600.0)
    run = begin(start, Script("sharded.py", epochs=3, holds=(8,)), (1, 3, 3), checkpoint=store)
    run.at(8)
    run.kill_ranks(1, 2)
    run.until_status(lambda _: run.events(EventKind.RESTARTED), "another start")
    run.go(8)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    assert "ranks ended together with those that kept copies of their parts" in run.log()
    # Every step up to the loss was done twice, from the first on: the same weights as of a run without losses.
    assert set(run.ledger().steps()) == set(range(1, 22))
    assert_nothing_changed_between_steps(run)


def test_a_checkpoint_is_resumed_by_another_number_of_ranks(start: Start, tmp_path: Path) -> None:
    store = CheckpointSpec(uri=(tmp_path / "store").as_uri())
    first = begin(start, Script("sharded.py", epochs=2), (3, 3, 3), checkpoint=store)
    assert first.finish().phase is Phase.SUCCEEDED
    [end] = {note["digest"] for note in first.notes() if "done" in note}

    second = begin(
        start,
        Script("sharded.py", epochs=3),
        (2, 2, 2),
        checkpoint=CheckpointSpec(uri=store.uri, fence=store.fence + 1),
    )
    assert second.finish().phase is Phase.SUCCEEDED
    assert {(note["joined"], note["digest"]) for note in second.notes() if "joined" in note} == {(14, end)}
    assert set(second.ledger().steps()) == set(range(15, 22))


def test_a_state_that_one_rank_had_whole_is_resumed_in_parts(start: Start, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Identity(), torch.nn.Linear(16, 1))
    model[2].register_buffer("calls", torch.tensor(7.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    uri = (tmp_path / "store").as_uri()
    parts = part_writers(TORCH, {**states, "seen": torch.full((2,), 7.0)}, {"step": 7})
    Checkpoints(open_store(uri), fence=1, keep=1).write(7, datetime.now(UTC), parts)

    run = begin(start, Script("sharded.py", epochs=2), (2, 2, 2), checkpoint=CheckpointSpec(uri=uri, fence=9))
    assert run.finish().phase is Phase.SUCCEEDED, run.report("no success")
    joined = {(note["joined"], note["digest"]) for note in run.notes() if "joined" in note}
    assert joined == {(7, digest(states))}


@pytest.mark.parametrize("script", [pytest.param("sharded.py", marks=pytest.mark.long), "parallel.py"])
def test_a_rank_keeps_nothing_of_worlds_that_are_over(start: Start, script: str) -> None:
    """Threads and sockets of their process groups: hundreds of resizes come in the life of a run."""
    holds = range(8, 50, 6)
    run = begin(start, Script(script, epochs=8, holds=tuple(holds)), (1, 2, 3))
    first: dict[int, tuple[int, int]] = {}

    def has_no_more(size: int) -> bool:
        rank = psutil.Process(run.rank_pid(0))
        threads, descriptors = rank.num_threads(), rank.num_fds()
        most = first.setdefault(size, (threads, descriptors))
        return threads <= most[0] and descriptors <= most[1]

    def resize(size: int) -> None:
        run.resize(size)
        run.until_status(lambda status: status.world_size == size, f"{size} ranks")

    for number, step in enumerate(holds):
        run.at(step)
        size = 2 + number % 2
        run.until(partial(has_no_more, size), f"no more than {first}")  # What is over may take a moment to go.
        resize(5 - size)
        run.go(step)
    run.succeed()
