"""What of TensorFlow's objects is kept, in a world of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.tensorflow.keras as hvd
import numpy as np
import pytest
import tensorflow as tf

from elastic_runtime.checkpoint import open_store
from elastic_runtime.checkpoint.checkpoints import Checkpoints
from elastic_runtime.clock import utc_now
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.tensorflow import DurableState, Elastic, GlobalBatches, MicroBatches, load_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FEATURES = np.arange(40, dtype=np.float32).reshape(10, 4) / 40
LABELS = FEATURES.sum(axis=1)


@pytest.fixture(scope="module", autouse=True)
def horovod() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def made(optimizer: Any = None) -> Any:
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    model.compile(optimizer or tf.keras.optimizers.Adam(0.01), "mse")
    return model


OPTIMIZERS = {
    "Adam": lambda: tf.keras.optimizers.Adam(0.01),
    "distributed": lambda: hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)),
    "legacy": lambda: tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9),
    "scheduled": lambda: tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)),
    "scaled": lambda: tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_model_and_its_optimizer_go_back_to_the_commit(name: str) -> None:
    model = made(OPTIMIZERS[name]())
    state = DurableState(model)
    model.fit(FEATURES, LABELS, verbose=0, epochs=2)
    state.commit()
    weights, first = model.get_weights(), model.evaluate(FEATURES, LABELS, verbose=0)
    model.fit(FEATURES, LABELS, verbose=0, shuffle=False)
    after = model.get_weights()
    state.restore()
    assert all(map(np.array_equal, model.get_weights(), weights))
    assert model.evaluate(FEATURES, LABELS, verbose=0) == first
    model.fit(FEATURES, LABELS, verbose=0, shuffle=False)  # With the same moments, step and rate as before.
    assert all(map(np.array_equal, model.get_weights(), after))


def test_the_learning_rate_is_kept() -> None:
    model = made()
    state = DurableState(model)
    model.optimizer.learning_rate = 0.5
    state.commit()
    model.optimizer.learning_rate = 0.25
    state.restore()
    assert float(model.optimizer.learning_rate) == 0.5


def test_variables_and_arrays_are_kept() -> None:
    ema, counts = tf.Variable([1.0, 2.0]), {"a": [tf.Variable(1)]}
    state = DurableState(ema=ema, counts=counts, seen=np.zeros(2), best=1.5)
    ema.assign([3.0, 4.0])
    counts["a"][0].assign(5)
    state.seen += 1
    state.restore()
    assert ema.numpy().tolist() == [1.0, 2.0]
    assert int(state.counts["a"][0]) == 1
    assert state.seen.tolist() == [0.0, 0.0]


def test_a_model_without_variables_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"has no variables yet\. Begin it with tf\.keras\.Input"):
        DurableState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))


def test_a_dynamic_loss_scale_is_kept() -> None:
    optimizer = OPTIMIZERS["scaled"]()
    model = made(optimizer)
    state = DurableState(model)
    scale = optimizer._loss_scale
    scale.current_loss_scale.assign(8.0)
    scale.counter.assign(3)
    state.commit()
    scale.current_loss_scale.assign(4.0)
    scale.counter.assign(0)
    state.restore()
    assert (float(optimizer.loss_scale), int(optimizer.dynamic_counter)) == (8.0, 3)


def test_a_commit_between_the_backward_passes_of_a_step_is_refused() -> None:
    model = made(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), backward_passes_per_step=2))
    state = DurableState(model)
    model.fit(FEATURES, LABELS, batch_size=10, verbose=0)
    with pytest.raises(InvalidSettings, match=r"^DurableState\.optimizer: .* has all its backward passes, after 1"):
        state.commit()
    model.fit(FEATURES, LABELS, batch_size=10, verbose=0)
    state.commit()


def test_gradients_that_are_accumulated_are_those_of_the_whole_batch() -> None:
    """With a regularizer, which counts once, and a last piece that is smaller."""
    ended = []
    for kind, sizes in ((GlobalBatches, {"size": 9}), (MicroBatches, {"size": 3, "count": 3})):
        tf.keras.utils.set_random_seed(1)
        layers = [tf.keras.Input((4,)), tf.keras.layers.Dense(3, "tanh", kernel_regularizer="l2")]
        model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9)), "mse", metrics=["mae"])
        batches = kind((FEATURES, LABELS), seed=2, state=DurableState(model), epochs=3, **sizes)
        batches.fit(model, verbose=0)
        assert model.train_step.__func__ is tf.keras.Model.train_step
        ended.append([*model.get_weights(), model.evaluate(FEATURES, LABELS, verbose=0)])
    for one, other in zip(*ended, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf.keras.optimizers.SGD(0.1),
        lambda: hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), backward_passes_per_step=2),
        lambda: tf.keras.mixed_precision.LossScaleOptimizer(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))),
    ],
    ids=["not Horovod's", "accumulates itself", "scales"],
)
def test_an_optimizer_that_takes_no_accumulated_gradients_is_refused(optimizer: Any) -> None:
    model = made(optimizer())
    batches = MicroBatches((FEATURES, LABELS), 2, 2, 0, DurableState(model))
    with pytest.raises(InvalidSettings, match=r"^MicroBatches\.fit: .* Compile with hvd\.DistributedOptimizer"):
        batches.fit(model)


class Twice(tf.keras.layers.Layer):
    """Two layers whose weights have the same shapes."""

    def build(self, shape: Any) -> None:
        self.layers = [tf.keras.layers.BatchNormalization(), tf.keras.layers.BatchNormalization()]
        for layer in self.layers:
            layer.build(shape)

    def call(self, data: Any) -> Any:
        return self.layers[1](self.layers[0](data))


def test_layers_that_are_frozen_meanwhile_keep_their_weights(tmp_path: Path) -> None:
    """Keras then gives its weights in another order."""

    def fresh() -> Any:
        given = tf.keras.Input((4,))
        return tf.keras.Model(given, Twice()(given))

    model, uri = fresh(), (tmp_path / "run").as_uri()
    with DurableState(model, checkpoint=uri) as state:
        model.layers[1].trainable = False
        for number, layer in enumerate(model.layers[1].layers):
            layer.set_weights([np.full(4, 10 * number + each) for each in range(4)])
        wanted = [layer.get_weights() for layer in model.layers[1].layers]
        state.step = 1
    again = fresh()
    DurableState(again, checkpoint=uri)
    found = [layer.get_weights() for layer in again.layers[1].layers]
    assert np.array_equal(found, wanted)


def test_a_model_that_has_got_other_weights_is_not_mistaken() -> None:
    model = made()
    state = DurableState(model)
    model.late = tf.Variable(1.0)
    with pytest.raises(ValueError, match="other weights than when it was given"):
        state.commit()


def test_variables_are_found_again_by_their_names(tmp_path: Path) -> None:
    uri = (tmp_path / "run").as_uri()
    with DurableState(kept={"a": tf.Variable(1.0), 0: tf.Variable(2.0)}, checkpoint=uri) as state:
        state.step = 1
    again = DurableState(kept={0: tf.Variable(0.0), "a": tf.Variable(0.0)}, checkpoint=uri)
    assert {key: float(each) for key, each in again.kept.items()} == {"a": 1.0, 0: 2.0}
    with pytest.raises(InvalidSettings, match="b is only in one of both"):
        DurableState(kept={"a": tf.Variable(0.0), "b": tf.Variable(0.0)}, checkpoint=uri)


def test_a_variable_that_a_list_gets_later_is_kept() -> None:
    state = DurableState(kept=[tf.Variable(1.0)])
    state.kept.append(tf.Variable(2.0))
    state.commit()
    state.kept[1].assign(3.0)
    state.restore()
    assert float(state.kept[1]) == 2.0


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (tf.keras.optimizers.Adam, "it has no variables yet"),
        (tf.keras.optimizers.legacy.Adam, "it has no variables yet"),
        (lambda: made(tf.keras.optimizers.Nadam()).optimizer, "that are not its variables"),
    ],
)
def test_an_optimizer_that_a_new_rank_would_not_get_whole_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=rf"^DurableState\.second: .*{problem}"):
        DurableState(made(), second=make())


def test_an_array_that_no_checkpoint_can_hold_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"a dict cannot be kept, because of an array of complex128 in it"):
        DurableState(waves={"a": np.array([1j])})


def test_a_tensor_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"DurableState\.total: a EagerTensor cannot be kept"):
        DurableState(total=tf.zeros(2))


def test_a_checkpoint_is_read_again_and_not_into_another_model(tmp_path: Path) -> None:
    uri = (tmp_path / "run").as_uri()
    model = made()
    with DurableState(model, checkpoint=uri) as state:
        model.fit(FEATURES, LABELS, verbose=0)
        state.step = 3
    again = made()
    state = DurableState(again, checkpoint=uri)
    assert state.step == 3
    assert all(map(np.array_equal, again.get_weights(), model.get_weights()))
    newest = max((tmp_path / "run").glob("*3*"))
    assert all(map(np.array_equal, load_checkpoint(newest.as_uri())["model"], model.get_weights()))
    other = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(5)])
    with pytest.raises(InvalidSettings, match=r"does not fit the model of this script: .*it has arrays of the shapes"):
        DurableState(other, checkpoint=uri)


def test_a_checkpoint_of_torchs_is_passed_over(tmp_path: Path) -> None:
    uri = (tmp_path / "run").as_uri()
    checkpoints = Checkpoints(open_store(uri), 1, 2)
    header = b'{"__metadata__": {"format": "pt", "tree": "{}", "types": "{}"}}'
    part = {"model.safetensors": lambda stream: stream.write(len(header).to_bytes(8, "little") + header)}
    stored = checkpoints.write(3, utc_now(), part)
    with pytest.raises(InvalidDocument, match=r"its part model\.safetensors .* is another framework's: pt"):
        load_checkpoint(stored.uri)
    assert DurableState(made(), checkpoint=uri).step == 0


class TestBatches:
    def test_cover_each_sample_once_in_an_epoch(self) -> None:
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, DurableState(step=0), epochs=2)
        seen = [int(index) for batch in batches for index in batch.indices]
        assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))

    def test_of_samples_by_index_are_those_of_arrays(self) -> None:
        samples = list(zip(FEATURES, LABELS, strict=True))
        pairs = [GlobalBatches(data, 4, 0, DurableState(step=0)) for data in (samples, (FEATURES, LABELS))]
        for one, other in zip(*pairs, strict=True):
            assert np.array_equal(one.data[0], other.data[0])
            assert np.array_equal(one.data[1], other.data[1])

    def test_go_on_in_the_middle_of_an_epoch(self) -> None:
        state = DurableState(step=4)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=3)
        assert len(batches.sequence()) == 2
        assert sum(len(x) for x, _, _ in batches.dataset()) == 6

    def test_in_an_order_of_fits_own_are_refused(self) -> None:
        model = made()
        state = DurableState(model)
        tf.keras.utils.set_random_seed(1)
        batches = GlobalBatches((FEATURES, LABELS), 1, 0, state)
        with pytest.raises((InvalidSettings, tf.errors.OpError), match="shuffle=False"):
            model.fit(batches.sequence(), callbacks=[Elastic(state)], verbose=0)

    def test_of_different_lengths_are_refused(self) -> None:
        with pytest.raises(InvalidSettings, match=r"the arrays have \[5, 10\] samples"):
            GlobalBatches((FEATURES, LABELS[:5]), 4, 0, DurableState(step=0))

    def test_fit_commits_and_ends_with_the_epochs(self) -> None:
        model = made()
        state = DurableState(model)
        batches = GlobalBatches((FEATURES, LABELS), 4, 0, state, epochs=2)
        batches.fit(model, commit_every=2, verbose=0)
        assert state.step == len(batches) == 6
        model.set_weights([weight * 0 for weight in model.get_weights()])
        state.restore()
        assert state.step == 6
