"""Warnings of a run whose script does not use what its engine gives it as it is meant."""

from __future__ import annotations

LOCAL_RANK = (
    "several ranks of a host have the local rank 0, since each sees its own devices alone. That is right for choosing "
    "a device, but what the script does `if local_rank == 0`, as to write a file, each of them does: ask for rank 0 "
    "instead"
)
"""A warning of the run."""
UNJOINED_ELSEWHERE = (
    "the script trains, but is in no world of this run: each rank trains a model of its own. Call what makes the "
    "engine's world before the first step"
)
STATIC = (
    "the script trains without an elastic state, so no rank can join its world: the run stays at the size that it has, "
    "and workers beyond it are given back. A lost worker, or a smaller size, starts the script again, from the "
    "beginning or from its own checkpoint. Pass restart=Restart() to have it started again at each size, or train in a "
    "function that is decorated with @hvd.elastic.run"
)
"""A warning of the run."""
AGAIN = (
    "the script trains once more after its training function has returned on all ranks: from now on the run acts on no "
    "other size and on no notice, and ends if a rank is lost. Train in one function, which the state leads through all "
    "phases"
)
"""A warning of the run."""
UNJOINED = {
    "torchrun": (
        "the script trains without a process group: each rank trains a model of its own, so more ranks change nothing, "
        "and report() is ignored. Call torch.distributed.init_process_group() before the first step. Lightning's "
        'Trainer needs devices=, num_nodes= and strategy="ddp". If ranks are to train apart, ignore this'
    ),
    "torch": (
        "the script trains outside of elastic.run: each rank trains a model of its own, the run stays in `starting`, "
        "and report() is ignored. Decorate the training function with @elastic.run and call it with the state. If the "
        "script is written for torchrun, pass restart=Restart()"
    ),
    "horovod": (
        "the script trains without hvd.init(): each rank trains a model of its own, the run stays in `starting`, and "
        "report() is ignored. Call hvd.init(), and train in a function that is decorated with @hvd.elastic.run. If the "
        "script is written for horovodrun without elastic options, or for one process, pass restart=Restart()"
    ),
    "horovodrun": (
        "the script trains without hvd.init(): each rank trains a model of its own, so more ranks change nothing, and "
        "report() is ignored. Call hvd.init() before the first step. If ranks are to train apart, ignore this"
    ),
}
"""A warning of the run, by engine: see :mod:`elastic_runtime.script.unjoined`."""
