"""Keras' ``fit`` in an elastic run: commits, progress and metrics by one callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.batches.plan import BatchPlan
from elastic_runtime.training.reporting import report

_FITTING: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Models in ``fit``, with their ``steps_per_execution``."""
_PLANS: WeakKeyDictionary[Any, dict[str, BatchPlan]] = WeakKeyDictionary()
"""Plans of batches that the next ``fit`` gets, by the state and its attribute that counts them."""


def note_plan(state: Any, position: str, plan: BatchPlan) -> None:
    """Have the next ``fit`` with :class:`Elastic` find out where an epoch and the training end."""
    _PLANS.setdefault(state, {})[position] = plan


def tidy(model: Any) -> None:
    """Undo what a ``fit`` leaves in the model if an exception ends it.

    For the last batches of an epoch, Keras has fewer steps in one execution. It also keeps the data that it validates
    with, and a rank may have other data in the next world.
    """
    if (steps := _FITTING.pop(model, None)) is not None:
        model._steps_per_execution.assign(steps)
    if getattr(model, "_eval_data_handler", None) is not None:
        del model._eval_data_handler


class Elastic(tf.keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """After each batch: the state's position moves on, metrics are reported, and the state is committed.

    The last step of an epoch counts after the validation and after ``on_epoch_end`` of the callbacks before it. If the
    world changes there, or a rank is lost meanwhile, no epoch goes without both.

    A ``fit`` that begins in the middle of an epoch calls ``on_epoch_begin`` of all callbacks once more. The learning
    rate is then set back to the state's, so ``LearningRateScheduler`` does not act on it twice; see ``keep_rate``.

    Once a callback has set ``stop_training`` in ``GlobalBatches.fit``, no world changes before it returns. In a ``fit``
    of the script's own, the commit may still change the world.

    Give it last, for what callbacks after it do is in the next commit only. ``GlobalBatches.fit`` has one already.

    Args:
        state: a ``DurableState``.
        commit_every: steps from one commit to the next, and from one report to the next; an epoch's last step has both,
            too.
        position: name of the state's attribute that counts the steps.
        keep_rate: False: leave the rate as callbacks set it, for a schedule that depends on the epoch and the world,
            not on the rate before. In ``GlobalBatches.fit``, it is False with a ``LearningRateScheduler`` whose
            schedule takes the epoch only.
        plan: for ``GlobalBatches.fit``. None: of the last ``sequence()`` or ``dataset()``, if no other ``fit`` had it.

    Raises:
        InvalidSettings: in ``fit``, if Keras tunes ``steps_per_execution`` itself; with ``BackupAndRestore``; or if the
            optimizer has ``use_ema``, and this ``fit`` is not that of all epochs that are left of a ``GlobalBatches``.
    """

    def __init__(
        self,
        state: Any,
        *,
        commit_every: int = 1,
        position: str = "step",
        keep_rate: bool = True,
        plan: BatchPlan | None = None,
    ) -> None:
        super().__init__()
        self._state, self._every, self._position = state, commit_every, position
        self._given = self._plan = plan
        self._committed = self._first = 0
        self._ended: tuple[int, Mapping[str, Any] | None] | None = None
        """An epoch's last step that does not count yet, and its logs."""
        self._keeps_rate = keep_rate
        self._rate: Any = None

    def on_train_begin(self, _logs: Mapping[str, Any] | None = None) -> None:
        """Refuse what cannot work."""
        if self.model.autotune_steps_per_execution:
            problem = "ranks would have other numbers of steps between two commits, and wait for each other"
            remedy = "Compile the model with a number as steps_per_execution"
            raise InvalidSettings("Elastic.steps_per_execution", problem, remedy)
        if getattr(self.model, "_training_state", None) is not None:
            problem = "BackupAndRestore puts weights and an epoch back that are not those of the state"
            raise InvalidSettings("Elastic.callbacks", problem, "Leave it out: the state's checkpoints do the same")
        noted = _PLANS.get(self._state, {}).pop(self._position, None)
        self._plan = plan = self._given or noted
        if plan is not None and self.params["epochs"] < plan.epochs and getattr(self.model.optimizer, "use_ema", False):
            problem = (
                "at the end of each fit, Keras has the averages as weights, and the training would go on from them"
            )
            raise InvalidSettings("Elastic.use_ema", problem, "Train with GlobalBatches.fit, which is one fit")
        tidy(self.model)
        self._committed = getattr(self._state, self._position)
        self._ended, self._rate = None, None
        if self._keeps_rate and plan is not None and self._committed % plan.steps_per_epoch:
            rate = self.model.optimizer.learning_rate
            self._rate = rate.numpy() if isinstance(rate, tf.Variable) else None
        _FITTING[self.model] = int(self.model._steps_per_execution)

    def on_train_end(self, _logs: Mapping[str, Any] | None = None) -> None:
        """Forget the model."""
        _FITTING.pop(self.model, None)

    def on_epoch_begin(self, _epoch: int, _logs: Mapping[str, Any] | None = None) -> None:
        """Have as many steps in one execution again if the epoch before was short; and the rate that it began with."""
        self.model._steps_per_execution.assign(_FITTING[self.model])
        if self._rate is not None:
            self.model.optimizer.learning_rate.assign(self._rate)
            self._rate = None

    def on_train_batch_begin(self, batch: int, _logs: Mapping[str, Any] | None = None) -> None:
        """Note the first batch of an execution, which has several with ``steps_per_execution``."""
        self._first = batch
        if self._ended is not None:  # The plan's epoch has ended, and Keras' goes on.
            self._count_last(self._ended[1])

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report and commit as the class describes. Raise the engine's interrupt."""
        before = getattr(self._state, self._position)
        step = before + batch + 1 - self._first
        if self._ends_epoch(step, batch):
            self._ended = step, logs  # Until its end, the state stays that of the last commit.
            return
        setattr(self._state, self._position, step)
        if step // self._every > before // self._every:
            self._commit(step, logs)

    def on_epoch_end(self, _epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Report and commit as the class describes. Raise the engine's interrupt."""
        self._count_last(logs)

    def _count_last(self, logs: Mapping[str, Any] | None) -> None:
        if self._ended is not None:
            setattr(self._state, self._position, self._ended[0])
            self._ended = None
        step = getattr(self._state, self._position)
        if step != self._committed:
            self._commit(step, logs)

    def _ends_epoch(self, step: int, batch: int) -> bool:
        if (steps := self.params.get("steps")) is not None:
            return bool(batch + 1 == steps)
        return self._plan is not None and step % self._plan.steps_per_epoch == 0

    def _commit(self, step: int, logs: Mapping[str, Any] | None) -> None:
        self._committed = step
        if logs:
            report(step, **logs)
        if self._given is not None and self.model.stop_training:  # In another world, the training would go on.
            getattr(self._state, "commit_in_world", self._state.save)()
        else:
            self._state.commit()
