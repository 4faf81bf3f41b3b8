"""How what is given to a state is saved, restored and synced: by its state, or by a handler of the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.training import tensor_files
from elastic_runtime.training.checkpointing.parts import unkept
from elastic_runtime.training.family import Family, HasState, Tree
from elastic_runtime.training.state.collectives import broadcast_tree
from elastic_runtime.training.state.copies import Loan, RenewedCopy
from elastic_runtime.training.state.fingerprint import fingerprint, first_difference
from elastic_runtime.training.trees import copy_tree
from elastic_runtime.world import Handler, current_world


class StateDictHandler:
    """Keeps anything that has a state for its family. Commits reuse the memory of the commit before."""

    state: HasState

    def __init__(self, family: Family, value: object, name: str = "") -> None:
        self._family = family
        self.name = name or type(value).__qualname__
        self.checks = True
        """Whether to compare what the object has after a load with what it was given."""
        self.saved = RenewedCopy(family)
        self.set_value(value)

    def set_value(self, value: object) -> None:
        """Keep another object from now on."""
        state = self._family.state_of(value)
        assert state is not None, "only what has one gets this handler"
        self.value, self.state = value, state
        self.save()

    def save(self) -> None:
        """Copy the state, each tensor on its own device."""
        self.saved.renew(self.state.state_dict())

    def restore(self) -> None:
        """Back to the last :meth:`save`."""
        # A copy, because optimizers and schedulers go on working in what they are given.
        self.load(copy_tree(self._family, self.saved.newest))

    def load(self, tree: Tree) -> None:
        """Give the object a state, which it may keep.

        Raises:
            InvalidSettings: it does not take it, or does not give back the same.
        """
        (load_and_check if self.checks else load)(self._family, self.name, self.state, tree)

    def sync(self) -> None:
        """Take rank 0's state; a collective."""
        self.load(broadcast_tree(current_world(), self._family, self.state.state_dict()))
        self.save()

    def lend(self) -> Loan:
        """The state of the last :meth:`save`."""
        return self.saved.lend()


class ForeignHandler:
    """A handler of the engine's or the script's, with a copy of the saved state for durable checkpoints."""

    def __init__(self, family: Family, inner: Handler) -> None:
        self._family = family
        self.value = inner.value
        self._inner = inner
        self.saved = RenewedCopy(family)
        self._copy()

    @property
    def state(self) -> HasState | None:
        """Return the state of the object, if it has one."""
        return self._family.state_of(self.value)

    def save(self) -> None:
        """Save with the script's own handler, and keep a copy of the state for checkpoints."""
        self._inner.save()
        self._copy()

    def restore(self) -> None:
        """Restore the last :meth:`save` with the script's own handler."""
        self._inner.restore()

    def sync(self) -> None:
        """Take rank 0's state over with the script's own handler; a collective."""
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
        if (state := self.state) is not None:
            self.saved.renew(state.state_dict())


def handler_of(family: Family, value: object, name: str = "") -> StateDictHandler | ForeignHandler | None:
    """The handler for a value, or None for a plain one."""
    if (inner := current_world().handler(value)) is not None:
        return ForeignHandler(family, inner)
    return None if family.state_of(value) is None else StateDictHandler(family, value, name)


def check_storable(
    family: Family, handlers: Mapping[str, StateDictHandler | ForeignHandler], *, durable: bool = True
) -> None:
    """Check that what can be written, or sent, can be read again: that must not come to light when it is needed.

    Args:
        family: whose tensors they have.
        handlers: by the name of the attribute.
        durable: whether there is a checkpoint store; without one, other handlers send what they keep themselves.

    Raises:
        InvalidSettings: of the attribute.
    """
    for name, handler in handlers.items():
        if isinstance(handler, ForeignHandler) and not durable:
            continue
        if handler.state is None:
            raise unkept(name, "it has no state_dict")
        try:
            tensor_files.check(family, handler.saved.newest)
        except Exception as error:  # whatever a framework makes of the script's own objects
            raise unkept(name, f"its state cannot be kept: {error}") from error


def load(family: Family, name: str, state: HasState, tree: Tree) -> None:
    """Give an object a tree, which it may keep.

    Args:
        family: whose tensors it has.
        name: of the entry, for the error.
        state: the object.
        tree: what its ``state_dict`` has given, here or on another rank.

    Raises:
        InvalidSettings: it does not take it.
    """
    try:
        family.load(state, tree)
    except Exception as error:  # the script's own code too
        raise _refused(name, f"its load_state_dict fails: {printable(error)}") from error


def load_and_check(family: Family, name: str, state: HasState, tree: Tree) -> None:
    """The same, and compare what it has then with the tree.

    Raises:
        InvalidSettings: it does not take it, or does not give back the same.
    """
    given = fingerprint(family, tree)  # Before: an object may alter what it is given.
    load(family, name, state, tree)
    if entry := first_difference(given, fingerprint(family, state.state_dict())):
        raise _refused(name, f"its state_dict does not give back {printable(entry)} as load_state_dict was given it")


def _refused(name: str, problem: str) -> InvalidSettings:
    remedy = "Make it the same way on every rank and in each try, and have load_state_dict undo state_dict"
    return InvalidSettings(f"DurableState.{name}", problem, remedy)
