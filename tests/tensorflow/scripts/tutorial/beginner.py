"""A training as TensorFlow's `quickstart for beginners`_ teaches it: ``Sequential``, ``fit``, ``evaluate``. No Horovod.

.. _quickstart for beginners: https://www.tensorflow.org/tutorials/quickstart/beginner
"""

import tensorflow as tf

(train_images, train_labels), (test_images, test_labels) = tf.keras.datasets.mnist.load_data("mnist.npz")
model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=train_images.shape[1:]),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dropout(0.2),
        tf.keras.layers.Dense(10),
    ]
)
criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=criterion, metrics=["accuracy"])
model.fit(train_images / 255.0, train_labels, epochs=5, verbose=2)
loss, accuracy = model.evaluate(test_images / 255.0, test_labels, verbose=0)
print(f"evaluated: loss {loss:.4f}, accuracy {accuracy:.4f}")
