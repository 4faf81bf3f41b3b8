"""The adaptations installed in a real rank, which resets: unit tests of each are in ``tests/unit/runtime``."""

from __future__ import annotations

from pathlib import Path

from tests.unit.runtime.linked_ranks import SOON, linked_ranks

RANK = """
    import os
    import pathlib
    import time

    timeline = pathlib.Path(os.environ["HOROVOD_TIMELINE"])

    from elastic_runtime.engines.horovod import rank
    rank.install()
    rank.install()
    import horovod.torch as hvd
    import horovod.torch.elastic.state as elastic_state
    import torch
    from horovod.common.exceptions import HostsUpdatedInterrupt

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    said = []
    others = list(rank.while_waiting)

    class State(hvd.elastic.TorchState):
        def on_run_end(self):
            said.append(self.step)
            assert rank.while_waiting == [*others, self.on_wait]

        def on_wait(self):
            pass

    @hvd.elastic.run
    def train(state):
        assert weight.grad is None, "of the world before"
        weight.grad = torch.ones(1)
        hvd.allreduce(torch.ones(1))
        state.step += 1
        # Horovod writes it in a thread of its own, which drops what it has not written when the world ends.
        written = timeline.with_name(f"timeline.a.{state.step}.json")
        while "allreduce" not in written.read_text().lower():
            time.sleep(0.01)
        state.commit()
        if state.step < 3:
            raise HostsUpdatedInterrupt(False)

    hvd.init()
    state = State(optimizer=optimizer, scheduler=scheduler, step=0)
    train(state)
    assert state.scheduler is scheduler
    assert said == [3], said
    assert rank.while_waiting == others
    print("done", hvd.size())
"""


def test_installed_in_a_rank_that_resets_twice(tmp_path: Path) -> None:
    """Timeline per generation; connected, as its session hears; a word at the end of the run."""
    with linked_ranks(RANK, HOROVOD_TIMELINE=str(tmp_path / "timeline.json")) as ours:
        ours.open("a")
        output, errors = ours.output("a")
        assert output == "done 1\n", errors
        assert ours.processes["a"].returncode == 0
        assert [ours.worlds.get(timeout=SOON) for _ in range(3)] == [["a"]] * 3
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"timeline.a.{generation}.json" for generation in (1, 2, 3)]
    assert all("allreduce" in file.read_text().lower() for file in files)
