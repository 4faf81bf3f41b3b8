"""Keras' ``fit`` in an elastic run: commits, progress and metrics by one callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from elastic_runtime.training.reporting import report


class Elastic(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """After each batch: the state's position moves on, metrics are reported, and the state is committed.

    Give it last, for what callbacks after it do is in the next commit only. ``GlobalBatches.fit`` has one already.

    Args:
        state: a ``DurableState``.
        commit_every: steps from one commit to the next, and from one report to the next; an epoch's last step has both,
            too.
        position: name of the state's attribute that counts the steps.
    """

    def __init__(self, state: Any, *, commit_every: int = 1, position: str = "step") -> None:
        super().__init__()
        self._state, self._every, self._position = state, commit_every, position
        self._committed = 0

    def on_train_batch_end(self, _batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report and commit as the class describes. Raise the engine's interrupt."""
        step = getattr(self._state, self._position) + 1
        setattr(self._state, self._position, step)
        if step % self._every == 0:
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
