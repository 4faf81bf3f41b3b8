"""Accelerate, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.accelerate import CheckpointAtRestart

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoint = CheckpointAtRestart(accelerator, "/shared/run")
    step = checkpoint.resume()
    while step < steps:
        ...
        optimizer.step()
        step += 1
        checkpoint.after(step)

Under ``ElasticTorchOperator(restart=Restart(...))``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from elastic_runtime.torch.restarts import RestartRequest, SaveEvery, newest_checkpoint, write_checkpoint


class CheckpointAtRestart:
    """Writes ``Accelerator.save_state`` where the ranks are asked to end, and ends their processes with success.

    Args:
        accelerator: Accelerate's, which everything is prepared by already.
        folder: that every worker sees, for these checkpoints alone.
        every: look whether any rank was asked at each so many steps only.
        signal: see :class:`~elastic_runtime.torch.restarts.RestartRequest`.
        save_every: write one after each so many optimizer steps, too, for what nobody announces; None: none.
    """

    def __init__(
        self,
        accelerator: Any,
        folder: Path | str,
        *,
        every: int = 1,
        signal: str | None = None,
        save_every: int | None = None,
    ) -> None:
        self._accelerator, self._folder, self._save_every = accelerator, Path(folder), SaveEvery(save_every)
        self._request = RestartRequest(signal, every)

    def resume(self) -> int:
        """Load the newest checkpoint; returns its step, 0 where there is none."""
        found = newest_checkpoint(self._folder)
        if found is None:
            return 0
        path, step = found
        self._accelerator.load_state(str(path))
        self._save_every.is_at(step)
        return step

    def save(self, step: int) -> None:
        """Write one now; a collective."""
        write_checkpoint(self._folder, step, lambda path: self._accelerator.save_state(str(path)))
        self._save_every.is_at(step)

    def after(self, step: int) -> None:
        """To be called by all ranks once so many optimizer steps are done. Raises SystemExit."""
        ends = self._request.agreed()
        if ends or self._save_every.due(step):
            self.save(step)
        if ends:
            sys.exit(0)
