"""Pause a running training, and resume it: it holds no worker meanwhile, and its task stays as it is."""

from __future__ import annotations

from typing import Any

from elastic_training.clusters.document import SizeRequest, resume_request
from elastic_training.operators.scale_training import ScaleTrainingOperator
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import IntOrTemplate


class PauseTrainingOperator(ScaleTrainingOperator):
    """Pauses a training: its ranks stop at a commit, and all workers are given up once that is durable.

    The training's task goes on to wait, and its ``execution_timeout`` goes on to count. The run stays paused until
    somebody resumes it, at most for the training's ``recovery.max_pause``. A training that has not begun is paused
    before it begins. Pausing one that is paused changes nothing.

    Returns ``workers`` (0), ``world_size`` (0), ``run``, ``asked_at``, and ``seconds`` until it was paused.

    Args:
        training_task_id: and all that is not named here: as of ScaleTrainingOperator, but ``workers``, ``release`` and
            ``clip``.
        wait: until no worker is left; False: only until the pause was asked for.
        kwargs: of ScaleTrainingOperator, and of every operator.

    Raises:
        InvalidSettings: at parse, for what is known then.
        AirflowFailException: from ``execute``, for what will never be: no such training, one without a checkpoint
            store, or no durable checkpoint within the training's ``recovery.max_wait``. It trains on then.
        AirflowSensorTimeout: from ``execute``, when the time is over.
        AirflowException: from ``execute``, when the training ends before, or somebody resumes it.
    """

    ui_color = "#e8e8e8"

    def __init__(self, *, training_task_id: str, wait: bool = True, **kwargs: Any) -> None:
        super().__init__(training_task_id=training_task_id, workers=0, wait=wait, **kwargs)


class ResumeTrainingOperator(ScaleTrainingOperator):
    """Resumes a paused training, which goes on at its next step.

    A training that is not paused stays as it is, and the task succeeds. Returns what ScaleTrainingOperator does.

    Args:
        training_task_id: and all that is not named here: as of ScaleTrainingOperator, but ``release`` and ``clip``.
        workers: to go on with: a number, ``"min"`` or ``"max"``. None: as many as were asked for before the pause.
            Templated.
        wait: until the world has that size; False: only until it was asked for.
        kwargs: of ScaleTrainingOperator, and of every operator.

    Raises:
        InvalidSettings: at parse, for what is known then.
        AirflowFailException: from ``execute``, for what will never be: no such training, a size out of bounds.
        AirflowSensorTimeout: from ``execute``, when the time is over.
        AirflowException: from ``execute``, when the training ends before, or somebody asks for another size.
    """

    def __init__(
        self, *, training_task_id: str, workers: IntOrTemplate | None = None, wait: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(training_task_id=training_task_id, workers=workers, wait=wait, **kwargs)

    def _check_size(self) -> None:
        if not is_template(self.workers):
            resume_request(self.workers)

    def _size_request(self, name: str, by: str) -> SizeRequest:
        return resume_request(self.workers, name=name, by=by)
