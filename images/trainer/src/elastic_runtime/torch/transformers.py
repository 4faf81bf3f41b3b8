"""Transformers' ``Trainer``, restarted at each change of the workers, from where it was.

::

    from elastic_runtime.torch.transformers import CheckpointAtRestart, newest_checkpoint

    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CheckpointAtRestart()])
    trainer.train(resume_from_checkpoint=newest_checkpoint(arguments.output_dir))

Under ``ElasticTorchOperator(restart=Restart(...))``, with an ``output_dir`` that every worker sees.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from elastic_runtime.torch.restarts import RestartRequest, check_same_step, newest_whole
from elastic_runtime.torch.whole import damage

_NAME = re.compile(r"checkpoint-(\d{1,18})")
_STATE = "trainer_state.json"
"""Written last into a checkpoint."""


def newest_checkpoint(output_dir: Path | str) -> str | None:
    """For ``Trainer.train(resume_from_checkpoint=...)``; None: there is none, or no such folder yet.

    Unlike ``transformers.trainer_utils.get_last_checkpoint`` it passes over those that are torn, with a warning: the
    trainer writes its own state (``trainer_state.json``) last, and no other file may end too early.
    """
    folders = Path(output_dir).glob("checkpoint-*")
    found = newest_whole([(int(match[1]), path) for path in folders if (match := _NAME.fullmatch(path.name))], _problem)
    return str(found[0]) if found else None


def _problem(path: Path) -> str | None:
    try:
        json.loads((path / _STATE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return f"its {_STATE} is not whole"
    return damage(path)


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
        """Start to watch for requests to end."""
        check_same_step(state.global_step)
        self._request.listen()  # ``enable_jit_checkpoint`` installs a handler of its own.

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Request a checkpoint if asked to end."""
        if self._request.agreed():
            self._ends = control.should_save = control.should_training_stop = True
        if control.should_save and state.is_world_process_zero:  # The trainer writes over a torn one of that step.
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _STATE).unlink(missing_ok=True)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the same
        """End after the checkpoint if asked to. Raise SystemExit."""
        if self._ends:
            sys.exit(0)
