"""DurableState takes up what a run before has left: whole, altered, malicious, or of another script."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.checkpoint.store import open_store
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidDocument, InvalidSettings, OwnershipLost
from elastic_runtime.protocol.rank_link import CHECKPOINT, CheckpointSkipped, CheckpointWritten, Resumed
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, load_checkpoint
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.checkpointing.parts import part_writers
from tests.unit.runtime.durable_bench import after, everything, of_kind, same, step, training
from tests.unit.runtime.rank_bench import Agent

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


def test_a_run_that_ends_and_starts_again_is_as_if_it_had_not(
    spec: CheckpointSpec, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = after(5)
    monkeypatch.setenv(CHECKPOINT, json.dumps({"uri": spec.uri}))
    with DurableState(**training(), link=agent.link, best=float("-inf"), shape=(1, 2)) as state:
        step(state, 3)
        state.best = 0.25
        state.commit()
    written = of_kind(CheckpointWritten, agent.heard())
    assert [message.step for message in written] == [3]

    again = DurableState(**training(seed=1), link=agent.link, best=float("-inf"), shape=(1, 2))
    assert of_kind(Resumed, agent.heard()) == [Resumed(uri=written[0].uri, step=3)]
    assert (again.step, again.best, again.shape) == (3, 0.25, (1, 2))
    step(again, 2)
    assert same(everything(again), uninterrupted)


def test_it_starts_afresh_when_told_to(spec: CheckpointSpec) -> None:
    with DurableState(step=0, checkpoint=spec) as state:
        state.step = 3
        state.commit()
    fresh = CheckpointSpec(spec.uri, resume=False, fence=2)
    assert DurableState(step=0, checkpoint=fresh).step == 0


def test_where_it_started_afresh_it_goes_on_once_all_ranks_are_lost(spec: CheckpointSpec, agent: Agent) -> None:
    with DurableState(step=0, checkpoint=spec) as state:
        state.step = 3000
        state.commit()
    fresh = CheckpointSpec(spec.uri, resume=False, fence=2)
    with DurableState(step=0, checkpoint=fresh) as state:
        state.step = 1000
        state.commit()
    again = DurableState(step=0, checkpoint=fresh, link=agent.link)
    assert again.step == 1000
    assert [message.step for message in of_kind(Resumed, agent.heard())] == [1000]


class Second:
    """The world as its second rank has it."""

    rank, size = 1, 2

    def __init__(self, world: Any) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


def test_all_ranks_know_what_the_first_one_has_passed_over(spec: CheckpointSpec) -> None:
    """Whoever has to make a commit durable does not take one of another script, of a higher step, for it."""
    parts = part_writers(TORCH, {"model": nn.Linear(3, 3).state_dict()}, {"step": 1000})
    with DurableState(model=nn.Linear(2, 2), checkpoint=spec) as state:
        state.commit()
    other = Checkpoints(open_store(spec.uri), spec.fence, keep=3).write(1000, utc_now(), parts)
    assert other is not None
    first = DurableState(model=nn.Linear(2, 2), checkpoint=spec)
    first.sync()
    second = DurableState(model=nn.Linear(2, 2))
    second._checkpoints = Checkpoints(open_store(spec.uri), spec.fence, keep=3)
    found = second._checkpoints.reached(500)
    assert found is not None
    assert found.name == other.name
    second._world = Second(second._world)  # type: ignore[assignment]

    def broadcast(*_given: object, **_options: object) -> bool:
        second._values.said = first._values.said
        return False

    second._values.sync = broadcast  # type: ignore[method-assign]
    second.sync()
    assert second._checkpoints.reached(500) is None


def test_another_run_that_began_in_the_same_second_does_not_train_there(spec: CheckpointSpec) -> None:
    first = DurableState(step=0, checkpoint=replace(spec, owner="again.1"))
    with pytest.raises(OwnershipLost, match=r"another run, again\.1"):
        DurableState(step=0, checkpoint=replace(spec, owner="other.2"))
    first.step = 3
    first.commit()
    first.finish()
    assert DurableState(step=0, checkpoint=replace(spec, owner="again.1")).step == 3


def test_an_altered_checkpoint_is_passed_over_and_said_so(spec: CheckpointSpec, agent: Agent) -> None:
    state = DurableState(step=0, model=nn.Linear(2, 2), checkpoint=spec, link=agent.link)
    for number in (1, 2):
        state.step = number
        state.commit()
        state.finish()
    first, second = of_kind(CheckpointWritten, agent.heard())
    part = Path(second.uri.removeprefix("file://")) / "model.safetensors"
    content = bytearray(part.read_bytes())
    content[-100] ^= 1
    part.write_bytes(content)
    again = DurableState(step=0, model=nn.Linear(2, 2), checkpoint=spec, link=agent.link)
    assert again.step == 1
    skipped, resumed = agent.heard()
    assert isinstance(skipped, CheckpointSkipped)
    assert skipped.uri == second.uri
    assert "model.safetensors was altered" in skipped.reason
    assert resumed == Resumed(uri=first.uri, step=1)


class Payload:
    """What somebody with a right to write to the store might put there: its digest is right, its content is code."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._proof,))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("model.pt", "is an archive of torch.save, which is not read any more"), ("model.safetensors", "senseless size")],
)
def test_code_in_a_checkpoint_is_not_run_but_passed_over(
    spec: CheckpointSpec, agent: Agent, tmp_path: Path, name: str, reason: str
) -> None:
    proof = tmp_path / "it ran"
    with DurableState(model=nn.Linear(2, 2), checkpoint=spec) as state:
        state.step = 1
        state.commit()
    archive = io.BytesIO()
    torch.save({"weight": torch.zeros(2, 2), "bias": Payload(proof)}, archive)
    parts = {**part_writers(TORCH, {}, {"step": 2}), name: lambda stream: stream.write(archive.getvalue())}
    bad = Checkpoints(open_store(spec.uri), fence=1, keep=3).write(2, utc_now(), parts)

    again = DurableState(model=nn.Linear(2, 2), checkpoint=spec, link=agent.link)

    assert again.step == 1
    skipped = of_kind(CheckpointSkipped, agent.heard())
    assert [message.uri for message in skipped] == [bad.uri]
    assert reason in skipped[0].reason
    with pytest.raises(InvalidDocument):
        load_checkpoint(bad.uri)
    assert not proof.exists()


