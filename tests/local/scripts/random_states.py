"""Random states on the ranks of one world: equal everywhere after a sync, equal to what was saved after a restore.

Arguments: the first seed, and how many. Each rank makes the objects of a seed in the same way, with values and a past
of its own, as survivors and new ranks do. What is compared is encoded here, without the code under test.
"""

from __future__ import annotations

import hashlib
import io
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from elastic_runtime.torch import DurableState
from elastic_runtime.torch.family import TORCH
from elastic_runtime.world import current_world

WIDTHS = (3, 3, 3, 4)
"""Few, so that many tensors have one shape."""


def canonical(value: Any) -> Any:
    """Something that is equal exactly when the value is, tensors to the last bit."""
    if isinstance(value, torch.Tensor):
        data = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), bytes(data.tolist())
    if isinstance(value, dict):
        return {repr(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(canonical, value)]
    return repr(value)


class MasterWeights(torch.optim.Optimizer):
    """Keeps float32 weights and moments of parameters of any type, integers, a text, and tensors under odd keys."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["master"] = parameter.detach().to(torch.float32).clone()
                    state["levels"] = torch.zeros(parameter.shape, dtype=torch.uint8)
                    state[0] = {"count": torch.zeros(2, dtype=torch.int64), "kind": "linear", "steps": [0, (1.5, None)]}
                state["master"] -= group["lr"] * parameter.grad.to(torch.float32) + 1e-5
                state["levels"] += 3
                state[0]["count"] += 2**40 + 1
                state[0]["steps"][0] += 1
                parameter.copy_(state["master"])


class Tied(nn.Module):
    """Two layers that share a weight, a buffer, and one that is a view."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(2, width).t())
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.mean += 0.5
        self.count += 1
        return self.second(self.first(data).tanh())


def a_model(choose: random.Random) -> nn.Module:
    width = choose.choice(WIDTHS)
    model: nn.Module = choose.choice((
        lambda: nn.Linear(width, width, bias=False),
        lambda: nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)),
        lambda: Tied(width),
    ))()  # fmt: skip
    model.width = width
    return model.to(choose.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16)))


def an_optimizer(choose: random.Random, model: nn.Module) -> torch.optim.Optimizer:
    kinds: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
        lambda given: torch.optim.SGD(given, lr=0.1),
        lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
        lambda given: torch.optim.AdamW(given, lr=0.1, amsgrad=True),
        lambda given: torch.optim.Adam(given, lr=torch.tensor(0.1)),
        lambda given: torch.optim.RMSprop(given, lr=0.1, centered=True, momentum=0.1),
        lambda given: torch.optim.NAdam(given, lr=0.1),
        lambda given: torch.optim.Adagrad(given, lr=0.1),
        MasterWeights,
    )
    make = choose.choice(kinds)
    parameters = list(model.parameters())
    if len(parameters) == 1 or choose.random() < 0.5:
        return make(parameters)
    optimizer = make(parameters[:1])
    optimizer.add_param_group({"params": parameters[1:]})
    return optimizer


def a_scheduler(choose: random.Random, optimizer: torch.optim.Optimizer) -> Any:
    return choose.choice((
        lambda: lr_scheduler.StepLR(optimizer, 2),
        lambda: lr_scheduler.OneCycleLR(optimizer, 0.1, 1000, cycle_momentum=False),
        lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        lambda: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
        lambda: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
        ),
        lambda: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer)]),
        lambda: lr_scheduler.PolynomialLR(optimizer),
        lambda: SWALR(optimizer, swa_lr=0.05),
    ))()  # fmt: skip


def a_tensor(choose: random.Random, values: torch.Generator) -> torch.Tensor:
    shape = choose.choice(((), (0,), (3,), (3, 3), (2, 0, 1), (5, 3)))
    raw = torch.randn(shape, generator=values)
    return choose.choice((
        lambda: raw,
        lambda: raw.to(torch.bfloat16),
        lambda: raw.to(torch.float8_e4m3fn),
        lambda: (raw * 100).to(torch.int8),
        lambda: raw > 0,
        lambda: torch.complex(raw, raw + 1),
        lambda: torch.complex(raw, raw + 1).conj(),
        lambda: torch.randn(7, 7, generator=values)[1:4, 2:5],
        lambda: torch.randn(3, 3, generator=values).t(),
        lambda: torch.randn(3, 1, generator=values).expand(3, 3),
        lambda: nn.Parameter(raw.clone()),
    ))()  # fmt: skip


