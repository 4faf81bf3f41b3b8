"""One rank of the language model's training with TorchFT: a replica group, as in its ``train_ddp.py``.

Runs in an environment of its own, without ``elastic_runtime``. Each group has the same part of each batch for the whole
run. While a group is away, nobody trains on its part. Records as in ``training.py``. A step that TorchFT does not
commit is noted in ``PID.wasted``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from torchft import Manager, Optimizer, ProcessGroupGloo

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.evidence.language import (  # the path above has to be there first
    WEIGHTS,
    Lesson,
    build,
    learn,
    prepare,
    read_text,
    save_weights,
    share,
    summed,
)
from benchmarks.torch_training import begin

GROUPS = 2
START = 120.0
"""Seconds for all groups to be there: else the first would train alone."""


def main() -> None:
    """Train to the last step."""
    with begin(__doc__) as (records, stop, given):
        logging.basicConfig(level=logging.WARNING)
        lesson, group = Lesson.parse(given), int(os.environ["REPLICA_GROUP_ID"])
        prepare()
        model, inner = build(lesson)

        def load(state: dict[str, Any]) -> None:
            model.load_state_dict(state["model"])
            inner.load_state_dict(state["optimizer"])

        manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
            load_state_dict=load,
            state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
            min_replica_size=1,
            replica_id=f"replica_{group}",
            timeout=timedelta(seconds=30),
            hostname="127.0.0.1",
            init_sync=False,  # All begin with the same weights.
        )
        _await_all(stop.parent, group)
        optimizer = Optimizer(manager, inner)
        text, own = read_text(), share(lesson, group, GROUPS)
        wasted = Path(records.name).with_suffix(".wasted")
        while (before := manager.current_step()) < lesson.steps:
            optimizer.zero_grad()
            mean = summed(model, text, lesson, before + 1, own) / len(own)
            manager.allreduce(mean).wait()
            loss = learn(model, mean)
            optimizer.step()
            rank = manager.participating_rank()
            if manager.current_step() == before:
                with wasted.open("a") as notes:
                    notes.write(f"{before + 1}\n")
            elif rank is not None:
                at = {"step": manager.current_step(), "rank": rank, "size": manager.num_participants()}
                records.write(json.dumps({"t": time.time_ns(), **at, "entry": 1, "loss": loss}) + "\n")
        if manager.participating_rank() == 0:
            save_weights(model, stop.with_name(WEIGHTS))
        manager.shutdown(wait=False)


def _await_all(folder: Path, group: int) -> None:
    """Go on once every group has started."""
    (folder / f"started-{group}").touch()
    deadline = time.monotonic() + START
    while len(list(folder.glob("started-*"))) < GROUPS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all groups have started within {START:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
