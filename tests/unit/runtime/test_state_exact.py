"""What is loaded is what was kept, to the last bit, or is refused; how often ranks compare."""

from __future__ import annotations

import io
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import horovod.torch as hvd
import pytest
import torch
from torch import nn

from elastic_runtime.errors import InvalidSettings, StatesDiffer
from elastic_runtime.torch import DurableState
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.optimizers import load_optimizer
from elastic_runtime.training import tensor_files
from elastic_runtime.training.state.collectives import broadcast_tree
from elastic_runtime.training.state.fingerprint import fingerprint, first_difference, number_of
from elastic_runtime.training.state.verification import FEWEST_COMMITS, SHARE, CommitChecks, compare
from elastic_runtime.training.trees import leaves_of, map_tensors, outline, tensors_of
from tests.unit.runtime.rank_bench import Clock

pytestmark = pytest.mark.usefixtures("horovod", "no_thread_left")


def with_master_weights() -> dict[str, Any]:
    """bfloat16 parameters, and a state of other types."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "master": torch.randn(parameter.shape),
            "levels": torch.full(parameter.shape, 255, dtype=torch.uint8),
            "nested": {"count": torch.tensor([2**40 + 1])},
            "kind": "linear",
        }
    return {"model": model, "optimizer": optimizer}


def test_an_optimizers_state_keeps_its_types_at_a_restore() -> None:
    state = DurableState(**with_master_weights())
    state.commit()
    before = fingerprint(TORCH, state.optimizer.state_dict())
    for values in state.optimizer.state.values():
        values["master"] += 1
    state.restore()
    assert first_difference(before, fingerprint(TORCH, state.optimizer.state_dict())) is None


def test_and_when_it_takes_a_checkpoint_or_is_put_back() -> None:
    given = with_master_weights()
    kept = DurableState(**given)
    before = fingerprint(TORCH, kept.optimizer.state_dict())
    copied = kept._values.copied()
    other = DurableState(**with_master_weights())
    for values in other.optimizer.state.values():
        values["master"].zero_()
    other._values.put_back(copied)
    assert first_difference(before, fingerprint(TORCH, other.optimizer.state_dict())) is None
    third = DurableState(**with_master_weights())
    third._values.take({"optimizer": copied["states"]["optimizer"]}, "here")
    assert first_difference(before, fingerprint(TORCH, third.optimizer.state_dict())) is None


class Rounding:
    """Does not give back what it is given."""

    value = 0.3

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = round(state["value"])


def test_an_object_that_loads_something_else_is_refused_by_name() -> None:
    state = DurableState(rounding=Rounding())
    with pytest.raises(InvalidSettings, match=r"^DurableState\.rounding: its state_dict does not give back value"):
        state.restore()
    DurableState(rounding=Rounding(), verify="never").restore()


def test_a_parameter_of_its_own_stays_the_object_that_an_optimizer_has() -> None:
    temperature = nn.Parameter(torch.ones(2))
    state = DurableState(temperature=temperature, best={"t": torch.ones(2)})
    state.commit()
    with torch.no_grad():
        temperature += 1
    state.best["t"] += 1
    state.restore()
    assert state.temperature is temperature
    assert (temperature.tolist(), state.best["t"].tolist()) == ([1, 1], [1, 1])


def test_what_cannot_be_sent_is_refused_with_and_without_a_store() -> None:
    sparse = nn.Module()
    sparse.register_buffer("table", torch.eye(3).to_sparse())
    with pytest.raises(InvalidSettings, match=r"^DurableState\.model: its state cannot be kept: .*sparse"):
        DurableState(sparse)
    with pytest.raises(InvalidSettings, match="verify: 'sometimes' is unknown"):
        DurableState(verify="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
        lambda: torch.eye(3, device="meta"),
        lambda: torch.masked.as_masked_tensor(torch.eye(3), torch.eye(3) > 0),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_of_another_kind_is_refused_also_as_an_attribute(make: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(InvalidSettings, match=r"^DurableState\.tables: a dict cannot be kept, because of a tensor.*"):
        DurableState(tables={"a": [make()]})
    state = DurableState(tables={})
    state.tables = {"a": make()}
    with pytest.raises(InvalidSettings, match=r"^DurableState\.tables: a dict cannot be kept"):
        state.commit()


class Point(NamedTuple):
    """A tuple with names."""

    x: torch.Tensor


@pytest.mark.parametrize("value", [Point(torch.ones(2)), [deque([1])], {"a": defaultdict(list, b=[torch.ones(1)])}])
def test_a_container_that_would_come_back_as_another_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"^DurableState\.kept: .* cannot be kept"):
        DurableState(kept=value)


def test_a_commit_between_the_backward_passes_of_a_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    model = nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    names = model.named_parameters()
    state = DurableState(model, hvd.DistributedOptimizer(plain, named_parameters=names, backward_passes_per_step=2))
    for _ in range(2):
        state.commit()
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(InvalidSettings, match=r"^DurableState\.optimizer: .* all its 2 backward passes"):
            state.commit()
        model(torch.ones(1, 2)).sum().backward()
        state.optimizer.step()
        state.optimizer.zero_grad()


def test_groups_that_share_a_rate_are_scheduled_alike_before_and_after_a_restore() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)]
    optimizer = torch.optim.Adam(groups, lr=torch.tensor(0.5))
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    state = DurableState(optimizer=optimizer, scheduler=scheduler)
    state.commit()
    found = []
    for _ in range(2):
        scheduler.step(1.0)
        scheduler.step(1.0)
        found.append([float(group["lr"]) for group in optimizer.param_groups])
        state.restore()
    assert found == [[0.25, 0.25]] * 2


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_of_the_optimizer_that_was_distributed_has_the_same_groups_after_a_restore() -> None:
    model = nn.Linear(2, 1)
    plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    state = DurableState(model, optimizer, scheduler=scheduler)
    for _ in range(2):
        state.commit()
        state.restore()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


# Between ranks that are played


class Received:
    """The world of a new rank to which rank 0 sends a tree."""

    def __init__(self, tree: Any) -> None:
        self.rank, self.size = 1, 2
        tensors = _tensors(tree)
        data = len(tensors).to_bytes(8, "little") + bytes(len(tensors)) + outline(TORCH, tree)
        self._sent = iter([torch.tensor(list(len(data).to_bytes(8, "little")), dtype=torch.uint8)])
        self._rounds = iter([None, torch.frombuffer(bytearray(data), dtype=torch.uint8), tensors])

    def broadcast(self, targets: list[torch.Tensor]) -> None:
        values = next(self._rounds)
        sources = [next(self._sent)] if values is None else values if isinstance(values, list) else [values]
        for target in targets:
            target.zero_()  # As they are before bits are added up.
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves_of(TORCH, tree) if TORCH.is_tensor(leaf)]


def test_tensors_are_received_by_path_and_never_into_memory_that_another_entry_has() -> None:
    shared = torch.zeros(4)
    mine = {"ema": torch.full((2,), 9.0), "one": shared[:2], "two": shared[1:3], "three": shared[2:]}
    sent = {
        "optimizer": {"exp_avg": torch.full((2,), 1.0)},
        "ema": torch.full((2,), 2.0),
        **{name: torch.full((2,), value) for name, value in (("one", 3.0), ("two", 4.0), ("three", 5.0))},
    }
    got = broadcast_tree(Received(sent), TORCH, mine)  # type: ignore[arg-type]
    assert first_difference(fingerprint(TORCH, got), fingerprint(TORCH, sent)) is None
    assert got["ema"].data_ptr() == mine["ema"].data_ptr() != got["optimizer"]["exp_avg"].data_ptr()
    assert got["one"].data_ptr() == mine["one"].data_ptr()
    assert got["two"].data_ptr() != mine["two"].data_ptr()
    assert got["three"].data_ptr() == mine["three"].data_ptr()


def test_fingerprints_do_not_depend_on_layout_and_see_every_bit() -> None:
    one = {"a": torch.arange(6.0).reshape(2, 3), "b": {1: "x", "c": []}}
    turned = {"b": {"c": [], 1: "x"}, "a": torch.arange(6.0).reshape(2, 3).t().contiguous().t()}
    assert fingerprint(TORCH, one) == fingerprint(TORCH, turned)
    others = [
        {**one, "a": one["a"].double()},
        {**one, "a": one["a"].reshape(3, 2)},
        {**one, "a": one["a"][[1, 0]]},
        {**one, "b": {"1": "x", "c": []}},
        {**one, "b": {1: "x", "c": ()}},
        {**one, "b": {1: "x"}},
    ]
    assert len({first_difference(fingerprint(TORCH, one), fingerprint(TORCH, each)) for each in others} - {None}) >= 3
    numbers = {number_of((key, entry.digest) for key, entry in fingerprint(TORCH, each).items()) for each in others}
    assert len(numbers) == len(others)


def test_comparisons_are_as_seldom_as_their_cost_asks_for() -> None:
    clock, asked = Clock(), []
    checks = CommitChecks(clock)
    world: Any = SimpleNamespace(rank=0, size=2, maximum=lambda numbers: asked.append(numbers) or list(numbers))

    def take() -> dict[str, Any]:
        clock.now += 0.5  # a fingerprint of a large state
        return fingerprint(TORCH, {"step": 1})

    for commits in (FEWEST_COMMITS, 125):  # 0.5 s in 125 commits of 1 s are 0.4 %
        for number in range(1, commits + 1):
            clock.now += 1.0
            assert checks.due() == (number == commits)
        checks.run(world, TORCH, take, "then")
    assert pytest.approx(0.5 / SHARE) == asked[0][2]


def test_an_error_names_entries_and_ranks_on_every_rank() -> None:
    trees = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2, "c": 4}]
    fingerprints = [fingerprint(TORCH, tree) for tree in trees]
    said: list[list[list[float]]] = [[], []]
    sent: list[bytes] = []

    def on(rank: int, *, told: list[list[float]] | None) -> str:
        rounds = iter(told or ())
        count = iter(range(9))

        def maximum(numbers: list[float]) -> list[float]:
            said[next(count)].append(numbers)
            return next(rounds) if told else [numbers[0], numbers[1] + 1] if len(numbers) == 2 else list(numbers)

        def broadcast(targets: list[torch.Tensor]) -> None:
            if rank == 0 and not told:
                sent.append(bytes(targets[0].tolist()))
            elif rank:
                targets[0].copy_(torch.tensor(list(sent[len(received)]), dtype=torch.uint8))
                received.append(1)

        received: list[int] = []
        world: Any = SimpleNamespace(rank=rank, size=4, maximum=maximum, broadcast=broadcast)
        with pytest.raises(StatesDiffer) as raised:
            compare(world, TORCH, fingerprints[rank], "Now")
        return str(raised.value)

    for rank in range(4):
        on(rank, told=None)
    told = [[max(each) for each in zip(*numbers, strict=True)] for numbers in said]
    texts = {on(rank, told=told) for rank in range(4)}
    assert len(texts) == 1
    assert "rank 2: b, rank 3: an entry that rank 0 does not have" in texts.pop()


@pytest.mark.parametrize("through", ["a file", "a sync"])
def test_fused_steps_go_on_exactly_with_channels_last(through: str) -> None:
    """They take a parameter's moments by their place in memory."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model, torch.optim.Adam(model.parameters(), lr=0.1, fused=True)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        data = torch.arange(2 * 3 * 5 * 5.0).sin().reshape(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        model(data).square().sum().backward()
        optimizer.step()

    undisturbed, before = made(), made()
    for model, optimizer in (undisturbed, before):
        train(model, optimizer)
    tree = before[1].state_dict()
    if through == "a file":
        stream = io.BytesIO()
        tensor_files.write(TORCH, tree, stream)  # type: ignore[arg-type]
        stream.seek(0)
        received = tensor_files.read(TORCH, stream, len(stream.getvalue()))
    else:
        outlined, likes = TORCH.from_outline(outline(TORCH, tree))
        targets = [TORCH.target(None, like) for like in likes]
        for target, sent in zip(targets, tensors_of(TORCH, tree), strict=True):
            target.copy_(sent)
        remaining = iter(targets)
        received = map_tensors(TORCH, lambda _: next(remaining), outlined)
    model, optimizer = made()
    model.load_state_dict(before[0].state_dict())
    load_optimizer(optimizer, received)
    for each in (undisturbed, (model, optimizer)):
        train(*each)
    assert torch.equal(model.weight, undisturbed[0].weight)
