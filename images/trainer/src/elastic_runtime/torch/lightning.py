"""Lightning, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.lightning import CheckpointAtRestart

    checkpoint = CheckpointAtRestart("/shared/run")
    trainer = Trainer(callbacks=[checkpoint], strategy="ddp", devices=1, num_nodes=int(os.environ["WORLD_SIZE"]))
    trainer.fit(model, data, ckpt_path=checkpoint.newest)

Under ``ElasticTorchOperator(restart=Restart(...))``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from elastic_runtime.torch.restarts import RestartRequest, newest_checkpoint, write_checkpoint


class CheckpointAtRestart(Callback):  # type: ignore[misc]  # Lightning is not there where this is checked
    """Writes a checkpoint where the ranks are asked to end, and ends their processes with success.

    Args:
        folder: that every worker sees, for these checkpoints alone.
        every: look whether any rank was asked at each so many batches only.
        signal: see :class:`~elastic_runtime.torch.restarts.RestartRequest`.
    """

    def __init__(self, folder: Path | str, *, every: int = 1, signal: str | None = None) -> None:
        self._folder = Path(folder)
        self._request = RestartRequest(signal, every)

    @property
    def newest(self) -> str | None:
        """For ``Trainer.fit(ckpt_path=...)``."""
        found = newest_checkpoint(self._folder)
        return str(found[0]) if found else None

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """See Lightning's ``Callback``. Raises SystemExit."""
        if self._request.agreed():
            write_checkpoint(self._folder, trainer.global_step, trainer.save_checkpoint, ".ckpt")
            sys.exit(0)
