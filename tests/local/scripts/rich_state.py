"""Models, optimizers and more that a training keeps, whose values are the same to the last bit in worlds of any size.

Gradients are those of ``exact_sums.py``. :func:`digests` has one digest for each entry of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import digesting
import torch
from exact_sums import build, gradient
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DIGEST_EVERY = digesting.EVERY
Sum = Callable[[torch.Tensor], torch.Tensor]
"""Of a tensor over all ranks."""


class MasterAdam(torch.optim.Optimizer):
    """Adam on bfloat16 parameters. Its state is float32, with a tensor of bytes and a tensor of int64 beside it.

    Each operation rounds once, as IEEE 754 says, so that parts of a tensor come to the same as the whole.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, self.state[parameter] or self._begin(parameter), group)

    def _begin(self, parameter: torch.Tensor) -> dict[str, Any]:
        master = parameter.detach().float()
        self.state[parameter] = {
            "updates": torch.zeros((), dtype=torch.int64),
            "master": master,
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
            "codes": torch.zeros_like(master, dtype=torch.uint8),
        }
        return self.state[parameter]

    def _update(self, parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        given, (first, second) = parameter.grad.float(), group["betas"]
        state["updates"] += 1
        state["exp_avg"].mul_(first).add_(given * (1 - first))
        state["exp_avg_sq"].mul_(second).add_(given * given * (1 - second))
        number = int(state["updates"])
        mean, square = state["exp_avg"] / (1 - first**number), state["exp_avg_sq"] / (1 - second**number)
        state["master"].sub_(mean / (square.sqrt() + group["eps"]) * group["lr"])
        state["codes"].copy_((state["exp_avg"].abs() * 64).clamp(max=255))
        parameter.copy_(state["master"])


class LossScale:
    """A power of two that grows, as in ``torch.amp.GradScaler``; its state is plain."""

    def __init__(self) -> None:
        self.value, self._good_steps = 1.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.value, "good_steps": self._good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self._good_steps = state["scale"], state["good_steps"]

    def update(self) -> None:
        self._good_steps += 1
        if self._good_steps == 10:
            self.value, self._good_steps = min(2 * self.value, 256.0), 0


def averaged(model: torch.nn.Module) -> AveragedModel:
    """Its exponential moving average: the same shapes and the same type as the model and AdamW's moments."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def schedule(optimizer: torch.optim.Optimizer) -> SequentialLR:
    """Of the learning rate: first up, then down."""
    parts = [LinearLR(optimizer, 0.2, total_iters=10), CosineAnnealingLR(optimizer, 200)]
    return SequentialLR(optimizer, parts, milestones=[10])


def half() -> torch.nn.Module:
    """In bfloat16, of the shapes of ``exact_sums.build``."""
    return build().bfloat16()


def half_gradient(
    wide: torch.nn.Module, model: torch.nn.Module, scale: float, add: Sum, data: Any, indices: Any
) -> list[torch.Tensor]:
    """The exact sum over all ranks, rounded once, for each parameter of a model in bfloat16.

    Args:
        wide: the same in double precision; its weights do not matter.
        model: sharded or not.
        scale: of what ranks add up.
        add: a sum over all ranks.
        data: samples.
        indices: of this rank's.
    """
    with torch.no_grad():
        for here, there in zip(wide.parameters(), model.parameters(), strict=True):
            here.copy_(whole(there))
    mine = torch.cat([part.flatten() for part in gradient(wide, data, indices)])
    parts = (add(mine * scale) / scale).split([each.numel() for each in wide.parameters()])
    return [part.view_as(each).bfloat16() for part, each in zip(parts, wide.parameters(), strict=True)]


def give_gradient(model: torch.nn.Module, gradients: Iterable[torch.Tensor]) -> None:
    """Each parameter's, or this rank's part of it."""
    for parameter, wanted in zip(model.parameters(), gradients, strict=True):
        parameter.grad = part_of(wanted, parameter) if isinstance(parameter, DTensor) else wanted


def part_of(tensor: torch.Tensor, like: DTensor) -> DTensor:
    """This rank's, of what every rank has whole; so nothing is sent."""
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A collective for a tensor that is sharded."""
    # By way of the host: torch 2.11's Gloo ends a process that gathers a GPU's tensors so by SIGSEGV.
    return tensor.cpu().full_tensor().to(tensor.device) if isinstance(tensor, DTensor) else tensor


def digests(state: Any, names: Iterable[str]) -> dict[str, str]:
    """Of these entries of a state; called by all ranks."""
    return {name: digest(getattr(state, name)) for name in names}


def digest(value: Any) -> str:
    """Of all that is in it: keys, types, shapes, and every bit of its tensors."""
    return digesting.digest(value.state_dict() if hasattr(value, "state_dict") else value, _content)


def _content(value: Any) -> tuple[str, bytes] | None:
    if not isinstance(value, torch.Tensor):
        return None
    plain = whole(value).detach().contiguous()
    return f"{plain.dtype}{tuple(plain.shape)}", plain.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()
