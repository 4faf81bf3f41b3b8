"""Objects of torch's that a state keeps, made at random: the same of one seed on every rank, but for their values.

``DEVICE`` is where modules are, and about half of the other tensors (``cuda``).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import torch
from random_checks import canonical
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))
WIDTHS = (3, 3, 3, 4)
"""Few, so that many tensors have one shape."""


def encode(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    data = value.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)
    return str(value.dtype), tuple(value.shape), data.cpu().numpy().tobytes()


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
                    state["levels"] = torch.zeros(parameter.shape, dtype=torch.uint8, device=parameter.device)
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
    return model.to(DEVICE, choose.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16)))


def an_optimizer(choose: random.Random, model: nn.Module) -> torch.optim.Optimizer:
    kinds: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
        lambda given: torch.optim.SGD(given, lr=0.1),
        lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
        lambda given: torch.optim.AdamW(given, lr=0.1, amsgrad=True),
        lambda given: torch.optim.Adam(given, lr=torch.tensor(0.1)),
        lambda given: torch.optim.RMSprop(given, lr=0.1, centered=True, momentum=0.1),
        lambda given: torch.optim.NAdam(given, lr=0.1),
        lambda given: torch.optim.Adagrad(given, lr=0.1),
        lambda given: torch.optim.ASGD(given, lr=0.1),
        lambda given: torch.optim.Adadelta(given, lr=0.1),
        MasterWeights,
    )
    make = choose.choice(kinds)
    parameters = list(model.parameters())
    if len(parameters) == 1 or choose.random() < 0.5:
        return make(parameters)
    optimizer = make(parameters[:1])
    if isinstance(optimizer, torch.optim.Adagrad):  # In torch 2.11 it has no state for groups that are added.
        return make([{"params": parameters[:1]}, {"params": parameters[1:]}])
    optimizer.add_param_group({"params": parameters[1:]})
    return optimizer


class Plateau(lr_scheduler.ReduceLROnPlateau):
    """With the same loss after each step."""

    def step(self) -> None:  # type: ignore[override]
        super().step(1.0)


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
        lambda: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
        lambda: Plateau(optimizer, patience=0),
        lambda: SWALR(optimizer, swa_lr=0.05),
    ))()  # fmt: skip


def a_tensor(choose: random.Random, values: torch.Generator) -> torch.Tensor:
    shape = choose.choice(((), (0,), (3,), (3, 3), (2, 0, 1), (5, 3)))
    is_moved = DEVICE.type != "cpu" and choose.random() < 0.5

    def normal(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=values)
        return made.to(DEVICE) if is_moved else made

    raw = normal(*shape)
    return choose.choice((
        lambda: raw,
        lambda: raw.to(torch.bfloat16),
        lambda: raw.to(torch.float8_e4m3fn),
        lambda: (raw * 100).to(torch.int8),
        lambda: raw > 0,
        lambda: torch.complex(raw, raw + 1),
        lambda: torch.complex(raw, raw + 1).conj(),
        lambda: normal(7, 7)[1:4, 2:5],
        lambda: normal(3, 3).t(),
        lambda: normal(3, 1).expand(3, 3),
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


class Kept:
    """What one rank has made of a seed, without the state that keeps it."""

    def __init__(self, seed: int, rank: int) -> None:
        choose, torch_seed = random.Random(seed), seed * 10 + rank
        torch.manual_seed(torch_seed)
        own = random.Random(torch_seed)
        self.models = [a_model(choose) for _ in range(choose.randint(1, 3))]
        self.optimizers = [an_optimizer(choose, model) for model in self.models]
        self.schedulers = [a_scheduler(choose, each) for each in self.optimizers if choose.random() < 0.7]
        kept: dict[str, Any] = {}
        for number, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            kept |= {f"optimizer_{number}": optimizer, f"model_{number}": model}
        kept |= {f"scheduler_{number}": each for number, each in enumerate(self.schedulers)}
        self.averages: list[tuple[AveragedModel, nn.Module]] = []
        for number, model in enumerate(self.models):
            if choose.random() < 0.6:
                way = choose.choice((None, get_ema_multi_avg_fn(0.9)))
                # On GPUs torch's plain average fails with buffers of integers (2.11).
                has_buffers = choose.random() < 0.5 and (way is not None or DEVICE.type == "cpu")
                self.averages.append((AveragedModel(model, multi_avg_fn=way, use_buffers=has_buffers), model))
                kept[f"average_{number}"] = self.averages[-1][0]
        if choose.random() < 0.5:
            kept["scaler"] = torch.amp.GradScaler(DEVICE.type, init_scale=2.0 ** own.randrange(8))
        values = torch.Generator().manual_seed(torch_seed)
        for number in range(choose.randrange(4)):
            kept[f"extra_{number}"] = a_tree(choose, values)
        names = list(kept)
        choose.shuffle(names)
        self.kept = {name: kept[name] for name in names}
        self.state: Any = None
        # A new rank has no past; a survivor may have one.
        for step in range(own.choice((0, 0, 1, 3))):
            self.train(seed + step)
        self.step = own.randrange(100)

    def train(self, seed: int) -> None:
        """A step, the same on ranks that have the same state."""
        data = torch.Generator().manual_seed(seed)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad()
            given = torch.randn(4, model.width, generator=data).to(next(model.parameters()))
            model(given).pow(2).mean().backward()
            optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()
        for average, model in self.averages:
            average.update_parameters(model)

    def everything(self) -> dict[str, Any]:
        found: dict[str, Any] = {"step": self.state.step}
        for name in self.kept:
            value = getattr(self.state, name)
            found[name] = value.state_dict() if hasattr(value, "state_dict") else value
        encoded: dict[str, Any] = canonical(found, encode)
        return encoded
