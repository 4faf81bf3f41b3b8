"""A writer of the store whose parts claim more than they hold: they are passed over, and the one before is taken."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, StoredCheckpoint
from elastic_runtime.checkpoint.manifest import decode_manifest
from elastic_runtime.engines.torch.own_group import let_go
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.protocol.rank_link import CheckpointSkipped, Resumed
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.restarts import newest_checkpoint
from elastic_runtime.torch.sharded.reading import Reading
from elastic_runtime.torch.sharded.stored import is_other, read_whole
from elastic_runtime.torch.whole import SIZES, damage
from elastic_runtime.training import tensor_files
from elastic_runtime.training.checkpointing.parts import ATTRIBUTES, read_parts
from elastic_runtime.training.state.resuming import take_newest
from elastic_runtime.training.state.values import StateValues
from elastic_runtime.training.trees import tensors_of
from elastic_runtime.world import WORLD, current_world
from tests.bounded_memory import bounded_memory
from tests.security.runtime.hostile_checkpoints import NOON, lay, manifest, part
from tests.unit.runtime.rank_bench import Agent

MANY = 2**44
"""Elements."""


class Alone:
    """A world of one rank."""

    rank, size = 0, 1

    def maximum(self, values: list[float]) -> list[float]:
        return values


@pytest.fixture
def of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes of this test have torch's world."""
    monkeypatch.setenv(WORLD, "elastic_runtime.engines.torch.world:WORLD")
    current_world.cache_clear()
    yield
    current_world.cache_clear()


@pytest.fixture
def world(of_torch: None) -> Iterator[Alone]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30))
    yield Alone()
    let_go()
    for thread in threading.enumerate():
        if thread.name == "own-group-ends":
            thread.join()
    dist.destroy_process_group()


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(Agent()) as agent:
        yield agent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def tree(momentum: Any = None) -> dict[str, Any]:
    """What :func:`build` makes after a step."""
    state = {0: {"momentum_buffer": torch.ones(2, 2) if momentum is None else momentum}}
    return {"model": {"weight": torch.ones(2, 2)}, "optimizer": {**build()[1].state_dict(), "state": state}}


HONEST_LAYOUT = [((2, 2), (0, 0), ""), ((2, 2), (0, 0), "")]


def shard(layout: Any, of: Any = None) -> bytes:
    """A part of a rank, of a model and its optimizer."""
    stream = io.BytesIO()
    tensor_files.write(TORCH, {"tree": of or tree(), "layout": layout}, cast(PartStream, stream))
    return stream.getvalue()


def claims(shape: tuple[int, ...], placement: str = "") -> bytes:
    """Less than 2 KiB, with an optimizer's tensor that claims to be part of one of that shape."""
    mine = tree(torch.ones((1,) * len(shape)))
    return shard([HONEST_LAYOUT[0], (shape, (0,) * len(shape), placement)], mine)


def names(count: int = 1) -> list[str]:
    return [f"sharded-{number:05d}-of-{count:05d}.safetensors" for number in range(count)]


def stored(folder: Path, forged: dict[str, bytes], **claimed: Any) -> Checkpoints:
    """An honest checkpoint of step 1, and a newer one of these parts, sums and sizes of which are right."""
    checkpoints = Checkpoints(open_store(folder.as_uri()), fence=1, keep=2)
    [name] = names()
    honest = shard(HONEST_LAYOUT)
    checkpoints.write(1, NOON, {name: lambda stream: cast(None, stream.write(honest))})
    here = lay(folder, manifest(*(part(each, data) for each, data in forged.items()), *claimed.values()), None)
    for each, data in forged.items():
        (here / each).write_bytes(data)
    return checkpoints


def read_all(stored: StoredCheckpoint) -> dict[str, Any]:
    """As a DurableState, and ``load_checkpoint``, read it."""
    return read_whole(stored, read_parts(TORCH, stored, is_other))


