"""Transformers' ``Trainer``, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.transformers import CheckpointAtRestart
    from transformers.trainer_utils import get_last_checkpoint

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CheckpointAtRestart()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir))

Under ``ElasticTorchOperator(restart=Restart(...))``, with an ``output_dir`` that every worker sees.
"""

from __future__ import annotations

import sys
from typing import Any

from transformers import TrainerCallback

from elastic_runtime.torch.restarts import RestartRequest


class CheckpointAtRestart(TrainerCallback):  # type: ignore[misc]  # Transformers is not there where this is checked
    """Has the trainer write its checkpoint where the ranks are asked to end, and ends their processes with success.

    Args:
        every: look whether any rank was asked at each so many steps only.
        signal: see :class:`~elastic_runtime.torch.restarts.RestartRequest`.
    """

    def __init__(self, *, every: int = 1, signal: str | None = None) -> None:
        self._request = RestartRequest(signal, every)
        self._ends = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # Transformers' names
        """See Transformers' ``TrainerCallback``."""
        if self._request.agreed():
            self._ends = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the same
        """See Transformers' ``TrainerCallback``. Raises SystemExit."""
        if self._ends:
            sys.exit(0)
