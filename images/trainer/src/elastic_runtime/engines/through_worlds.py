"""A training function's way through one world after another, the same with every engine that has elastic states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic_runtime.protocol.rank_link import shared_link
from elastic_runtime.script import kept_outputs
from elastic_runtime.script.own_time import measure
from elastic_runtime.script.standing import ledger


def through_worlds(
    state: Any,
    train: Callable[[], Any],
    interrupt: type[BaseException],
    is_loss: Callable[[Exception], bool],
    reset: Callable[[], bool | None],
    synced: Callable[[], None] = lambda: None,
) -> Any:
    """Train, from world to world until it is done.

    Args:
        state: elastic. If it has ``on_train_again``, that is called before each call of ``train`` but the first.
        train: called in each world anew, when the state is the same on all ranks.
        interrupt: raised by the state where the world changes; with a true ``skip_sync`` all have the same state.
        is_loss: whether an error means that a rank is lost, so that the last commit is gone back to.
        reset: into the next world. Ends the process of a rank that is in none. Returns whether all have the same state.
        synced: called when the state is the same on all ranks.

    Returns:
        What ``train`` has returned.
    """
    is_new = has_same = False
    while True:
        try:
            into_world(state, is_new=is_new, has_same=has_same)
            synced()
            if is_new and hasattr(state, "on_train_again"):
                state.on_train_again()
            return train()
        except interrupt as change:
            skips_sync = getattr(change, "skip_sync", False)
        except Exception as error:
            if not is_loss(error):
                raise
            state.restore()
            skips_sync = False
        has_same = bool(reset()) or skips_sync
        is_new = True


def into_world(state: Any, *, is_new: bool = True, has_same: bool = False) -> None:
    """Give a rank rank 0's state, once it is connected to the others. A collective.

    Args:
        state: elastic.
        is_new: it was in another world before.
        has_same: so have all others, already.
    """
    ledger().in_world()
    measure()
    if is_new:
        state.on_reset()
    kept_outputs.in_world()
    if not has_same:
        state.sync()
    elif hasattr(state, "on_same_state"):
        state.on_same_state()


def ending_with_its_word(state: Any, function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, and after it the word that a state may have for its end (``on_run_end``).

    Before that, all have to have ended their training. Should a rank be lost meanwhile, the others come back to it.
    """

    def train() -> Any:
        result = function()
        step = getattr(state, "step", None) if hasattr(state, "on_run_end") else None
        is_step = isinstance(step, int) and not isinstance(step, bool)
        shared_link().end_together(step if is_step else None, getattr(state, "on_wait", lambda: None))
        if hasattr(state, "on_run_end"):
            state.on_run_end()
        return result

    return train
