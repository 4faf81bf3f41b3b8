"""Other people's scripts for TensorFlow, with small images of our own, and fewer and smaller steps."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import tensorflow as tf


def images(path: str) -> Any:
    made = np.random.default_rng(3)
    labels = made.integers(0, 10, 400)
    pictures = made.integers(0, 60, (400, 8, 8)) + 15 * labels[:, None, None]
    return (pictures, labels), (pictures[:100], labels[:100])


def run_changed(script: Path, changes: Sequence[str], folder: str, arguments: Sequence[str] = ()) -> None:
    """Run it, in a new folder.

    Args:
        script: it.
        changes: pairs of texts: the first is there once, and reads as the second instead.
        folder: where to make that folder.
        arguments: of the script.
    """
    source = script.read_text()
    for before, after in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    tf.keras.datasets.mnist.load_data = images
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    changed = Path(mkdtemp(dir=folder), script.name)  # TensorFlow looks for the source of functions.
    changed.write_text(source)
    os.chdir(changed.parent)
    sys.argv = [script.name, *arguments]
    runpy.run_path(str(changed), run_name="__main__")
