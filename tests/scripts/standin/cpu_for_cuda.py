"""Stand-in for a GPU, imported by warm processes: scripts that demand CUDA train on the CPU, at the test's pace.

It also counts the steps of the optimizer (``held_steps.py``). A rank that is alone waits before its first step, or the
arrival of a second worker would decide how many it does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from held_steps import count_and_hold
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook


def replace(owner: Any, name: str, change: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]) -> None:
    """Have that function called with its arguments changed."""
    original = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        return original(*change(arguments, options), **options)

    setattr(owner, name, called)


def on_cpu(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """``cuda:1``, ``1`` -> ``cpu``."""
    for name in ("device", "map_location"):
        if "cuda" in str(options.get(name, "")):
            options[name] = "cpu"
    first, *others = arguments
    if others and (type(others[0]) is int or (isinstance(others[0], str) and others[0].startswith("cuda"))):
        others[0] = "cpu"
    return (first, *others)


def no_device_ids(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    options.pop("device_ids", None)
    return arguments


def by_gloo(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    if options.get("backend") == "nccl":
        options["backend"] = "gloo"
    while os.environ["WORLD_SIZE"] == "1" and (Path(os.environ["STEERED"]) / "hold").exists():
        time.sleep(0.02)
    return arguments


# PyPI's torchvision is compiled for torch with CUDA: here its operations are missing, of which it asks for these.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torch.cuda.set_device = lambda _: None
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign, assignment]
for owner, name in ((torch.Tensor, "to"), (torch.nn.Module, "to"), (torch, "load")):
    replace(owner, name, on_cpu)
replace(DistributedDataParallel, "__init__", no_device_ids)
replace(torch.distributed, "init_process_group", by_gloo)
register_optimizer_step_post_hook(lambda *_: count_and_hold())