def a_tree(choose: random.Random, values: torch.Generator, depth: int = 0) -> Any:
    kind = choose.randrange(6 if depth < 3 else 2)
    if kind == 0:
        return a_tensor(choose, values)
    if kind == 1:
        return choose.choice((None, 3, "x", 2.5, float("inf"), True))
    if kind == 2:
        return [a_tree(choose, values, depth + 1) for _ in range(choose.randrange(3))]
    if kind == 3:
        return tuple(a_tree(choose, values, depth + 1) for _ in range(choose.randrange(3)))
    return {key: a_tree(choose, values, depth + 1) for key in choose.sample(("a", "b", 0, 1, "0"), 2)}


class Objects:
    """What one rank has made of a seed."""

    def __init__(self, seed: int, rank: int) -> None:
        choose, torch_seed = random.Random(seed), seed * 10 + rank
        torch.manual_seed(torch_seed)
        own = random.Random(torch_seed)
        self.models = [a_model(choose) for _ in range(choose.randint(1, 3))]
        self.optimizers = [an_optimizer(choose, model) for model in self.models]
        self.schedulers = [a_scheduler(choose, each) for each in self.optimizers if choose.random() < 0.7]
        kept: dict[str, Any] = {"optimizer": self.optimizers[0], "model": self.models[0]}
        for number in range(1, len(self.models)):
            kept |= {f"optimizer_{number}": self.optimizers[number], f"model_{number}": self.models[number]}
        kept |= {f"scheduler_{number}": each for number, each in enumerate(self.schedulers)}
        self.averages: list[tuple[AveragedModel, nn.Module]] = []
        for number, model in enumerate(self.models):
            if choose.random() < 0.6:
                way = choose.choice((None, get_ema_multi_avg_fn(0.9)))
                self.averages.append((AveragedModel(model, multi_avg_fn=way, use_buffers=choose.random() < 0.5), model))
                kept[f"average_{number}"] = self.averages[-1][0]
        if choose.random() < 0.5:
            kept["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0 ** own.randrange(8))
        values = torch.Generator().manual_seed(torch_seed)
        for number in range(choose.randrange(4)):
            kept[f"extra_{number}"] = a_tree(choose, values)
        names = list(kept)
        choose.shuffle(names)
        self.kept = {name: kept[name] for name in names}
        # A new rank has no past; a survivor may have one.
        for step in range(own.choice((0, 0, 1, 3))):
            self.train(seed + step)
        self.state = DurableState(**self.kept, step=own.randrange(100))

    def train(self, seed: int) -> None:
        """A step, the same on ranks that have the same state."""
        data = torch.Generator().manual_seed(seed)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad()
            given = torch.randn(4, model.width, generator=data).to(next(model.parameters()).dtype)
            model(given).pow(2).mean().backward()
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        for average, model in self.averages:
            average.update_parameters(model)

    def everything(self) -> Any:
        """All that is kept, as it is now."""
        found: dict[str, Any] = {"step": self.state.step}
        for name in self.kept:
            value = getattr(self.state, name)
            found[name] = value.state_dict() if hasattr(value, "state_dict") else value
        return canonical(found)


def check_equal(what: str, seed: int, value: Any) -> None:
    """On all ranks, by a number of 48 bits."""
    digest = hashlib.sha256(repr(sorted(value.items())).encode()).digest()
    number = float(int.from_bytes(digest[:6], "big"))
    greatest, least = current_world().maximum([number, -number])
    assert greatest == -least, f"seed {seed}: ranks differ {what}"


def check(seed: int) -> None:
    """All that is promised of one state."""
    rank = current_world().rank
    objects = Objects(seed, rank)
    before = objects.everything()
    objects.state.sync()
    after = objects.everything()
    assert rank or before == after, f"seed {seed}: rank 0 has changed"
    check_equal("after a sync", seed, after)
    objects.train(seed + 100)  # Two entries that share memory would show.
    check_equal("a step later", seed, objects.everything())
    objects.state.save()
    saved = objects.everything()
    loan = objects.state._values.lend()
    loan.wait()
    parts = {name: io.BytesIO() for name in loan.tree}
    for name, stream in parts.items():
        TORCH.write(loan.tree[name], stream)  # type: ignore[arg-type]
    loan.give_back()
    objects.train(seed + 101)
    objects.train(seed + 102)
    objects.state.step += 1
    objects.state.restore()
    assert objects.everything() == saved, f"seed {seed}: a restore differs from what was saved"
    other = Objects(seed, rank + 5)
    found = {name: TORCH.read(io.BytesIO(part.getvalue()), len(part.getvalue())) for name, part in parts.items()}
    plain = objects.state._values
    other.state._values.take({**plain._live().values(), **found}, "the checkpoint")
    assert other.everything() == saved, f"seed {seed}: a checkpoint differs from what was saved"


def main() -> None:
    torch.set_num_threads(1)
    current_world().enter()
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        check(seed)
    print(f"{count} states checked", flush=True)


main()
