"""Keras' ``fit`` in a world of one: with a model's own settings, with callbacks, and in a world that changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import pytest
import tensorflow as tf

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.tensorflow import DurableState, Elastic, GlobalBatches, MicroBatches

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FEATURES = np.arange(40, dtype=np.float32).reshape(10, 4) / 40
LABELS = FEATURES.sum(axis=1)


@pytest.fixture(scope="module", autouse=True)
def horovod() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def made(kind: type[Any] = tf.keras.Sequential, optimizer: Any = None, **options: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    model = kind([tf.keras.Input((4,)), tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(optimizer or tf.keras.optimizers.SGD(0.1)), "mse", **options)
    return model


class WorldChanged(Exception):
    """As the engine's interrupt."""


class ChangingState(DurableState):
    """Commits, and is in another world after the commits of these steps."""

    def __init__(self, model: Any, *changes: int) -> None:
        super().__init__(model)
        self._changes, self._commits = list(changes), []

    def commit(self) -> None:
        super().commit()
        self._commits.append(self.step)
        if self._changes and self.step >= self._changes[0]:
            del self._changes[0]
            raise WorldChanged


def trained(batches: GlobalBatches, model: Any, **arguments: Any) -> None:
    """As under ``hvd.elastic.run``, by ranks that all were there before."""
    while True:
        try:
            return batches.fit(model, verbose=0, **arguments)
        except WorldChanged:
            batches.state.restore()


class TestStepsPerExecution:
    @pytest.mark.parametrize("way", ["fit", "micro", "sequence"])
    def test_each_step_counts(self, way: str) -> None:
        model = made(steps_per_execution=4)
        state = ChangingState(model, 8)
        if way == "micro":
            batches: Any = MicroBatches((FEATURES, LABELS), 1, 1, 0, state, epochs=2)
        else:
            batches = GlobalBatches((FEATURES, LABELS), 1, 0, state, epochs=2)
        if way == "sequence":
            for _ in range(3):
                try:
                    model.fit(batches.sequence(), shuffle=False, callbacks=[Elastic(state)], verbose=0)
                except WorldChanged:
                    state.restore()
        else:
            trained(batches, model)
        assert state.step == int(model.optimizer.iterations) == 20
        assert state._commits == [4, 8, 10, 14, 18, 20]

    def test_commits_come_where_a_multiple_is_crossed(self) -> None:
        model = made(steps_per_execution=2)
        state = ChangingState(model)
        GlobalBatches((FEATURES, LABELS), 1, 0, state).fit(model, commit_every=3, verbose=0)
        assert state._commits == [4, 6, 10]

    def test_a_loss_in_an_epochs_last_execution_leaves_their_number(self) -> None:
        class Lossy(tf.keras.Sequential):
            fails = True

            def train_step(self, data: Any) -> Any:
                def fail() -> None:
                    if self.fails and int(self.optimizer.iterations) == 9:
                        self.fails = False
                        raise WorldChanged

                tf.py_function(fail, [], [])
                return super().train_step(data)

        model = made(Lossy, steps_per_execution=4)
        state = ChangingState(model)
        batches = GlobalBatches((FEATURES, LABELS), 1, 0, state, epochs=2)
        with pytest.raises((WorldChanged, tf.errors.OpError)):
            batches.fit(model, verbose=0)
        state.restore()
        assert state.step == 8
        batches.fit(model, verbose=0)
        assert state._commits == [4, 8, 10, 14, 18, 20]

    def test_their_number_is_not_tuned(self) -> None:
        model = made(steps_per_execution="auto")
        batches = GlobalBatches((FEATURES, LABELS), 1, 0, DurableState(model))
        with pytest.raises(InvalidSettings, match=r"^Elastic\.steps_per_execution: .* Compile the model with a number"):
            batches.fit(model, verbose=0)


