"""How what is given to a state is saved, restored and synced.

Corrects what is wrong with Horovod 0.28.1's own handlers:

* ``broadcast_optimizer_state`` has a rank whose optimizer has no state yet take a step with zero gradients. With weight
  decay that moves its parameters, after the model was broadcast: the newcomer differs from then on. Here the
  ``state_dict`` of rank 0's optimizer is broadcast and loaded.
* Restoring an optimizer makes its state share memory with the saved one, so that the next steps alter the saved one.
* A learning-rate scheduler has no handler, is pickled with a copy of its optimizer, and from then on sets the rate of
  that copy (horovod/horovod#1281).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.torch.checkpointing.archives import read_archive
from elastic_runtime.torch.state.collectives import broadcast_tree
from elastic_runtime.torch.state.copies import Loan, RenewedCopy
from elastic_runtime.torch.state.trees import copy_tree, dump
from elastic_runtime.world import Handler, current_world


@runtime_checkable
class HasState(Protocol):
    """Modules, optimizers, learning-rate schedulers, gradient scalers, samplers and the like."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Undo :meth:`state_dict`."""


class StateDictHandler:
    """Keeps anything with a ``state_dict``. Commits reuse the memory of the commit before."""

    def __init__(self, value: HasState) -> None:
        self.saved = RenewedCopy()
        self.set_value(value)

    def set_value(self, value: HasState) -> None:
        """Keep another object from now on."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Copy the state, each tensor on its own device."""
        self.saved.renew(self.value.state_dict())

    def restore(self) -> None:
        """Back to the last :meth:`save`."""
        # A copy, because optimizers and schedulers go on working in what they are given.
        self.value.load_state_dict(copy_tree(self.saved.newest))

    def sync(self) -> None:
        """Take rank 0's state; a collective."""
        self.value.load_state_dict(broadcast_tree(current_world(), self.value.state_dict()))
        self.save()

    def lend(self) -> Loan:
        """The state of the last :meth:`save`."""
        return self.saved.lend()


class ForeignHandler:
    """A handler of the engine's or the script's, with a copy of the saved state for durable checkpoints."""

    def __init__(self, inner: Handler) -> None:
        self.value = inner.value
        self._inner = inner
        self.saved = RenewedCopy()
        self._copy()

    def save(self) -> None:
        """Have the handler save."""
        self._inner.save()
        self._copy()

    def restore(self) -> None:
        """Have the handler restore."""
        self._inner.restore()

    def sync(self) -> None:
        """Have the handler sync."""
        self._inner.sync()

    def set_value(self, value: Any) -> None:
        """Hand another object to the handler."""
        self.value = value
        self._inner.set_value(value)
        self._copy()

    def lend(self) -> Loan:
        """The state of the last :meth:`save`."""
        return self.saved.lend()

    def _copy(self) -> None:
        if isinstance(self.value, HasState):
            self.saved.renew(self.value.state_dict())


def handler_of(value: object) -> StateDictHandler | ForeignHandler | None:
    """The handler for a value, or None for a plain one."""
    if (inner := current_world().handler(value)) is not None:
        return ForeignHandler(inner)
    return StateDictHandler(value) if isinstance(value, HasState) else None


def check_storable(handlers: Mapping[str, StateDictHandler | ForeignHandler]) -> None:
    """A state that could be written and not read again must not come to light when it is needed.

    Raises:
        InvalidSettings: of the attribute.
    """
    for name, handler in handlers.items():
        remedy = "Have its state_dict give tensors and plain values alone, or keep it out of the state"
        if not isinstance(handler.value, HasState):
            raise InvalidSettings(f"DurableState.{name}", "it has no state_dict", remedy)
        try:
            data = dump(handler.saved.newest)
            read_archive(io.BytesIO(data), len(data))
        except (InvalidDocument, pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidSettings(f"DurableState.{name}", f"its state cannot be kept: {error}", remedy) from error
