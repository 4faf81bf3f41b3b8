"""What a state keeps, by name: objects with a ``state_dict`` by their handlers, all else by value."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training.family import Family
from elastic_runtime.training.state.attributes import Attributes, sort_attributes
from elastic_runtime.training.state.collectives import broadcast_tree
from elastic_runtime.training.state.copies import Loan, RenewedCopy, host_memory
from elastic_runtime.training.state.handlers import StateDictHandler, handler_of
from elastic_runtime.training.trees import copy_tree
from elastic_runtime.world import World

_log = logging.getLogger(__name__)


class StateValues:
    """The values and their last save.

    Args:
        family: whose tensors they have.
        owner: has each value as an attribute, which may be set to another one.
        values: by name.

    Raises:
        InvalidSettings: one cannot be kept.
    """

    def __init__(self, family: Family, owner: object, values: Mapping[str, Any]) -> None:
        self._family, self._owner = family, owner
        found = {name: handler_of(family, value) for name, value in values.items()}
        self.handlers = {name: handler for name, handler in found.items() if handler is not None}
        self._names = tuple(name for name, handler in found.items() if handler is None)
        self.plain: Mapping[str, Any] = {}
        """Plain values of the last save, encoded."""
        self._trees = RenewedCopy(family)
        self._save_attributes()

    @property
    def step(self) -> int:
        """The global step of the last save."""
        return int(self.plain["step"])

    def save(self) -> None:
        """Copy everything, each tensor on its own device, into the memory of the save before."""
        for handler in self.handlers.values():
            handler.save()
        self._save_attributes()

    def restore(self) -> None:
        """Back to the last save."""
        for handler in self.handlers.values():
            handler.restore()
        self._set(Attributes(self.plain, copy_tree(self._family, self._trees.newest)))

    def sync(self, world: World, has_commits: bool) -> bool:
        """Take rank 0's, which itself does not change; a collective. Returns rank 0's ``has_commits``."""
        ours = {name: handler for name, handler in self.handlers.items() if isinstance(handler, StateDictHandler)}
        for name, handler in self.handlers.items():
            if name not in ours:
                handler.sync()
        live = self._live()
        states = {name: handler.state.state_dict() for name, handler in ours.items()}
        synced = broadcast_tree(
            world,
            self._family,
            {"states": states, "plain": live.plain, "trees": live.trees, "has_commits": has_commits},
        )
        if world.rank != 0:
            for name, handler in ours.items():
                handler.state.load_state_dict(synced["states"][name])
            self._set(Attributes(synced["plain"], synced["trees"]))
        return bool(synced["has_commits"])

    def take(self, values: Mapping[str, Any], uri: str) -> None:
        """Take what a checkpoint holds.

        Raises:
            InvalidSettings: it does not fit.
        """
        names = {*self.handlers, *self._names}
        for name in names.symmetric_difference(values):
            _log.warning("%s is only in %s and is left as it is", name, "the script" if name in names else uri)
        for name in names.intersection(values):
            if name not in self.handlers:
                setattr(self._owner, name, values[name])
                continue
            try:
                state = self.handlers[name].state
                assert state is not None, "checked before any checkpoint is read"
                state.load_state_dict(values[name])
            except Exception as error:  # the script's own code too, given what it did not write
                problem = f"{uri} does not fit the {name} of this script: {error}"
                raise InvalidSettings("checkpoint", problem, "Start afresh, or give the run another URI") from error

    def copied(self) -> dict[str, Any]:
        """A copy of all, for :meth:`put_back`."""
        live = self._live()
        states = {name: handler.state.state_dict() for name, handler in self.handlers.items() if handler.state}
        return {"plain": live.plain, **copy_tree(self._family, {"states": states, "trees": live.trees})}

    def put_back(self, values: Mapping[str, Any]) -> None:
        """As they were when they were copied."""
        trees = copy_tree(self._family, values["trees"])
        for name, state in copy_tree(self._family, values["states"]).items():
            if state_of := self.handlers[name].state:
                state_of.load_state_dict(state)
        self._set(Attributes(values["plain"], trees))

    def lend(self) -> Loan:
        """Trees of the last save by name, in host memory."""
        loans = {name: handler.lend() for name, handler in self.handlers.items()}
        on_host = [host_memory(self._family, loan) for loan in (*loans.values(), self._trees.lend())]
        *states, attributes = (loan.tree for loan in on_host)

        def give_back() -> None:
            for loan in on_host:
                loan.give_back()

        def wait() -> None:
            for loan in on_host:
                loan.wait()

        return Loan({**dict(zip(loans, states, strict=True)), **attributes}, give_back, wait)

    def reserve(self) -> None:
        """Have memory for saves while the last one is lent; from any thread."""
        for copy in (*(handler.saved for handler in self.handlers.values()), self._trees):
            copy.reserve()

    def _live(self) -> Attributes:
        return sort_attributes(self._family, {name: getattr(self._owner, name) for name in self._names})

    def _save_attributes(self) -> None:
        live = self._live()
        self.plain = live.plain
        self._trees.renew(live.trees)

    def _set(self, attributes: Attributes) -> None:
        for name, value in attributes.values().items():
            setattr(self._owner, name, value)
