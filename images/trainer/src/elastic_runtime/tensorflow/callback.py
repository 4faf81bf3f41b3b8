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
_EPOCHS: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()
"""States whose steps are those of a ``GlobalBatches``: steps in an epoch, by the attribute that counts them."""


def note_epochs(state: Any, position: str, steps: int) -> None:
    """Have :class:`Elastic` find out where an epoch begins and ends."""
    _EPOCHS.setdefault(state, {})[position] = steps


def tidy(model: Any) -> None:
    """Undo what a ``fit`` leaves in the model if an exception ends it.

    For the last batches of an epoch, Keras has fewer steps in one execution.
    """
    if (steps := _FITTING.pop(model, None)) is not None:
        model._steps_per_execution.assign(steps)


class Elastic(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """After each batch: the state's position moves on, metrics are reported, and the state is committed.

    The last step of an epoch counts after the validation and after ``on_epoch_end`` of the callbacks before it. If the
    world changes there, or a rank is lost meanwhile, no epoch goes without both.

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
        self._ended: int | None = None

    def on_train_begin(self, _logs: Mapping[str, Any] | None = None) -> None:
        """Refuse what cannot work."""
        if self.model.autotune_steps_per_execution:
            problem = "ranks would have other numbers of steps between two commits, and wait for each other"
            remedy = "Compile the model with a number as steps_per_execution"
            raise InvalidSettings("Elastic.steps_per_execution", problem, remedy)
        tidy(self.model)
        self._ended = None
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
        if self._ends_epoch(step, batch):
            self._ended = step  # Until its end, the state stays that of the last commit.
            return
        setattr(self._state, self._position, step)
        if step // self._every > before // self._every:
            self._commit(step, logs)

    def on_epoch_end(self, _epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report and commit as the class describes. Raise the engine's interrupt."""
        if self._ended is not None:
            setattr(self._state, self._position, self._ended)
            self._ended = None
        step = getattr(self._state, self._position)
        if step != self._committed:
            self._commit(step, logs)

    def _ends_epoch(self, step: int, batch: int) -> bool:
        steps = _EPOCHS.get(self._state, {}).get(self._position)
        if steps is None:  # Batches of the script's own.
            return bool(batch + 1 == self.params.get("steps"))
        return step % steps == 0

    def _commit(self, step: int, logs: Mapping[str, Any] | None) -> None:
        self._committed = step
        if logs:
            report(step, **logs)
        self._state.commit()