class Own(tf.keras.Sequential):
    """As Keras' guide customizes ``fit``."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class OwnLoss(tf.keras.Sequential):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        return 3 * super().compute_loss(x, y, y_pred, sample_weight)


class TestMicroBatches:
    @pytest.mark.parametrize("kind", ["class", "instance"])
    def test_a_training_step_of_ones_own_is_refused(self, kind: str) -> None:
        model = made(Own if kind == "class" else tf.keras.Sequential)
        if kind == "instance":
            model.train_step = lambda data: {}
        batches = MicroBatches((FEATURES, LABELS), 2, 2, 0, DurableState(model))
        with pytest.raises(
            InvalidSettings, match=r"^MicroBatches\.fit: .* has a train_step of its own, .* GlobalBatches"
        ):
            batches.fit(model, verbose=0)

    def test_a_loss_of_ones_own_is_used(self) -> None:
        ended = []
        for kind, sizes in ((GlobalBatches, {"size": 4}), (MicroBatches, {"size": 2, "count": 2})):
            model = made(OwnLoss)
            kind((FEATURES, LABELS), seed=2, state=DurableState(model), **sizes).fit(model, verbose=0)
            ended.append(model.get_weights())
        for one, other in zip(*ended, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_dataset_has_as_many_steps_as_it_has_batches() -> None:
    model = made(optimizer=tf.keras.optimizers.Adam(0.1))
    state = DurableState(model)
    batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=2)
    for _ in range(2):
        model.fit(batches.dataset(), callbacks=[Elastic(state)], verbose=0)
    assert state.step == int(model.optimizer.iterations) == 6


class Ends(tf.keras.callbacks.Callback):
    """Notes epochs whose validation is over, and the state's step then."""

    def __init__(self, state: Any, *, fails_at: int | None = None) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []
        self._state, self._fails_at = state, fails_at

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert "val_loss" in logs
        self.seen.append((epoch, self._state.step))
        if epoch == self._fails_at:
            self._fails_at = None
            raise WorldChanged


class TestEpochEnds:
    VALIDATION = (FEATURES, LABELS)

    @pytest.mark.parametrize("way", ["fit", "dataset"])
    @pytest.mark.parametrize("every", [1, 2, 3])
    def test_none_is_left_out_where_the_world_changes(self, way: str, every: int) -> None:
        model = made()
        state = ChangingState(model, 3, 6)
        batches, ends = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=3), Ends(state)
        if way == "fit":
            trained(batches, model, commit_every=every, callbacks=[ends], validation_data=self.VALIDATION)
        while batches.step < len(batches):
            epoch = batches.step // 3
            callbacks = [ends, Elastic(state, commit_every=every)]
            try:
                model.fit(
                    batches.dataset(), validation_data=self.VALIDATION, callbacks=callbacks,
                    initial_epoch=epoch, epochs=epoch + 1, verbose=0,
                )  # fmt: skip
            except WorldChanged:
                state.restore()
        assert [epoch for epoch, _ in ends.seen] == [0, 1, 2]
        assert int(model.optimizer.iterations) == 9
        assert {3, 6, 9} <= set(state._commits)

    def test_one_with_a_loss_in_it_is_done_again(self) -> None:
        """The state is still that of the commit, which may be written meanwhile."""
        model = made()
        state = ChangingState(model)
        batches, ends = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=2), Ends(state, fails_at=0)
        trained(batches, model, callbacks=[ends], validation_data=self.VALIDATION)
        assert ends.seen == [(0, 2), (0, 2), (1, 5)]
        assert int(model.optimizer.iterations) == 6

    def test_batches_of_the_scripts_own_have_them_too(self) -> None:
        model = made()
        state = ChangingState(model, 5)
        ends = Ends(state)
        with pytest.raises(WorldChanged):
            model.fit(
                FEATURES, LABELS, batch_size=2, epochs=2, validation_data=self.VALIDATION,
                callbacks=[ends, Elastic(state)], verbose=0,
            )  # fmt: skip
        assert ends.seen == [(0, 4)]
        assert state.step == 5