def test_a_checkpoint_of_another_model_is_refused(spec: CheckpointSpec) -> None:
    with DurableState(model=nn.Linear(2, 2), checkpoint=spec) as state:
        state.commit()
    with pytest.raises(InvalidSettings, match="does not fit the model of this script"):
        DurableState(model=nn.Linear(3, 3), checkpoint=spec)


def test_a_checkpoint_of_another_model_is_passed_over_for_one_that_fits(spec: CheckpointSpec, agent: Agent) -> None:
    with DurableState(**training(), best=0.5, checkpoint=spec, link=agent.link) as state:
        step(state, 3)
        state.commit()
    (mine,) = of_kind(CheckpointWritten, agent.heard())
    parts = part_writers(TORCH, {"model": nn.Linear(3, 3).state_dict()}, {"step": 1000, "best": 0.0})
    other = Checkpoints(open_store(spec.uri), fence=1, keep=3).write(1000, utc_now(), parts)

    again = DurableState(**training(seed=1), best=1.0, checkpoint=spec, link=agent.link)

    skipped, resumed = agent.heard()
    assert isinstance(skipped, CheckpointSkipped)
    assert skipped.uri == other.uri
    assert skipped.reason.startswith("does not fit the model of this script")
    assert resumed == Resumed(uri=mine.uri, step=3)
    assert (again.step, again.best) == (3, 0.5)
    step(again, 2)
    assert same(everything(again), {**after(5), "best": 0.5})
    again.commit()
    again.finish()
    assert other is not None
    assert other.name in other.store.names(), "its own script may come back"


def test_a_state_that_could_not_be_loaded_leaves_nothing_behind(spec: CheckpointSpec) -> None:
    """What the older checkpoint lacks is as the script made it, and not as the one that was passed over has it."""
    with DurableState(model=nn.Linear(2, 2), checkpoint=spec) as state:
        state.step = 3
        state.commit()
    parts = part_writers(TORCH, {"model": nn.Linear(3, 3).state_dict()}, {"step": 1000, "best": 0.0})
    Checkpoints(open_store(spec.uri), fence=1, keep=3).write(1000, utc_now(), parts)
    again = DurableState(model=nn.Linear(2, 2), best=1.0, checkpoint=spec)
    assert (again.step, again.best) == (3, 1.0)


def test_what_a_checkpoint_lacks_stays_as_the_script_made_it(
    spec: CheckpointSpec, caplog: pytest.LogCaptureFixture
) -> None:
    with DurableState(step=5, old=1, checkpoint=spec) as state:
        state.commit()
    again = DurableState(step=0, new=2, checkpoint=spec)
    assert (again.step, again.new) == (5, 2)
    assert {record.message.split(" is only")[0] for record in caplog.records} == {"old", "new"}
