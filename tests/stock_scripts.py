"""Scripts that know nothing of this project: what each has to stand, wherever its ranks run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from elastic_runtime.run.spec import RecoverySpec
from elastic_runtime.run.status import EventKind, Status
from tests.paced import ResizedRun, sizes_of

HOLDS = (4, 8, 12, 16)
RECOVERY = RecoverySpec(backoff=4.0)
"""So that the world without the lost rank is seen."""
TORCH: Mapping[str, tuple[str, ...]] = {
    "pytorch_mnist_elastic.py": ("--batch-size=512", "--epochs=30", "--lr=0.1"),
    "pytorch_synthetic_benchmark_elastic.py": (
        *("--batch-size=4", "--num-iters=6", "--num-batches-per-iter=4", "--num-warmup-batches=2"),
    ),
}
"""Horovod's for torch: arguments for few, small steps."""
TENSORFLOW: Mapping[str, tuple[str, ...]] = {
    "horovod/tensorflow2_mnist_elastic.py": (".batch(128)", ".batch(8)"),
    "horovod/tensorflow2_keras_mnist_elastic.py": (
        *(".batch(128)", ".batch(8)"),
        *("500 //", "60 //"),
        *("24-state.epoch", "2-state.epoch"),
    ),
    "tutorial/quickstart.py": (),
}
"""Horovod's for TensorFlow, and a tutorial's: what is replaced in them for few, small steps."""


def losses_printed(log: str) -> list[float]:
    """By the scripts for TensorFlow, in the order of the log."""
    return [float(found) for found in re.findall(r"[Ll]oss: (\d+\.\d+)", log)]


def through_resizes_and_a_loss(run: ResizedRun, finish: Callable[[], Status]) -> None:
    """Two ranks, three, two, one that is left after a SIGKILL, and two again; to the end.

    Args:
        run: of such a script, with these holds and this recovery.
        finish: ends every hold, and awaits the run's success.
    """
    run.at(4)
    run.resize(3)
    run.worlds(2, 3)
    run.go(4)
    run.at(8)
    run.resize(2)
    run.worlds(2, 3, 2)
    run.go(8)
    run.at(12)
    run.kill_rank(1)
    run.worlds(2, 3, 2, 1)
    run.go(12)
    run.at(16)
    run.worlds(2, 3, 2, 1, 2)

    status = finish()

    assert sizes_of(status) == [2, 3, 2, 1, 2, 0]
    assert len(run.events(EventKind.RANK_FAILED, EventKind.LOST)) == 1, run.report("one loss")
    assert run.events(EventKind.RESTARTED) == []
    assert sum("done" in note for note in run.notes()) == 2
