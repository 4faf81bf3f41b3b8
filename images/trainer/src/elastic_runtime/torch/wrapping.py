"""A stock state made durable in one line: what it keeps goes over to a :class:`DurableState`."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import CheckpointSpec
from elastic_runtime.torch.durable import DurableState


class CommitCountingState(DurableState):
    """State of a script that counts no steps: each commit is one."""

    @override
    def commit(self) -> None:
        self.step += 1
        super().commit()


def make_durable(state: Any, checkpoint: CheckpointSpec | str | None = None) -> DurableState:
    """Make a durable state that keeps what an ``hvd.elastic.TorchState`` keeps, with its reset callbacks.

    ::

        state = make_durable(hvd.elastic.TorchState(model, optimizer, epoch=1, batch=0))

    Use only the returned state from then on. It has the values of the newest checkpoint, such as ``state.epoch``, at
    once. If the given state has no ``step``, each commit counts as one.

    Args:
        state: A ``TorchState``. Derived classes are refused, because their own behavior would be lost.
        checkpoint: Where and how often to write, or only the URI. None: from the environment.

    Raises:
        InvalidSettings: the state is of another kind, or has values that cannot be kept, such as the script's own
            objects.
        OwnershipLost, StoreUnavailable: see :class:`DurableState`.
    """
    kind = type(state)
    if (kind.__module__, kind.__qualname__) != ("horovod.torch.elastic.state", "TorchState"):
        problem = f"{kind.__module__}.{kind.__qualname__} is not hvd.elastic.TorchState"
        raise InvalidSettings("make_durable", problem, "Give DurableState(model=…, optimizer=…, …) what it keeps")
    kept = {name: getattr(state, name) for name in (*state._handlers, *state._saved_state)}
    for name in {"checkpoint", "verify", "commit_every", "link", "clock"}.intersection(kept):
        raise InvalidSettings(f"make_durable.{name}", "the name is taken by DurableState itself", "Choose another")
    given = {name: value for name, value in kept.items() if name not in ("model", "optimizer") or value is not None}
    made = (DurableState if "step" in given else CommitCountingState)(checkpoint=checkpoint, **given)
    made.register_reset_callbacks(state._reset_callbacks)
    return made
