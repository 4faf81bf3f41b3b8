"""The same micro-batches at every global step, whatever the size of the world: Keras' ``fit`` accumulates gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf
from typing_extensions import override

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.tensorflow.batches import GlobalBatches
from elastic_runtime.tensorflow.callback import tidy
from elastic_runtime.training.batches.plan import idle


class MicroBatches(GlobalBatches):
    """A training's steps, each of ``count`` micro-batches over all ranks together.

    It works as :class:`~elastic_runtime.tensorflow.GlobalBatches`, but a share is a number of whole micro-batches,
    which have the same samples at any world size. :meth:`fit` goes over them one after the other and adds their
    gradients up, so a rank needs no more memory if there are fewer ranks. The update is that of the mean loss over all
    samples of the step.

    Args:
        data: as for GlobalBatches, like all parameters that are not described here.
        size: samples of a micro-batch. The last one of an epoch may have fewer.
        count: micro-batches of a step.
        seed: 0 to 2**63 - 1.
        state: as for GlobalBatches.
        **options: as for GlobalBatches.

    Raises:
        InvalidSettings: an argument cannot work.
    """

    def __init__(self, data: Any, size: int, count: int, seed: int, state: Any, **options: Any) -> None:
        for name, value in (("size", size), ("count", count)):
            if type(value) is not int or value < 1:
                problem = f"{value!r} is not a whole number of 1 or more"
                raise InvalidSettings(f"MicroBatches.{name}", problem, "Give 1 or more")
        super().__init__(data, size * count, seed, state, **options)
        self.plan = replace(self.plan, piece=size)
        self._count = count

    @property
    def idle(self) -> float:
        """Part of the ranks' time, 0 to 1, for which they wait in this world because it does not divide ``count``."""
        return idle(self._count, self.world.size)

    @override
    def fit(self, model: Any, **arguments: Any) -> None:
        """As :meth:`GlobalBatches.fit`, with gradients that are accumulated over the micro-batches of this rank.

        Raises:
            InvalidSettings: the model has a training step of its own; or its optimizer is not
                ``hvd.DistributedOptimizer``, or accumulates or scales itself.
            Exception: as there.
        """
        if type(model).train_step is not tf.keras.Model.train_step or "train_step" in vars(model):
            problem = f"{type(model).__name__} has a train_step of its own, which does not go over micro-batches"
            raise InvalidSettings("MicroBatches.fit", problem, "Use GlobalBatches, or override compute_loss instead")
        optimizer: Any = getattr(model, "optimizer", None)
        if not hasattr(optimizer, "_allreduce") or optimizer._agg_helper:
            problem = f"a {type(optimizer).__name__} of this kind cannot be given gradients that are added up already"
            remedy = "Compile with hvd.DistributedOptimizer, without backward_passes_per_step and LossScaleOptimizer"
            raise InvalidSettings("MicroBatches.fit", problem, remedy)
        with _accumulating(model, self.plan.piece):
            super().fit(model, **arguments)


@contextmanager
def _accumulating(model: Any, size: int) -> Iterator[None]:
    """Have the model's training step go over so many samples at a time, and then take one step of its optimizer."""

    def train_step(data: Any) -> Any:
        data = tf.keras.utils.unpack_x_y_sample_weight(data)
        samples, variables = tf.shape(tf.nest.flatten(data)[0])[0], model.trainable_variables

        def add_piece(begin: Any, total: Any) -> Any:
            inputs, targets, weights = tf.nest.map_structure(lambda each: each[begin : begin + size], data)
            with tf.GradientTape() as tape:
                outputs = model(inputs, training=True)
                part = tf.minimum(size, samples - begin) / samples
                loss = model.compute_loss(inputs, targets, outputs, weights)
                loss *= tf.cast(part, loss.dtype)
            model.compute_metrics(inputs, targets, outputs, weights)
            unused = tf.UnconnectedGradients.ZERO
            added = tape.gradient(loss, variables, unconnected_gradients=unused)
            return begin + size, [so_far + each for so_far, each in zip(total, added, strict=True)]

        nothing = [tf.zeros_like(variable) for variable in variables]
        shapes = tf.TensorShape([]), [variable.shape for variable in variables]
        _, total = tf.while_loop(lambda begin, _: begin < samples, add_piece, (0, nothing), shapes)
        reduced = model.optimizer._allreduce(total, variables)
        model.optimizer.apply_gradients(zip(reduced, variables, strict=True))
        return model.get_metrics_result()

    tidy(model)  # The function that Keras makes depends on it.
    model.train_step, model.train_function = train_step, None
    try:
        yield
    finally:
        del model.train_step
        model.train_function = None
