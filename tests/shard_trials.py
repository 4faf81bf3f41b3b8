"""What becomes of a run of ``counted.py``, whichever framework it is for, and how often each shard is in its state."""

from __future__ import annotations

from tests.local.harness import ScriptedRun


def loses_a_rank_shrinks_and_loses_all(run: ScriptedRun, worlds: int) -> None:
    """Three ranks that stand after step 5, of which one dies; two from step 10 on; and another session from step 15 on.

    Args:
        run: it holds at steps 10 and 15, too, and writes checkpoints.
        worlds: that it has had.
    """
    run.kill_rank(1)
    run.go(5)
    run.until_status(lambda status: len(status.history) > worlds and status.world_size == 3, "three ranks again")
    run.at(10)
    run.resize(2)
    run.trains(2)
    run.go(10)
    run.at(15)
    run.until_status(lambda status: status.checkpoint and status.checkpoint.step == 15, "a checkpoint of step 15")
    run.kill_ranks(0, 1)
    run.succeed()


def assert_each_is_counted_once(run: ScriptedRun, count: int) -> None:
    """Of so many shards, in the state at the end of each rank."""
    ends = [note["counts"] for note in run.notes() if "counts" in note]
    assert ends == [[1] * count] * len(ends)
    assert ends
