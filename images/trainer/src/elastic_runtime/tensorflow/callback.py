"""Keras' ``fit`` in an elastic run: commits, progress and metrics by one callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.reporting import report

_FITTING: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Models in ``fit``, with their ``steps_per_execution``."""


def tidy(model: Any) -> None:
    """Undo what a ``fit`` leaves in the model if an exception ends it.

    For the last batches of an epoch, Keras has fewer steps in one execution.
    """
    if (steps := _FITTING.pop(model, None)) is not None:
        model._steps_per_execution.assign(steps)


class Elastic(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """After each batch: the state's position moves on, metrics are reported, and the state is committed.

    Give it last, for what callbacks after it do is in the next commit only. ``GlobalBatches.fit`` has one already.

    Args:
        state: a ``DurableState``.
        commit_every: steps from one commit to the next, and from one report to the next; an epoch's last step has both,
            too.
        position: name of the state's attribute that counts the steps.

    Raises:
        InvalidSettings: in ``fit``, if Keras tunes ``steps_per_execution`` itself.
    """

    def __init__(self, state: Any, *, commit_every: int = 1, position: str = "step") -> None:
        super().__init__()
        self._state, self._every, self._position = state, commit_every, position
        self._committed = self._first = 0

    def on_train_begin(self, _logs: Mapping[str, Any] | None = None) -> None:
        """Refuse what cannot work."""
        if self.model.autotune_steps_per_execution:
            problem = "ranks would have other numbers of steps between two commits, and wait for each other"
            remedy = "Compile the model with a number as steps_per_execution"
            raise InvalidSettings("Elastic.steps_per_execution", problem, remedy)
        tidy(self.model)
        _FITTING[self.model] = int(self.model._steps_per_execution)

    def on_train_end(self, _logs: Mapping[str, Any] | None = None) -> None:
        """Forget the model."""
        _FITTING.pop(self.model, None)

    def on_train_batch_begin(self, batch: int, _logs: Mapping[str, Any] | None = None) -> None:
        """Note the first batch of an execution, which has several with ``steps_per_execution``."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report and commit as the class describes. Raise the engine's interrupt."""
        before = getattr(self._state, self._position)
        step = before + batch + 1 - self._first
        setattr(self._state, self._position, step)
        if step // self._every > before // self._every:
            self._commit(step, logs)

    def on_epoch_end(self, _epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report and commit as the class describes. Raise the engine's interrupt."""
        step = getattr(self._state, self._position)
        if step != self._committed:
            self._commit(step, logs)

    def _commit(self, step: int, logs: Mapping[str, Any] | None) -> None:
        self._committed = step
        if logs:
            report(step, **logs)
        self._state.commit()
