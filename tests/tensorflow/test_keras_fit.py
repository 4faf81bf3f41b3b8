"""Keras' ``fit`` in a world of one: with a model's own settings, with callbacks, and in a world that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import pytest
import tensorflow as tf

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.tensorflow import DurableState, Elastic, GlobalBatches, MicroBatches
from tests.plain_launchers import by_horovod
from tests.tensorflow.ranks import ENVIRONMENT, SCRIPTS

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

    def test_its_step_is_committed_after_a_loss_at_that_commit(self) -> None:
        class LosingState(ChangingState):
            fails = True

            def commit(self) -> None:
                if self.fails and self.step == 3:
                    self.fails = False
                    raise WorldChanged
                super().commit()

        model = made()
        state = LosingState(model)
        batches, elastic = GlobalBatches((FEATURES, LABELS), 4, 0, state), Elastic(state)
        with pytest.raises(WorldChanged):
            model.fit(batches.sequence(), shuffle=False, callbacks=[elastic], verbose=0)
        state.restore()
        model.fit(batches.sequence(), shuffle=False, callbacks=[elastic], verbose=0)
        assert state._commits == [1, 2, 3]

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


class TestSeveralPlans:
    """Batches of an epoch with a state that has counted the steps of other ones."""

    OWN = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(2).repeat()

    @pytest.mark.parametrize("every", [1, 2])
    @pytest.mark.parametrize("first", ["fit", "sequence"])
    def test_steps_of_the_scripts_own_batches_count(self, first: str, every: int) -> None:
        model = made()
        state = ChangingState(model)
        batches = GlobalBatches((FEATURES, LABELS), 5, 0, state, epochs=1)
        if first == "fit":
            batches.fit(model, verbose=0)
        else:
            model.fit(batches.sequence(), shuffle=False, callbacks=[Elastic(state)], verbose=0)
        callbacks = [Elastic(state, commit_every=every)]
        model.fit(self.OWN, steps_per_epoch=6, epochs=2, callbacks=callbacks, verbose=0)
        assert state._commits == [1, 2, *range(2 + every, 15, every)]
        assert int(model.optimizer.iterations) == 14

    @pytest.mark.parametrize("every", [1, 2])
    def test_steps_count_where_keras_knows_no_end(self, every: int) -> None:
        model = made()
        state = ChangingState(model)
        GlobalBatches((FEATURES, LABELS), 5, 0, state, epochs=1).sequence()  # Two steps, and for no fit.
        endless = self.OWN.take(7).filter(lambda *_: True)
        model.fit(endless, callbacks=[Elastic(state, commit_every=every)], verbose=0)
        assert state._commits == ([*range(1, 8)] if every == 1 else [2, 4, 6, 7])
        assert state.step == 7

    @pytest.mark.parametrize("way", ["fit", "sequence", "dataset"])
    def test_each_of_two_has_its_own_epochs(self, way: str) -> None:
        model = made()
        state = ChangingState(model)
        ends = Ends(state)
        long, short = (GlobalBatches((FEATURES, LABELS), size, 0, state, epochs=1) for size in (1, 5))
        given: dict[str, Any] = {"validation_data": (FEATURES, LABELS), "verbose": 0}
        if way == "fit":
            long.fit(model, callbacks=[ends], **given)
        else:
            data = getattr(long, way)()
            model.fit(data, shuffle=False, callbacks=[ends, Elastic(state)], **given)
        assert len(short) == 2
        assert state._commits == [*range(1, 11)]
        assert ends.seen == [(0, 9)]


class Watch(tf.keras.callbacks.Callback):
    """Notes what Keras tells callbacks."""

    def __init__(self, *, stops_at: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.begun, self.epochs, self.batches, self._stops_at = 0, [], [], stops_at

    def on_train_begin(self, logs: Any = None) -> None:
        self.begun += 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append((self.epochs[-1], batch, self.params["steps"]))
        if self.batches[-1][:2] == self._stops_at:
            self.model.stop_training = True


class TestOneFit:
    def test_covers_all_epochs_that_are_left(self, capsys: pytest.CaptureFixture[str]) -> None:
        model, watch = made(), Watch()
        state = ChangingState(model, 2)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=3)
        with pytest.raises(WorldChanged):
            batches.fit(model, callbacks=[watch])
        state.restore()
        batches.fit(model, callbacks=[watch])
        assert (watch.begun, watch.epochs) == (2, [0, 0, 1, 2])
        whole = [(epoch, batch, 3) for epoch in (1, 2) for batch in range(3)]
        assert watch.batches == [(0, 0, 3), (0, 1, 3), (0, 0, 1), *whole]
        assert state._commits == [*range(1, 10)]
        said = capsys.readouterr().out.splitlines()
        assert [line for line in said if line.startswith("Epoch")] == [f"Epoch {n}/3" for n in (1, 1, 2, 3)]
        assert [line[:4] for line in said if " loss: " in line] == ["1/1 ", "3/3 ", "3/3 "]

    def test_trains_as_a_fit_for_each_epoch(self) -> None:
        ended = []
        for changes in ((), (2, 3, 7), (9,)):
            model = made(optimizer=tf.keras.optimizers.Adam(0.1))
            trained(GlobalBatches((FEATURES, LABELS), 4, 0, ChangingState(model, *changes), epochs=3), model)
            ended.append(model.get_weights())
        model = made(optimizer=tf.keras.optimizers.Adam(0.1))
        state = DurableState(model)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=3)
        for _ in range(3):
            model.fit(batches.sequence(), shuffle=False, callbacks=[Elastic(state)], verbose=0)
        for each in ended:
            assert all(map(np.array_equal, each, model.get_weights()))

    @pytest.mark.parametrize(("batch", "step"), [(1, 5), (2, 6)])
    def test_ends_where_a_callback_stops_it_and_in_no_other_world(self, batch: int, step: int) -> None:
        model, watch = made(), Watch(stops_at=(1, batch))
        state = ChangingState(model, step)
        GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=4).fit(model, callbacks=[watch], verbose=0)
        assert state.step == int(model.optimizer.iterations) == step
        assert json.loads(state._receipt.note())["step"] == step
        state.step = 0
        state.restore()
        assert state.step == step, "it was saved"

    @pytest.mark.parametrize("way", ["sequence", "own"])
    def test_others_commit_where_a_callback_stops_them(self, way: str) -> None:
        model = made()
        state = ChangingState(model, 3)
        batches = GlobalBatches((FEATURES, LABELS), 1, 0, state)
        for step in (1, 2, 3, 4):
            data = (batches.sequence(),) if way == "sequence" else (FEATURES, LABELS)
            callbacks = [Watch(stops_at=(0, 0)), Elastic(state)]
            with pytest.raises(WorldChanged) if step == 3 else nullcontext():
                model.fit(*data, batch_size=None, shuffle=False, callbacks=callbacks, verbose=0)
        assert state._commits == [1, 2, 3, 4]

    def test_early_stopping_stops_it(self) -> None:
        model = made(optimizer=tf.keras.optimizers.SGD(0.0))
        stopping = tf.keras.callbacks.EarlyStopping("loss", min_delta=1, patience=2)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(model), epochs=9)
        batches.fit(model, callbacks=[hvd.callbacks.MetricAverageCallback(), stopping], verbose=0)
        assert stopping.stopped_epoch == 2
        assert batches.step == 9

    def test_a_plateau_lowers_the_rate(self) -> None:
        model = made(optimizer=tf.keras.optimizers.SGD(0.01))
        plateau = tf.keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, min_delta=9, patience=1)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(model), epochs=4)
        batches.fit(model, callbacks=[hvd.callbacks.MetricAverageCallback(), plateau], verbose=0)
        assert float(model.optimizer.learning_rate) == pytest.approx(0.01 / 8)

    @pytest.mark.parametrize("kind", [tf.keras.callbacks.EarlyStopping, tf.keras.callbacks.ReduceLROnPlateau])
    def test_what_ranks_would_decide_by_their_own_logs_is_refused(self, kind: type[Any]) -> None:
        model = made()
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(model))
        callbacks = [kind("loss"), hvd.callbacks.MetricAverageCallback()]
        with pytest.raises(InvalidSettings, match=rf"^GlobalBatches\.fit: {kind.__name__} .* before it"):
            batches.fit(model, callbacks=callbacks, verbose=0)

    @pytest.mark.parametrize("name", ["TerminateOnNaN", "BackupAndRestore"])
    def test_callbacks_that_cannot_work_are_refused(self, name: str, tmp_path: Path) -> None:
        model = made()
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(model))
        kind = getattr(tf.keras.callbacks, name)
        callback = kind(tmp_path / "backup") if name == "BackupAndRestore" else kind()
        with pytest.raises(InvalidSettings, match=rf"{name} .* Leave it out"):
            batches.fit(model, callbacks=[callback], verbose=0)

    def test_another_world_is_told_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        model = made()
        callbacks = [hvd.callbacks.MetricAverageCallback(), tf.keras.callbacks.EarlyStopping("loss", patience=9)]
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, ChangingState(model, 4, 7), epochs=3)
        trained(batches, model, callbacks=callbacks)
        said = [each.message for each in caplog.records if "begins anew" in each.message]
        assert said == ["EarlyStopping begins anew in each world: it has forgotten the epochs before step 4"]

    @pytest.mark.parametrize("changes", [(), (4,), (9,)])
    def test_moving_averages_are_the_weights_at_the_end_only(self, changes: tuple[int, ...]) -> None:
        plain = made(optimizer=tf.keras.optimizers.SGD(0.1))
        GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(plain), epochs=3).fit(plain, verbose=0)
        model = made(optimizer=tf.keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))
        seen: list[Any] = []
        note = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(model.get_weights()))
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, ChangingState(model, *changes), epochs=3)
        trained(batches, model, callbacks=[note])
        assert all(map(np.array_equal, seen[-1], plain.get_weights()))
        averages = model.optimizer._model_variables_moving_average
        assert all(map(np.array_equal, model.get_weights(), [each.numpy() for each in averages]))
        assert not np.array_equal(model.get_weights()[0], seen[-1][0])

    def test_moving_averages_with_a_fit_for_each_epoch_are_refused(self) -> None:
        model = made(optimizer=tf.keras.optimizers.SGD(0.1, use_ema=True))
        state = DurableState(model)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=2)
        with pytest.raises(InvalidSettings, match=r"^Elastic\.use_ema: .* Train with GlobalBatches\.fit"):
            model.fit(batches.sequence(), shuffle=False, callbacks=[Elastic(state)], verbose=0)

    def test_several_workers_are_refused(self) -> None:
        model = made()
        with pytest.raises(InvalidSettings, match="Give fit neither workers nor use_multiprocessing"):
            GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(model)).fit(model, workers=2)

    def test_each_world_validates_with_its_own_data(self) -> None:
        model, seen = made(), []
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, ChangingState(model, 4), epochs=3)
        note = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(logs["val_loss"]))
        with pytest.raises(WorldChanged):
            batches.fit(model, callbacks=[note], validation_data=(FEATURES, LABELS), verbose=0)
        batches.state.restore()
        batches.fit(model, callbacks=[note], validation_data=(FEATURES, LABELS + 100), verbose=0)
        assert seen[0] < 100 < 1000 < seen[1]


class TestLearningRates:
    @pytest.mark.parametrize("optimizer", [tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD], ids=["new", "old"])
    @pytest.mark.parametrize("changes", [(), (1,), (3,), (4, 5), (2, 6, 7)])
    def test_fall_once_an_epoch_whatever_worlds_there_are(self, optimizer: Any, changes: tuple[int, ...]) -> None:
        model = made(optimizer=optimizer(0.1))
        rates: dict[int, float] = {}
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, ChangingState(model, *changes), epochs=3)

        def note(_batch: int, logs: Any) -> None:
            rates[batches.step] = float(model.optimizer.learning_rate)

        schedule = tf.keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2)
        trained(batches, model, callbacks=[schedule, tf.keras.callbacks.LambdaCallback(on_batch_end=note)])
        assert list(rates.values()) == pytest.approx([0.05] * 3 + [0.025] * 3 + [0.0125] * 3)

    @pytest.mark.parametrize("way", ["sequence", "dataset"])
    def test_fall_once_with_a_fit_for_each_epoch(self, way: str) -> None:
        model = made()
        state = ChangingState(model, 1, 5)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=3)
        while batches.step < len(batches):
            epoch = batches.step // 3
            schedule = tf.keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2)
            try:
                model.fit(
                    getattr(batches, way)(), shuffle=False, callbacks=[schedule, Elastic(state)],
                    initial_epoch=epoch, epochs=epoch + 1, verbose=0,
                )  # fmt: skip
            except WorldChanged:
                state.restore()
        assert float(model.optimizer.learning_rate) == pytest.approx(0.0125)

    @pytest.mark.parametrize("way", ["fit", "sequence", "dataset"])
    def test_are_those_of_a_schedule_by_epoch_and_world(self, way: str) -> None:
        """The world grows from 2 ranks to 4 in the middle of the second epoch, and shrinks to 1 at its end."""
        model, sizes, rates = made(), [2, 4, 1], {}
        state = ChangingState(model, 4, 6)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=3)

        def note(_batch: int, logs: Any) -> None:
            rates[batches.step] = float(model.optimizer.learning_rate)

        schedule = tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * sizes[0] * 0.5**epoch)
        callbacks = [schedule, tf.keras.callbacks.LambdaCallback(on_batch_end=note)]
        while batches.step < len(batches):
            epoch = batches.step // 3
            try:
                if way == "fit":
                    batches.fit(model, callbacks=callbacks, verbose=0)
                else:
                    model.fit(
                        getattr(batches, way)(), shuffle=False, callbacks=[*callbacks, Elastic(state, keep_rate=False)],
                        initial_epoch=epoch, epochs=epoch + 1, verbose=0,
                    )  # fmt: skip
            except WorldChanged:
                del sizes[0]
                state.restore()
        assert list(rates.values()) == pytest.approx([0.02] * 3 + [0.01] + [0.02] * 2 + [0.0025] * 3)

    def test_of_a_schedule_by_steps_are_left_alone(self) -> None:
        model = made(optimizer=tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))
        trained(GlobalBatches((FEATURES, LABELS), 4, 0, ChangingState(model, 1, 5), epochs=3), model)
        assert int(model.optimizer.iterations) == 9


@pytest.mark.timeout(120)
def test_ranks_decide_alike() -> None:
    """Each has other logs, so without their average one would stop and the other wait for it."""
    said = by_horovod(SCRIPTS / "stopped.py", 2, environment=ENVIRONMENT)
    ended = [line.split("ended ")[1].split() for line in said.splitlines() if "ended " in line]
    assert len(ended) == 2
    assert ended[0] == ended[1]
    step, trained, rate = int(ended[0][0]), int(ended[0][1]), float(ended[0][2])
    assert step == trained < 800
    assert step % 8 == 0
    assert rate < 0.1
