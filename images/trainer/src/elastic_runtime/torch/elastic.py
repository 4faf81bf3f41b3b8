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
    """Be in a world from here on, as ``run`` sees to otherwise: for scripts that need their rank before.

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
    """A decorator for the training function, which takes the state, and whatever else it is called with.

    The function is called in each world anew, when the state is the same on all ranks. It is left at a commit where the
    world changes, and wherever it is when a rank is lost; then the state goes back to the last commit.

    Args:
        function: it.
        in_place: have :meth:`DurableState.commit` return in the next world where workers come or go as planned, so that
            the function goes on with its next step; it is called anew after losses alone. Only newcomers go through its
            beginning then, at any commit of the others, so neither there nor behind the loop's commit it may have
            collectives of its own, besides the making of ``DistributedDataParallel``. ``GlobalBatches`` and
            ``MicroBatches`` go on with the shares of the next world; what else depends on rank or world size has to be
            asked for at each step. With the engine ``horovod`` it has no effect.

    Returns:
        The function that trains to the end, in as many worlds as it takes.
    """

    def elastic(trained: Callable[..., Result]) -> Callable[..., Result]:
        wrapped: Callable[..., Result] = current_world().run(trained, in_place=in_place)
        return wrapped

    return elastic if function is None else elastic(function)
