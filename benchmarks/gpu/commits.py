"""What a commit costs against a step on a device: a program of one rank, which prints a line of JSON for each stream.

The model is a stack of linear layers with AdamW. Steps with a commit each and steps without take turns, and what a
step takes is the time of many, since the processor runs ahead of a GPU.

Before that, it is tried whether what a checkpoint holds is what was committed, though the next steps of the training
begin while it is copied; for each stream, too. The state has parameters in bfloat16 with float32 master weights, AdamW
and an EMA.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch import DurableState, load_checkpoint
from elastic_runtime.torch.digests import digests
from elastic_runtime.torch.family import TORCH
from elastic_runtime.training.trees import tensors_by_path
from elastic_runtime.world import current_world

WIDTH = {10: 1000, 100: 2500}
"""Of a layer, by millions of parameters."""
TOKENS = 8192
"""Of a step."""
KEPT = ("model", "optimizer", "half", "master", "ema")
CHECKED = 12
"""Checkpoints that are compared with what was committed."""


class MasterWeights(torch.optim.Optimizer):
    """Plain descent on float32 copies of the parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:  # type: ignore[override]
        """One."""
        for parameter in (each for group in self.param_groups for each in group["params"]):
            state = self.state[parameter]
            if not state:
                state["master"] = parameter.detach().float()
            state["master"] -= 0.01 * parameter.grad.float()
            parameter.copy_(state["master"])


class Training:
    """Of so many parameters."""

    def __init__(self, millions: int, device: torch.device, tokens: int) -> None:
        torch.manual_seed(0)
        width = WIDTH.get(millions, 100)
        depth = max(2, round(millions * 1e6 / width**2))
        self.model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth))).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._inputs = torch.randn(tokens, width, device=device)
        self._device = device

    def step(self) -> None:
        """Take one, in bfloat16 where it pays."""
        self.optimizer.zero_grad()
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = self.model(self._inputs).float().pow(2).mean()
        loss.backward()
        self.optimizer.step()


def streams(device: torch.device) -> Iterator[tuple[str, AbstractContextManager[Any]]]:
    """In which training may run."""
    yield "default", nullcontext()
    if device.type == "cuda":
        yield "side", torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # of torch


def complete(device: torch.device) -> None:
    """Wait for all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(device: torch.device, steps: int, step: Callable[[], None]) -> float:
    """Of each of so many."""
    complete(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    complete(device)
    return (time.perf_counter() - begin) / steps


def measured(millions: int, device: torch.device, rounds: int, steps: int, tokens: int) -> dict[str, float]:
    """Medians over the rounds, in seconds.

    ``commit``: by which a step with one takes longer; ``waiting``: where it waits for the GPU first, as in a world of
    NCCL's; ``asked``: for which the training thread is in it; ``digests``: one comparison's, of all of the state.
    """
    training = Training(millions, device, tokens)
    state = DurableState(model=training.model, optimizer=training.optimizer)
    asked: list[float] = []

    def with_commit() -> None:
        training.step()
        state.step += 1
        begin = time.perf_counter()
        state.commit()
        asked.append(time.perf_counter() - begin)

    def waiting() -> None:
        training.step()
        complete(device)
        state.step += 1
        state.commit()

    seconds(device, 3, with_commit)
    asked.clear()
    plain, committed, waited = [], [], []
    for _ in range(rounds):
        plain.append(seconds(device, steps, training.step))
        committed.append(seconds(device, steps, with_commit))
        waited.append(seconds(device, steps, waiting))
    kept = [*training.model.state_dict().values(), *_tensors(training.optimizer)]

    def compare() -> None:
        digests(kept)

    compared = median(seconds(device, 1, compare) for _ in range(5))
    size = sum(each.numel() * each.element_size() for each in kept)
    return {
        "parameters": sum(each.numel() for each in training.model.parameters()),
        "bytes": size,
        "step": median(plain),
        "commit": median(committed) - median(plain),
        "waiting": median(waited) - median(plain),
        "asked": median(asked),
        "digests": compared,
    }


def _tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def check(folder: Path, device: torch.device, millions: int, tokens: int) -> int:
    """Checkpoints that were compared with what was committed, each of another step.

    Raises:
        AssertionError: one holds something else.
    """
    training = Training(millions, device, tokens)
    half = nn.Linear(1000, 1000, bias=False).to(device, torch.bfloat16)
    master = MasterWeights(half.parameters())
    ema = AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # type: ignore[no-untyped-call]  # the same
    leaps = 0.0
    spec = CheckpointSpec(folder.as_uri(), every=3600, keep=CHECKED)
    state = DurableState(
        model=training.model, optimizer=training.optimizer, half=half, master=master, ema=ema,
        checkpoint=spec, clock=lambda: time.monotonic() + leaps,
    )  # fmt: skip
    inputs = torch.randn(512, 1000, device=device, dtype=torch.bfloat16)
    wanted: dict[int, dict[str, str]] = {}

    def step() -> None:
        training.step()
        master.zero_grad()
        half(inputs).pow(2).mean().backward()
        master.step()
        ema.update_parameters(training.model)
        state.step += 1

    while len(wanted) < CHECKED:
        step()
        found = _digests({name: getattr(state, name).state_dict() for name in KEPT})
        step_number, known = state.step, len(list(folder.glob("ckpt-*")))
        leaps += 3600.0
        state.commit()
        for _ in range(2):  # Begin at once to write to what was committed, and to its copy.
            step()
            state.commit()
        while len(list(folder.glob("ckpt-*"))) == known:
            step()
            state.commit()
        wanted[step_number] = found
    for path in folder.glob("ckpt-*"):
        values = load_checkpoint(path.as_uri())
        found, step_number = _digests({name: values[name] for name in KEPT}), values["step"]
        assert found == wanted.pop(step_number), f"the checkpoint of step {step_number} is not what was committed"
    assert not wanted, f"no checkpoint of the steps {sorted(wanted)}"
    return CHECKED


def _digests(tree: Any) -> dict[str, str]:
    named = tensors_by_path(TORCH, tree)
    return {str(path): digest for path, digest in zip(named, digests(list(named.values())), strict=True)}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, required=True, help="of parameters")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of each round")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a step")
    parser.add_argument("--folder", type=Path, help="empty; for checkpoints that are compared; left out: none are")
    parser.add_argument("--device", type=torch.device, default="cpu")
    options = parser.parse_args()
    os.environ.setdefault("ELASTIC_RUNTIME_WORLD", "elastic_runtime.engines.torch.world:WORLD")
    current_world().enter()
    for name, stream in streams(options.device):
        with stream:
            line: dict[str, Any] = {"stream": name}
            if options.folder:
                folder = options.folder / name
                folder.mkdir(parents=True)
                line["compared"] = check(folder, options.device, options.millions, options.tokens)
            else:
                line |= measured(options.millions, options.device, options.rounds, options.steps, options.tokens)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
