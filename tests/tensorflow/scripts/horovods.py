"""A script that knows nothing of this project, unchanged but for its data and its amounts, at the test's pace.

``horovods.py NAME FROM TO …``: NAME of a script beside this one, and changes for ``changed.py``. All ranks stand at the
first commit after so many batches as the pace says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from changed import run_changed
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


def main() -> None:
    pace.door()
    name, *changes = sys.argv[1:]
    TensorFlowKerasState.commit = paced_commit
    run_changed(Path(__file__).parent / name, changes, pace.folder)
    world = current_world()
    pace.note(done=True, rank=world.rank, size=world.size)


main()
