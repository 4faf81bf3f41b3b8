"""A script that knows nothing of this project, unchanged but for its data and its amounts, at the test's pace.

``horovods.py NAME FROM TO …``: NAME of a script beside this one; FROM is there once, and reads TO instead.
Images are of 8 × 8, made here. All ranks stand at the first commit after so many batches as the pace says.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from horovod.tensorflow.elastic import TensorFlowKerasState
from pace import Pace

from elastic_runtime.world import current_world

pace = Pace.from_environment()
commit = TensorFlowKerasState.commit


def paced_commit(state: Any) -> None:
    commit(state)
    world, step = current_world(), 1000 * getattr(state, "epoch", 0) + state.batch
    pace.note(step=step, rank=world.rank, size=world.size)
    pace.hold(SimpleNamespace(step=step, commit=lambda: commit(state)))


def images(path: str) -> Any:
    made = np.random.default_rng(3)
    labels = made.integers(0, 10, 400)
    pictures = made.integers(0, 60, (400, 8, 8)) + 15 * labels[:, None, None]
    return (pictures, labels), (pictures[:100], labels[:100])


def main() -> None:
    pace.door()
    name, *changes = sys.argv[1:]
    source = (Path(__file__).parent / name).read_text()
    for before, after in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    TensorFlowKerasState.commit = paced_commit
    tf.keras.datasets.mnist.load_data = images
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    changed = Path(mkdtemp(dir=pace.folder), Path(name).name)  # TensorFlow looks for the source of functions.
    changed.write_text(source)
    os.chdir(changed.parent)
    sys.argv = [name]
    runpy.run_path(str(changed), run_name="__main__")
    world = current_world()
    pace.note(done=True, rank=world.rank, size=world.size)


main()
