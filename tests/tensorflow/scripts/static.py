"""A script without an elastic state, unchanged but for data and amounts: ``static.py PATH FROM TO … -- ARGUMENT …``.

Each rank waits after its steps as ``held_steps.py`` says: of Keras' ``fit``, or of a loop over ``Dataset.take``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from changed import run_changed
from held_steps import count_and_hold
from pace import Pace


def held(function: Any) -> Any:
    """Call it, and count a step."""

    def called(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        count_and_hold()
        return result

    return called


def taken(dataset: Any, count: int) -> Iterator[Any]:
    for number, batch in enumerate(dataset):
        if number == count:
            return
        yield batch
        count_and_hold()


def main() -> None:
    pace = Pace.from_environment()
    split = sys.argv.index("--")
    (path, *changes), arguments = sys.argv[1:split], sys.argv[split + 1 :]
    tf.keras.callbacks.CallbackList.on_train_batch_end = held(tf.keras.callbacks.CallbackList.on_train_batch_end)
    tf.data.Dataset.take = taken
    run_changed(Path(__file__).parent / path, changes, pace.folder, arguments)


main()
