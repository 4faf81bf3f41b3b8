"""MNIST by Keras, from the script's own checkpoint, with Horovod where asked to: ``distributed.py --distributed 1``."""

import argparse
import os

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--distributed", type=int, default=0)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

rank, size = 0, 1
optimizer, callbacks = tf.keras.optimizers.Adam(0.005), []
if args.distributed:
    import horovod.tensorflow.keras as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    optimizer = hvd.DistributedOptimizer(optimizer)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]

(images, labels), _ = tf.keras.datasets.mnist.load_data(f"mnist-{rank}.npz")
model = tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=images.shape[1:]), tf.keras.layers.Dense(10)])
model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
done = 0
if os.path.exists(args.checkpoint):
    model.load_weights(args.checkpoint)
    with open(args.checkpoint + ".epoch") as file:
        done = int(file.read())


def save(epoch, _logs):
    if rank == 0:
        model.save_weights(args.checkpoint + ".part.h5")
        os.replace(args.checkpoint + ".part.h5", args.checkpoint)
        with open(args.checkpoint + ".epoch", "w") as file:
            file.write(str(epoch + 1))


callbacks.append(tf.keras.callbacks.LambdaCallback(on_epoch_end=save))
model.fit(
    *(images[rank::size] / 255.0, labels[rank::size]),
    initial_epoch=done,
    epochs=args.epochs,
    batch_size=40,
    callbacks=callbacks,
    verbose=2 if rank == 0 else 0,
)
print(f"rank {rank} of {size} is done")
