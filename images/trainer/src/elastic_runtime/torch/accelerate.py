"""Accelerate, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.accelerate import CheckpointAtRestart

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoint = CheckpointAtRestart(accelerator, "/shared/run")
    step = checkpoint.resume()
    for batch in checkpoint.batches(loader, epochs=3):
        ...
        optimizer.step()
        step += 1
        checkpoint.after(step)

Under ``ElasticTorchOperator(restart=Restart(...))``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.torch.restarts import (
    RestartRequest,
    SaveEvery,
    check_same_step,
    newest_checkpoint,
    write_checkpoint,
)

_POSITION = "position.json"


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
        self._epoch, self._shares = 0, 0
        """Where :meth:`batches` is: in this epoch, after so many batches of one rank."""

    def resume(self) -> int:
        """Load the newest whole checkpoint; returns its step, 0 where there is none. A collective.

        Raises:
            StatesDiffer: not all ranks find the same one.
        """
        found = newest_checkpoint(self._folder)
        check_same_step(found[1] if found else 0)
        if found is None:
            return 0
        path, step = found
        self._accelerator.load_state(str(path))
        self._save_every.is_at(step)
        position = json.loads((path / _POSITION).read_bytes())
        self._epoch, self._shares = int(position["epoch"]), int(position["shares"])
        return step

    def batches(self, loader: Any, epochs: int = 1) -> Iterator[Any]:
        """Batches of all epochs, from where the newest checkpoint was written; also in a world of another size.

        A checkpoint has the epoch, and how many batches of one rank all ranks have taken from it. Where that number is
        not a multiple of the new world size, fewer batches than there are ranks are taken again.

        Args:
            loader: as ``Accelerator.prepare`` has returned it.
            epochs: how often to go over it, in all.

        Raises:
            InvalidSettings: the loader has a position of its own (``use_stateful_dataloader``).
        """
        if getattr(loader, "use_stateful_dataloader", False):
            problem = "a StatefulDataLoader skips what its own rank had, and does so already in load_state"
            raise InvalidSettings("CheckpointAtRestart.batches", problem, "Leave out use_stateful_dataloader=True")
        ranks = self._ranks_of(loader)
        while self._epoch < epochs:
            loader.set_epoch(self._epoch)
            skipped = self._shares // ranks
            self._shares = skipped * ranks
            # Accelerate counts the epochs of the loader that is gone over, which is another one with batches to skip.
            for batch in self._accelerator.skip_first_batches(loader, skipped) if skipped else loader:
                self._shares += ranks
                yield batch
            self._epoch, self._shares = self._epoch + 1, 0

    def _ranks_of(self, loader: Any) -> int:
        """Batches of its sampler that one step takes from it."""
        sampler = getattr(loader, "batch_sampler", None)
        if getattr(sampler, "split_batches", False) or getattr(loader, "split_batches", False):
            return 1
        # Not all of Accelerate's processes have data of their own, as with tensor parallelism.
        return int(getattr(sampler, "num_processes", self._accelerator.num_processes))

    def save(self, step: int) -> None:
        """Write one now; a collective."""
        write_checkpoint(self._folder, step, self._write)
        self._save_every.is_at(step)

    def _write(self, path: Path) -> None:
        self._accelerator.save_state(str(path))
        if self._accelerator.is_main_process:
            (path / _POSITION).write_text(json.dumps({"epoch": self._epoch, "shares": self._shares}))

    def after(self, step: int) -> None:
        """To be called by all ranks once so many optimizer steps are done. Raises SystemExit.

        Within ``Accelerator.accumulate``, calls after batches without an optimizer step do nothing.
        """
        if not self._accelerator.sync_gradients:
            return  # No checkpoint has the gradients of the batches so far. It is the same on all ranks.
        ends = self._request.agreed()
        if ends or self._save_every.due(step):
            self.save(step)
        if ends:
            sys.exit(0)
