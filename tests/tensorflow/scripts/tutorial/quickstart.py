"""A training loop as TensorFlow's tutorials teach it (`quickstart for experts`_), with a dozen lines of Horovod: # +

A subclassed model, a ``tf.data`` pipeline, ``GradientTape`` in a ``tf.function``, metrics that are reset each epoch.

.. _quickstart for experts: https://www.tensorflow.org/tutorials/quickstart/advanced
"""

import horovod.tensorflow as hvd  # +
import tensorflow as tf

hvd.init()  # +

(train_images, train_labels), (test_images, test_labels) = tf.keras.datasets.mnist.load_data(f"mnist-{hvd.rank()}")  # +


def pipeline(images, labels):
    scaled = tf.cast(images[..., tf.newaxis], tf.float32) / 255.0
    return tf.data.Dataset.from_tensor_slices((scaled, labels)).shuffle(1000, seed=1).batch(8)


train_data, test_data = pipeline(train_images, train_labels), pipeline(test_images, test_labels)


class Classifier(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.convolution = tf.keras.layers.Conv2D(8, 3, activation="relu")
        self.flatten = tf.keras.layers.Flatten()
        self.hidden = tf.keras.layers.Dense(32, activation="relu")
        self.scores = tf.keras.layers.Dense(10)

    def call(self, images):
        return self.scores(self.hidden(self.flatten(self.convolution(images))))


model = Classifier()
criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.005)
train_loss = tf.keras.metrics.Mean()
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = criterion(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)  # +
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    train_loss(loss)


@tf.function
def test_step(images, labels):
    test_accuracy(labels, model(images, training=False))


@hvd.elastic.run  # +
def train(state):  # +
    for epoch in range(state.epoch, 4):
        train_loss.reset_state()
        test_accuracy.reset_state()
        for images, labels in train_data.skip(state.batch * hvd.size()).shard(hvd.size(), hvd.rank()):  # +
            train_step(images, labels)
            state.batch += 1  # +
            state.commit()  # +
        for images, labels in test_data:
            test_step(images, labels)
        print(f"Epoch {epoch + 1}, loss: {train_loss.result():.4f}, accuracy: {test_accuracy.result():.4f}")
        state.epoch, state.batch = epoch + 1, 0


model.build((None, *train_images.shape[1:], 1))  # +
optimizer.build(model.trainable_variables)  # +
train(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0))  # +
