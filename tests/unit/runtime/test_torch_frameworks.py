"""When the checkpoints of Lightning's and Accelerate's scripts are written; real ones are in ``tests/frameworks``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elastic_runtime.torch.accelerate import CheckpointAtRestart
from elastic_runtime.torch.restarts import newest_checkpoint

LIGHTNING = "elastic_runtime.torch.lightning"


class Trainer:
    """Lightning's, as far as its callback sees it: a step after so many batches."""

    def __init__(self, accumulate_grad_batches: int) -> None:
        self.accumulate_grad_batches, self.global_step, self.batches = accumulate_grad_batches, 0, 0

    def train(self, callback: Any) -> None:
        self.batches += 1
        if self.batches % self.accumulate_grad_batches == 0:
            self.global_step += 1
        callback.on_train_batch_end(self, None, None, None, self.batches)

    def save_checkpoint(self, path: Path) -> None:
        path.write_text(str(self.batches))


class Accelerator:
    """Accelerate's, likewise."""

    is_main_process = True
    num_processes = 1

    def __init__(self, accumulated: int) -> None:
        self.accumulated, self.batches, self.step = accumulated, 0, 0

    @property
    def sync_gradients(self) -> bool:
        return self.batches % self.accumulated == 0

    def train(self, checkpoint: CheckpointAtRestart) -> None:
        self.batches += 1
        self.step += self.sync_gradients
        checkpoint.after(self.step)

    def save_state(self, path: str) -> None:
        Path(path).mkdir()


@pytest.fixture(autouse=True)
def sigterm() -> Iterator[None]:
    """Its handler is put back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our module for it, with a stand-in for the package, which is not installed here."""
    package: Any = ModuleType("lightning.pytorch")
    package.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", package)
    monkeypatch.delitem(sys.modules, LIGHTNING, raising=False)
    yield import_module(LIGHTNING)
    sys.modules.pop(LIGHTNING, None)


def test_lightning_ends_after_a_complete_step_alone(lightning: Any, tmp_path: Path) -> None:
    trainer, callback = Trainer(4), lightning.CheckpointAtRestart(tmp_path, save_every=2)
    callback.on_train_start(trainer)
    for _ in range(9):
        trainer.train(callback)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-000000002.ckpt", 2)
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(2):
        trainer.train(callback)
    with pytest.raises(SystemExit) as ended:
        trainer.train(callback)
    assert (ended.value.code, trainer.batches) == (0, 12)
    assert (tmp_path / "step-000000003.ckpt").read_text() == "12"


def test_lightning_ends_after_a_batch_whose_steps_it_does_not_count(lightning: Any, tmp_path: Path) -> None:
    """As with manual optimization by torch's own optimizers."""
    trainer, callback = Trainer(1), lightning.CheckpointAtRestart(tmp_path)
    callback.on_train_start(trainer)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        callback.on_train_batch_end(trainer, None, None, None, 0)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-000000000.ckpt", 0)


def test_accelerate_ends_after_a_complete_step_alone(tmp_path: Path) -> None:
    accelerator = Accelerator(4)
    checkpoint = CheckpointAtRestart(accelerator, tmp_path, save_every=2)
    for _ in range(9):
        accelerator.train(checkpoint)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-000000002", 2)
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(2):
        accelerator.train(checkpoint)
    with pytest.raises(SystemExit) as ended:
        accelerator.train(checkpoint)
    assert (ended.value.code, accelerator.batches) == (0, 12)
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-000000003", 3)
