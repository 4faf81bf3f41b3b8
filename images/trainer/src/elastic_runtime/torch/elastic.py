"""The way of a torch script from one world to the next, whichever engine the run has.

::

    from elastic_runtime.torch import DurableState, GlobalBatches, elastic

    state = DurableState(model=model, optimizer=optimizer)
    batches = GlobalBatches(dataset, size=256, seed=0, state=state)

    @elastic.run
    def train(state):
        parallel = DistributedDataParallel(model)
        for batch in batches:
            ...
            state.commit()

    train(state)

With the engine ``torch`` ranks are in a process group of torch.distributed; build what needs none before ``run``, so
that a newcomer has done so before anybody waits for it. With the engine ``horovod`` :func:`init` is ``hvd.init()``, and
:func:`run` is ``hvd.elastic.run``. A script that somebody starts by hand is alone, or in torchrun's world.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar, overload

from elastic_runtime.world import WORLD, current_world

os.environ.setdefault(WORLD, "elastic_runtime.engines.torch.world:WORLD")
Result = TypeVar("Result")


def init() -> None:
    """Join a world now, for scripts that need their rank before ``run``, which joins one otherwise.

    A rank that will be in no world ends, with success.
    """
    current_world().enter()


@overload
def run(function: Callable[..., Result]) -> Callable[..., Result]: ...
@overload
def run(*, in_place: bool = ...) -> Callable[[Callable[..., Result]], Callable[..., Result]]: ...
def run(
    function: Callable[..., Result] | None = None, *, in_place: bool = False
) -> Callable[..., Result] | Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate the training function, which takes the state and any further arguments.

    The function is called again in each world, once the state is the same on all ranks. It is left at a commit where
    the world changes, or anywhere if a rank is lost. Then the state returns to the last commit.

    Args:
        function: The training function.
        in_place: Let :meth:`DurableState.commit` return in the next world at planned changes, so that the function
            continues with its next step. It is called again after losses only. New ranks run its beginning at any
            commit of the others. So neither there nor after the loop's commit may it run collectives, other than making
            ``DistributedDataParallel``. ``GlobalBatches`` and ``MicroBatches`` continue with the shares of the next
            world; read everything else that depends on rank or world size at each step. No effect with the engine
            ``horovod``.

    Returns:
        The function that trains to the end, in as many worlds as it takes.
    """

    def elastic(trained: Callable[..., Result]) -> Callable[..., Result]:
        wrapped: Callable[..., Result] = current_world().run(trained, in_place=in_place)
        return wrapped

    return elastic if function is None else elastic(function)
