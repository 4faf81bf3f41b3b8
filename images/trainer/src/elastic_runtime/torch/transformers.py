"""Transformers' ``Trainer``, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.transformers import CheckpointAtRestart, newest_checkpoint

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CheckpointAtRestart()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(arguments.output_dir))

Under ``ElasticTorchOperator(restart=Restart(...))``, with an ``output_dir`` that every worker sees.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from elastic_runtime.torch.restarts import RestartRequest

_NAME = re.compile(r"checkpoint-(\d{1,18})")
_log = logging.getLogger(__name__)


def newest_checkpoint(output_dir: Path | str) -> str | None:
    """For ``Trainer.train(resume_from_checkpoint=...)``; None: there is none, or no such folder yet.

    Unlike ``transformers.trainer_utils.get_last_checkpoint`` it passes over one that was not written to its end, with a
    warning: the trainer writes its own state (``trainer_state.json``) last.
    """
    folder = Path(output_dir)
    found = [(int(match[1]), path) for path in folder.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        if _is_whole(path):
            return str(path)
        _log.warning("%s was not written to its end: trying the one before", path)
    return None


def _is_whole(path: Path) -> bool:
    try:
        json.loads((path / "trainer_state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return True


class CheckpointAtRestart(TrainerCallback):  # type: ignore[misc]  # Transformers is not there where this is checked
    """Has the trainer write its checkpoint where the ranks are asked to end, and ends their processes with success.

    Args:
        every: look whether any rank was asked at each so many steps only.
        signal: see :class:`~elastic_runtime.torch.restarts.RestartRequest`.
    """

    def __init__(self, *, every: int = 1, signal: str | None = None) -> None:
        self._request = RestartRequest(signal, every)
        self._ends = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # Transformers' names
        """See Transformers' ``TrainerCallback``."""
        self._request.listen()  # ``enable_jit_checkpoint`` installs a handler of its own.

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the same
        """See Transformers' ``TrainerCallback``."""
        if self._request.agreed():
            self._ends = control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the same
        """See Transformers' ``TrainerCallback``. Raises SystemExit."""
        if self._ends:
            sys.exit(0)
