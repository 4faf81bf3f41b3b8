"""Lightning, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.lightning import CheckpointAtRestart

    checkpoint = CheckpointAtRestart("/shared/run")
    size, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = Trainer(callbacks=[checkpoint], strategy="ddp", devices=here, num_nodes=size // here)
    trainer.fit(model, data, ckpt_path=checkpoint.newest)

Under ``ElasticTorchOperator(restart=Restart(...))``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from elastic_runtime.torch.restarts import (
    RestartRequest,
    SaveEvery,
    check_same_step,
    newest_checkpoint,
    write_checkpoint,
)


class CheckpointAtRestart(Callback):  # type: ignore[misc]  # Lightning is not there where this is checked
    """Writes a checkpoint where the ranks are asked to end, and ends their processes with success.

    ``Trainer.fit`` installs a handler of SIGTERM, which sends among ranks that are at different steps, and ends the
    training without a checkpoint. If SIGTERM is the signal that asks, this callback's handler takes its place.

    Args:
        folder: that every worker sees, for these checkpoints alone.
        every: look whether any rank was asked at each so many batches only; with ``accumulate_grad_batches``, at each
            so many optimizer steps.
        signal: see :class:`~elastic_runtime.torch.restarts.RestartRequest`.
        save_every: write one after each so many optimizer steps, too, for what nobody announces; None: none.
    """

    def __init__(
        self, folder: Path | str, *, every: int = 1, signal: str | None = None, save_every: int | None = None
    ) -> None:
        self._folder, self._save_every = Path(folder), SaveEvery(save_every)
        self._request = RestartRequest(signal, every)
        self._step = 0
        """Optimizer steps at the batch before."""

    @property
    def newest(self) -> str | None:
        """Return the newest checkpoint for ``Trainer.fit(ckpt_path=...)``."""
        found = newest_checkpoint(self._folder)
        return str(found[0]) if found else None

    def on_sanity_check_start(self, *_: Any) -> None:
        """Install the handler: this is Lightning's first call after its own handler of SIGTERM."""
        self._request.listen()

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Start to watch for requests to end."""
        check_same_step(trainer.global_step)
        self._request.listen()
        self._step = trainer.global_step
        self._save_every.is_at(self._step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Save and end if asked to. Raise SystemExit."""
        step, before = trainer.global_step, self._step
        if trainer.accumulate_grad_batches > 1 and step == before:
            return  # No checkpoint has the gradients of the batches so far. All ranks make their steps together.
        ends, self._step = self._request.agreed(), step
        if ends or self._save_every.due(step):
            write_checkpoint(self._folder, step, trainer.save_checkpoint, ".ckpt")
            self._save_every.is_at(step)
        if ends:
            sys.exit(0)