def newest(checkpoints: Checkpoints, read: Callable[[StoredCheckpoint], object]) -> tuple[int | None, list[str]]:
    """Its step, and why others were passed over."""
    reasons: list[str] = []
    with bounded_memory():
        found = checkpoints.newest(read, lambda uri, reason: reasons.append(f"{uri}: {reason}"))
    return (None if found is None else found[0].manifest.step), reasons


def newest_to_ranks(checkpoints: Checkpoints, world: Alone) -> tuple[int | None, list[str]]:
    """As a ShardedState reads it."""
    model, optimizer = build()
    found = newest(checkpoints, Reading(checkpoints, cast(Any, world), model, optimizer).lead)
    if found[0] is not None:
        assert torch.equal(model.state_dict()["weight"], torch.ones(2, 2))
    return found


def test_the_attacker_can_write_what_is_believed(folder: Path, world: Alone) -> None:
    checkpoints = stored(folder, {names()[0]: shard(HONEST_LAYOUT)})
    assert newest(checkpoints, read_all) == (2, [])
    assert newest_to_ranks(checkpoints, world) == (2, [])


FORGED: dict[str, bytes] = {
    "2**44 elements": claims((MANY,)),
    "2**44 elements as its parameter": claims((MANY,), "="),
    "a terabyte of rows": claims((2**20, 2**20)),
    "more elements than are counted": claims((2**40, 2**40)),
    "64 dimensions": claims((2**62,) * 60),
    "no elements of many": claims((2**62, 2**62, 1)),
    "none of more than are counted": shard(
        [HONEST_LAYOUT[0], ((0, 2**62, 2**62), (0, 0, 0), "")], tree(torch.ones(0, 1, 1))
    ),
    "just more than it holds": claims((1 << 12,)),
    "a tensor beside the state": shard([*HONEST_LAYOUT, ((2,), (0,), "")], {**tree(), "more": torch.ones(2)}),
    "in another order": shard(HONEST_LAYOUT, dict(reversed(tree(torch.ones(4)).items()))),
    "an offset beyond": shard([HONEST_LAYOUT[0], ((2, 2), (2**62, 0), "")]),
    "negative": shard([HONEST_LAYOUT[0], ((2, 2), (-1, 0), "")]),
    "true": shard([HONEST_LAYOUT[0], ((2, 2), (True, 0), "")]),
    "fewer dimensions": shard([HONEST_LAYOUT[0], ((2,), (0,), "")]),
    "a layout of none": shard([]),
    "names that are none": shard(HONEST_LAYOUT, {**tree(), "model": {1: torch.ones(2, 2)}}),
    "no optimizer's state": shard(HONEST_LAYOUT, {**tree(), "optimizer": [torch.ones(2, 2)]}),
}  # fmt: skip


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_part_that_claims_more_than_all_parts_hold_is_passed_over(folder: Path, world: Alone, data: bytes) -> None:
    assert len(data) < 4 << 10
    checkpoints = stored(folder, {names()[0]: data})
    step, reasons = newest_to_ranks(checkpoints, world)
    assert (step, len(reasons)) == (1, 1)
    assert reasons[0].isprintable()
    assert "ckpt-f000000000001-s000000000002" in reasons[0], "the warning names it"


def test_the_sizes_of_a_manifest_are_claims_too(folder: Path, world: Alone) -> None:
    """A part that is not there makes room for 2**44 elements."""
    there, absent = names(2)
    checkpoints = stored(folder, {there: claims((MANY,))}, absent=part(absent, size=1 << 49))
    assert newest_to_ranks(checkpoints, world)[0] == 1
    assert newest(checkpoints, read_all)[0] == 1


@pytest.mark.parametrize("data", [claims((MANY,)), claims((2**40, 2**40))], ids=["2**44", "2**80"])
def test_nor_does_a_state_that_is_whole_on_each_rank_believe_it(folder: Path, data: bytes) -> None:
    assert newest(stored(folder, {names()[0]: data}), read_all)[0] == 1


