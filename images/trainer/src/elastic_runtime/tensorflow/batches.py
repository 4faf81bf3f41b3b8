"""The same samples at every global step, whatever the size of the world: for loops of one's own, and for Keras."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.logs import script_logger
from elastic_runtime.tensorflow.callback import Elastic, note_plan, tidy
from elastic_runtime.training.batches.plan import Share
from elastic_runtime.training.batches.position import Batch, BatchPosition
from elastic_runtime.world import Place

_DECIDING = tf.keras.callbacks.EarlyStopping | tf.keras.callbacks.ReduceLROnPlateau
"""Callbacks that decide by an epoch's logs, and begin anew in each ``fit``."""
_log = script_logger(__name__)


class GlobalBatches(BatchPosition):
    """A training's batches, from where the state stands to the end of the last epoch.

    Step *s* covers the same samples at any world size, and the order is a function of seed and epoch alone; it is the
    order of ``elastic_runtime.torch.GlobalBatches``, too. The position is an attribute of the state, which a commit
    saves together with the model.

    With Keras' ``fit``, in one line::

        @hvd.elastic.run
        def train(state):
            batches.fit(model)

    or an epoch at a time by :meth:`sequence` or :meth:`dataset`, with the callback
    :class:`~elastic_runtime.tensorflow.Elastic`. In a loop of one's own it is iterated over; then the position is set
    to the batch's step before the batch is handed out, and ``state.commit()`` follows the optimizer's step.

    Args:
        data: arrays of which the first dimension counts the samples, in tuples and dicts as ``fit`` takes them:
            ``(images, labels)``; or something with ``__len__`` and ``__getitem__``, which gives such a structure for
            one sample. The same on every rank.
        size: samples of a global batch, over all ranks together.
        seed: 0 to 2**63 - 1.
        state: a ``DurableState``, or any elastic state that was made with ``step=0``.
        epochs: how often to go over the data.
        shuffle: a new order in each epoch; False: the data's order.
        drop_last: leave out an epoch's last batch where it is smaller than ``size``.
        position: name of the state's attribute that counts the steps.
        world: has this rank and the world's size; None: the engine's.

    Raises:
        InvalidSettings: an argument cannot work.
    """

    def __init__(
        self,
        data: Any,
        size: int,
        seed: int,
        state: Any,
        *,
        epochs: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        position: str = "step",
        world: Place | None = None,
    ) -> None:
        samples, self._take = _reader(data)
        super().__init__(
            samples, size, seed, state,
            epochs=epochs, shuffle=shuffle, drop_last=drop_last, position=position, world=world,
        )  # fmt: skip
        self._has_warned = False

    def __iter__(self) -> Iterator[Batch]:
        """From the batch after :attr:`step`, for the world as it is now."""
        for share in self.shares():
            self.move_to(share.step)
            data = tf.nest.map_structure(tf.convert_to_tensor, self._taken(share))
            yield Batch(data, share.weight, share.step, share.epoch, share.ends_epoch, share.indices)

    def sequence(self) -> Any:
        """Return the rest of the epoch as a ``tf.keras.utils.Sequence``, for the world as it is now.

        Each item is ``(x, y, weights)``: of this rank's samples, with weights by which the average over ranks of a loss
        that is a mean is the mean over the global batch. Give ``fit`` ``shuffle=False`` with it.

        Raises:
            InvalidSettings: a sample is not ``(x, y)``.
        """
        note_plan(self.state, self.position, self.plan)
        return _Epoch(self, list(self.shares(one_epoch=True)))

    def dataset(self) -> Any:
        """The same as a ``tf.data.Dataset``, which is read ahead."""
        sequence = self.sequence()

        def items() -> Iterator[Any]:
            return (sequence.item(number) for number in range(len(sequence)))

        def signature(array: Any) -> Any:
            return tf.TensorSpec((None, *np.shape(array)[1:]), np.asarray(array).dtype)

        if not len(sequence):
            raise InvalidSettings("GlobalBatches.dataset", "the training is over", "Ask for a dataset while step < len")
        output = tf.nest.map_structure(signature, sequence.item(0))
        dataset = tf.data.Dataset.from_generator(items, output_signature=output)
        # Else fit() looks for its end, and parts of a step run that has no batch: the optimizer counts it.
        return dataset.apply(tf.data.experimental.assert_cardinality(len(sequence))).prefetch(1)

    def fit(self, model: Any, *, commit_every: int = 1, callbacks: Sequence[Any] = (), **arguments: Any) -> None:
        """``model.fit`` over all that is left of the training, with commits, progress and metrics.

        It returns after the last epoch, or when a callback has set ``stop_training``, on all ranks at the same batch.
        In each world, all callbacks begin anew.

        Args:
            model: compiled, with ``hvd.DistributedOptimizer``.
            commit_every: steps from one commit to the next; the last step of an epoch has one, too.
            callbacks: further ones, called before the commit.
            **arguments: of ``fit``. Rank 0 is verbose, unless they say otherwise.

        Raises:
            InvalidSettings: callbacks would decide by other logs on each rank, or ``workers`` is more than 1.
            Exception: what :meth:`DurableState.commit` raises, for ``hvd.elastic.run``.
        """
        if arguments.get("workers", 1) > 1 or arguments.get("use_multiprocessing"):
            problem = "batches are taken in their order, by one thread"
            raise InvalidSettings("GlobalBatches.fit", problem, "Give fit neither workers nor use_multiprocessing")
        self._check_deciding(callbacks)
        tidy(model)
        if self.step >= self.plan.steps:
            if hasattr(model.optimizer, "finalize_variable_values"):  # The fit of the last step was interrupted.
                model.optimizer.finalize_variable_values(model.trainable_variables)
            return
        own = {"verbose": 2 if self.world.rank == 0 else 0, **arguments}
        epochs = _Epoch(self, list(self.shares(one_epoch=True)), goes_on=True)
        elastic = Elastic(
            self.state, commit_every=commit_every, position=self.position,
            keep_rate=not any(map(_sets_rate, callbacks)), plan=self.plan,
        )  # fmt: skip
        model.fit(
            epochs, initial_epoch=self.step // self.plan.steps_per_epoch, epochs=self.plan.epochs,
            shuffle=False, callbacks=[*callbacks, _Progress(epochs), elastic], **own,
        )  # fmt: skip

    def _check_deciding(self, callbacks: Sequence[Any]) -> None:
        averaged = False
        for each in callbacks:
            averaged = averaged or any(kind.__name__ == "MetricAverageCallbackImpl" for kind in type(each).__mro__)
            if isinstance(each, tf.keras.callbacks.TerminateOnNaN):
                problem = "TerminateOnNaN would stop one rank a step before the others, which would wait for it"
                raise InvalidSettings("GlobalBatches.fit", problem, "Leave it out")
            if not isinstance(each, _DECIDING):
                continue
            name = type(each).__name__
            if not averaged:
                problem = f"{name} would decide by other logs on each rank, and ranks would wait for each other"
                remedy = "Give hvd.callbacks.MetricAverageCallback() before it"
                raise InvalidSettings("GlobalBatches.fit", problem, remedy)
            if self.step and self.world.rank == 0 and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s begins anew in each world: it has forgotten the epochs before step %d", name, self.step
                )

    def _taken(self, share: Share) -> Any:
        return self._take(share.indices if len(share.indices) else np.array([share.placeholder]))

    def item(self, share: Share) -> tuple[Any, Any, Any]:
        """Return an item as ``fit`` takes it; see :meth:`sequence`."""
        taken = self._taken(share)
        if not isinstance(taken, tuple) or len(taken) != 2:
            raise InvalidSettings("GlobalBatches.data", "a sample is not (x, y)", "Give (images, labels), as fit does")
        samples = max(1, len(share.indices))
        return *taken, np.full(samples, share.weight, np.float32)


