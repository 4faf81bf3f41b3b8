"""Runs an example, with a ``report`` by which a test steers it: ``steered.py SCRIPT ARGUMENTS``."""

from __future__ import annotations

import runpy
import sys

import torch
from steering import done, note_loss

import elastic_runtime.torch

_report = elastic_runtime.torch.report


def report(step: int, *, of: int | None = None, loss: torch.Tensor | float | None = None) -> None:
    """As the real one, once the test lets this step pass; examples name all their steps where they tell of one."""
    if isinstance(loss, torch.Tensor):
        note_loss(step, loss)
    if of is not None:
        done(step)
    _report(step, of=of, **({} if loss is None else {"loss": loss}))


if __name__ == "__main__":  # Writers of Megatron's checkpoints are processes that import this file.
    elastic_runtime.torch.report = report
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