def test_a_machine_that_is_too_small_does_not_go_back(
    folder: Path, world: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a training would begin anew, without a word, because another program has the memory."""

    def full(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    checkpoints = stored(folder, {names()[0]: shard(HONEST_LAYOUT)})
    monkeypatch.setattr("elastic_runtime.torch.sharded.trees._fresh", full)
    with pytest.raises(torch.OutOfMemoryError):
        newest_to_ranks(checkpoints, world)


def test_an_optimizer_that_does_not_take_it_says_so(folder: Path, world: Alone) -> None:
    """What fits in sizes may be another script's: that is no damage, and the reader is told what to do."""
    other = tree()
    other["optimizer"]["param_groups"] = []
    with pytest.raises(InvalidSettings, match="the optimizer that it makes does not fit"):
        newest_to_ranks(stored(folder, {names()[0]: shard(HONEST_LAYOUT, other)}), world)


def another(**entries: Any) -> bytes:
    """Whole, and of another script: with these in the place of what :func:`tree` has."""
    state = {**tree(), **entries}
    return shard([(tuple(each.shape), (0,) * each.ndim, "") for each in tensors_of(TORCH, state)], state)


FOREIGN: dict[str, bytes] = {
    "another shape": another(model={"weight": torch.ones(3, 3)}),
    "another type": another(model={"weight": torch.ones(2, 2, dtype=torch.float64)}),
    "other names": another(model={"weight": torch.ones(2, 2), "bias\nlauncher: forged": 1}),
    "no tensor": another(model={"weight": 7}),
    "other groups": another(optimizer={**tree()["optimizer"], "param_groups": []}),
    "more parameters": another(optimizer={**tree()["optimizer"], "state": {7: {"momentum_buffer": torch.ones(2, 2)}}}),
    "another placement": shard([HONEST_LAYOUT[0], ((2, 2), (0, 0), "S0")]),
}


@pytest.mark.parametrize("data", FOREIGN.values(), ids=FOREIGN)
def test_a_whole_one_of_another_model_is_passed_over_for_one_that_fits(
    folder: Path,
    world: Alone,
    agent: Agent,
    data: bytes,
) -> None:
    """And where none fits, the script is another one: it does not begin anew."""
    checkpoints = stored(folder, {names()[0]: data})
    model, optimizer = build()
    reading = Reading(checkpoints, cast(Any, world), model, optimizer)
    values = StateValues(TORCH, SimpleNamespace(step=0), {"step": 0})

    def read(stored: StoredCheckpoint) -> dict[str, Any]:
        reading.lead(stored)
        return {}

    assert take_newest(checkpoints, read, values, agent.link)
    skipped, resumed = agent.heard()
    assert isinstance(skipped, CheckpointSkipped)
    assert "does not fit" in skipped.reason
    assert len(skipped.reason.splitlines()) == 1
    assert isinstance(resumed, Resumed)
    assert resumed.step == 1
    assert torch.equal(model.state_dict()["weight"], torch.ones(2, 2))
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], torch.ones(2, 2))
    assert len(optimizer.param_groups) == 1

    [honest] = folder.glob("ckpt-*-s000000000001-*")
    shutil.rmtree(honest)
    with pytest.raises(InvalidSettings, match="does not fit"):
        take_newest(checkpoints, read, values, agent.link)


def test_nothing_of_one_that_was_passed_over_stays_in_the_optimizer(folder: Path, world: Alone) -> None:
    """The one before it, which has no optimizer's state, would leave that of the other."""
    checkpoints = stored(folder, {names()[0]: shard(HONEST_LAYOUT)})
    reading = Reading(checkpoints, cast(Any, world), *build())
    [(newer, _)] = [checkpoints.newest(lambda found: found, lambda *_: None) or (None, None)]
    assert newer is not None
    reading.lead(newer)
    bare = {name: state for name, state in tree().items() if name == "model"}
    without = stored(folder.with_name("other"), {names()[0]: shard(HONEST_LAYOUT[:1], bare)})
    with pytest.raises(InvalidSettings, match="does not fit"):
        newest(without, reading.lead)