class _Epoch(tf.keras.utils.Sequence):  # type: ignore[misc]  # Keras has no types
    def __init__(self, batches: GlobalBatches, shares: list[Share], *, goes_on: bool = False) -> None:
        self._batches, self._shares, self._goes_on = batches, shares, goes_on
        self._next = 0

    def __len__(self) -> int:
        return len(self._shares)

    def __getitem__(self, number: int) -> Any:
        # fit() looks at the first one before it begins.
        if number not in (self._next, 0):
            problem = f"batch {number} was asked for, and {self._next} comes next"
            raise InvalidSettings("GlobalBatches.sequence", problem, "Give fit shuffle=False and workers=1")
        self._next = number + 1
        return self.item(number)

    def item(self, number: int) -> Any:
        return self._batches.item(self._shares[number])

    def on_epoch_end(self) -> None:
        if self._goes_on:  # All callbacks have been called, so the state is at the next epoch.
            self._shares, self._next = list(self._batches.shares(one_epoch=True)), 0


class _Progress(tf.keras.callbacks.ProgbarLogger):  # type: ignore[misc]  # Keras has no types
    """Knows how many batches an epoch has; Keras takes the first one's for all."""

    def __init__(self, epochs: _Epoch) -> None:
        super().__init__(count_mode="steps")
        self._epochs = epochs

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self.params = params  # The same dict for all callbacks.

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.params["steps"] = self.target = len(self._epochs)
        super().on_epoch_begin(epoch, logs)


def _sets_rate(callback: Any) -> bool:
    """Whether its schedule takes the epoch only, so the rate that it sets does not depend on the one before."""
    if not isinstance(callback, tf.keras.callbacks.LearningRateScheduler):
        return False
    try:
        inspect.signature(callback.schedule).bind(0, 0.0)
    except TypeError:
        return True
    except ValueError:  # It tells nothing of its parameters.
        pass
    return False


def _reader(data: Any) -> tuple[int, Callable[[Any], Any]]:
    """The number of samples, and what gives those of some indices as arrays."""
    if isinstance(data, tuple | dict | np.ndarray | tf.Tensor):
        arrays = tf.nest.map_structure(np.asarray, data)
        lengths = {len(array) for array in tf.nest.flatten(arrays)}
        if len(lengths) != 1:
            problem = f"the arrays have {sorted(lengths)} samples"
            raise InvalidSettings("GlobalBatches.data", problem, "Give arrays with as many samples each")
        return lengths.pop(), lambda indices: tf.nest.map_structure(lambda array: array[indices], arrays)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        problem = f"{type(data).__name__} has no length, or no samples by index"
        raise InvalidSettings("GlobalBatches.data", problem, "Give arrays, or something with __len__ and __getitem__")

    def gather(indices: Any) -> Any:
        samples = [data[int(index)] for index in indices]
        return tf.nest.map_structure(lambda *values: np.stack(values), *samples)

    return len(data), gather
