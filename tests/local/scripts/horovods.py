"""One of Horovod's own example scripts for torch, unchanged, at the test's pace: ``horovods.py NAME ARGUMENT …``.

Its images are made here, in place of torchvision's. Its state, if it has one, counts commits, by which all ranks stand.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import horovod.torch as hvd
import torch
from horovod.torch.elastic import TorchState
from pace import Pace
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

pace = Pace.from_environment()
begin, commit = TorchState.__init__, TorchState.commit
losses: list[float] = []


def counting(state: TorchState, *arguments: Any, **kept: Any) -> None:
    begin(state, *arguments, **kept, commits=0)


def paced_commit(state: TorchState) -> None:
    state.commits += 1
    commit(state)
    pace.note(step=state.commits, rank=hvd.rank(), size=hvd.size(), loss=losses[-1])
    pace.hold(SimpleNamespace(step=state.commits, commit=lambda: commit(state)))


def noted(loss_of: Any) -> Any:
    def loss(*arguments: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = loss_of(*arguments, **options)
        losses.append(float(result.detach()))
        return result

    return loss


def mnist(_folder: str, train: bool, **_options: Any) -> TensorDataset:
    made = torch.Generator().manual_seed(3 if train else 4)
    labels = torch.randint(0, 10, (120,), generator=made)
    images = torch.rand(120, 1, 28, 28, generator=made) - 0.5
    images[torch.arange(120), 0, 2 * labels] += 4.0  # a line, the lower the higher the digit
    return TensorDataset(images, labels)


def small_resnet(**_options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 16, stride=16), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 1000))


def torchvision() -> ModuleType:
    module: Any = ModuleType("torchvision")
    module.datasets = SimpleNamespace(MNIST=mnist)
    module.models = SimpleNamespace(resnet50=small_resnet)
    module.transforms = SimpleNamespace(ToTensor=object, Normalize=lambda *_: None, Compose=list)
    return module


def main() -> None:
    pace.door()
    script = Path(__file__).parent / "horovod" / sys.argv[1]
    sys.argv = [str(script), *sys.argv[2:]]
    sys.modules["torchvision"] = torchvision()
    os.environ["HOME"] = pace.folder  # It has a lock there.
    TorchState.__init__, TorchState.commit = counting, paced_commit
    functional.nll_loss, functional.cross_entropy = noted(functional.nll_loss), noted(functional.cross_entropy)
    torch.set_num_threads(1)
    runpy.run_path(str(script), run_name="__main__")
    pace.note(done=True, rank=hvd.rank(), size=hvd.size(), loss=losses[-1])


main()