def rank_of_two(rank: int, folder: Path) -> None:
    """On rank 1 alone the optimizer is another one."""
    store = dist.FileStore(str(folder / "rendezvous"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    checkpoints = Checkpoints(open_store((folder / "run").as_uri()), fence=1, keep=2)
    model, optimizer = build()
    if rank:
        optimizer = torch.optim.SGD([{"params": [each]} for each in (*model.parameters(), torch.ones(1))], lr=0.1)
    reading = Reading(checkpoints, cast(Any, SimpleNamespace(rank=rank, size=2)), model, optimizer)
    try:
        if rank == 0:
            checkpoints.newest(reading.lead, lambda *_: None)
        else:
            reading.follow()
    except InvalidSettings as error:
        if rank == 0:
            reading.end(error)
        sys.stdout.write(str(error))
        sys.stdout.flush()
    os._exit(0)  # The group's threads may wait for the other rank.


@pytest.mark.usefixtures("of_torch")
@pytest.mark.timeout(300)  # Two processes import torch.
def test_what_does_not_fit_one_rank_fits_none_and_nobody_waits(folder: Path) -> None:
    stored(folder, {names()[0]: shard(HONEST_LAYOUT)})
    code = f"from {__name__} import *; rank_of_two(int(sys.argv[1]), Path(sys.argv[2]))"
    ranks = [
        subprocess.Popen((sys.executable, "-c", code, str(rank), str(folder.parent)), stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        words = [each.communicate(timeout=250)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    assert words[0] == words[1]
    assert "the optimizer that it makes does not fit" in words[0]


@pytest.mark.parametrize("step", [10**16, 10**400, -1], ids=["10**16", "10**400", "-1"])
def test_a_step_that_no_training_reaches_is_none(folder: Path, step: int) -> None:
    """The next checkpoint's name would be none that is found again, and its reports would not be believed."""
    attributes = json.dumps({"step": step}).encode()
    assert newest(stored(folder, {names()[0]: shard(HONEST_LAYOUT), ATTRIBUTES: attributes}), read_all)[0] == 1


def test_nor_does_a_manifest_have_it() -> None:
    assert decode_manifest(manifest(part(), step=10**15)).step == 10**15
    with pytest.raises(InvalidDocument, match="a step above"):
        decode_manifest(manifest(part(), step=10**15 + 1))


def safetensors(header: bytes, length: int | None = None, rest: bytes = b"") -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + rest


HOLLOW = {
    "a header of 2**63 bytes": safetensors(b"{}", 2**63),
    "a header of as much as is allowed": safetensors(b"{}", 100_000_000),
    "no header": safetensors(b"[]"),
    "no offsets": safetensors(b'{"a": {}}'),
    "offsets of none": safetensors(b'{"a": {"data_offsets": 5}}'),
    "offsets of words": safetensors(b'{"a": {"data_offsets": [0, "5"]}}'),
    "so deep": safetensors(b"[" * 200_000),
    "2**44 elements": safetensors(json.dumps({"a": {"data_offsets": [0, MANY]}}).encode()),
}


@pytest.mark.parametrize("data", HOLLOW.values(), ids=HOLLOW)
def test_a_restarted_script_s_file_that_claims_more_is_torn(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with bounded_memory():
        assert damage(tmp_path) == "model.safetensors ends too early"


@pytest.mark.parametrize(
    "sizes",
    [
        b"[" * 200_000,
        b'{"step-000000002": {"a\\u0000b": 1}}',
        b'{"step-000000002": {"model.pt": 1e999}}',
        b'{"step-000000002": {"model.pt": 17592186044416}}',
    ],
    ids=["so deep", "no name", "no size", "2**44"],
)
def test_recorded_sizes_are_claims(tmp_path: Path, sizes: bytes) -> None:
    for step in (1, 2):
        folder = tmp_path / f"step-{step:09d}"
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"")
    (tmp_path / SIZES).write_bytes(sizes)
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found[1] == (2 if sizes.startswith(b"[") else 1)
