"""Values of a state, by name: objects with a ``state_dict`` by their handlers, all others by value."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.checkpoint.manifest import LONGEST_PART, MOST_STEPS, PART
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.logs import script_logger
from elastic_runtime.printable import printable
from elastic_runtime.training import plain
from elastic_runtime.training.checkpointing.parts import unkept
from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.state.collectives import broadcast_tree
from elastic_runtime.training.state.copies import Loan, RenewedCopy, host_memory
from elastic_runtime.training.state.fingerprint import fingerprint
from elastic_runtime.training.state.handlers import StateDictHandler, handler_of, load
from elastic_runtime.training.state.verification import compare
from elastic_runtime.training.tensor_files import SUFFIX
from elastic_runtime.training.trees import copy_tree, is_tree, outline, tensors_of
from elastic_runtime.world import World

_log = script_logger(__name__)


class StateValues:
    """The values and their last save.

    Args:
        family: whose tensors they have.
        owner: has each value as an attribute, which may be set to another one.
        values: by name.
        checks: whether what has been loaded is compared with what it should be, and ranks after a sync.

    Raises:
        InvalidSettings: one cannot be kept.
    """

    def __init__(self, family: Family, owner: object, values: Mapping[str, Any], *, checks: bool = True) -> None:
        self._family, self._owner, self._checks = family, owner, checks
        found = {name: handler_of(family, value, name) for name, value in values.items()}
        self.handlers = {name: handler for name, handler in found.items() if handler is not None}
        for handler in self._ours().values():
            handler.checks = checks
        self._names = tuple(name for name, handler in found.items() if handler is None)
        self.plain: Mapping[str, Any] = {}
        """Plain values of the last save, encoded."""
        self.said: Mapping[str, Any] = {}
        """What other ranks take over with rank 0's state at a sync; in no checkpoint."""
        self._trees = RenewedCopy(family)
        self._save_attributes()

    @property
    def part_names(self) -> tuple[str, ...]:
        """Return the names of those that are a part of a checkpoint each."""
        return (*self.handlers, *self._live().trees)

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

    def sync(self, world: World, has_commits: bool, *, trusts: bool = False) -> bool:
        """Take rank 0's, which itself does not change; a collective. Returns rank 0's ``has_commits``.

        Args:
            world: the present one.
            has_commits: whether what this rank has was committed.
            trusts: what is replicated need not be sent to ranks that the engine knows to have it.

        Raises:
            InvalidSettings: on a rank that cannot take it.
            StatesDiffer: on all ranks, where it is not the same on all of them afterwards.
        """
        ours = self._ours()
        for name, handler in self.handlers.items():
            if name not in ours:
                handler.sync()
        mine = self._tree()
        replicated = self.replicated if trusts else tuple
        said = {"has_commits": has_commits, "said": self.said}
        try:
            synced = broadcast_tree(world, self._family, {**mine, **said}, replicated)
        except plain.NotPlain as error:
            raise unkept(self._unkept_of(mine["states"]), f"its state cannot be sent: {error}") from error
        if world.rank != 0:
            for name, handler in ours.items():
                if not self._is_kept(synced["states"][name], mine["states"][name]):
                    load(self._family, name, handler.state, synced["states"][name])
            self._set(Attributes(synced["plain"], synced["trees"]))
            self.said = synced["said"]
            mine = self._tree() if self._checks else {}
        if self._checks and world.size > 1:
            compare(world, self._family, fingerprint(self._family, flat_tree(mine)), "After a sync")
        return bool(synced["has_commits"])

    def _unkept_of(self, states: Mapping[str, Tree]) -> str:
        for name, state in states.items():
            try:
                outline(self._family, state)
            except plain.NotPlain:
                return name
        return "…"

    def _ours(self) -> dict[str, StateDictHandler]:
        return {name: handler for name, handler in self.handlers.items() if isinstance(handler, StateDictHandler)}

    def _tree(self) -> dict[str, Tree]:
        """All that is sent at a sync, sharing its memory."""
        live = self._live()
        states = {name: handler.state.state_dict() for name, handler in self._ours().items()}
        return {"states": states, "plain": live.plain, "trees": live.trees}

    def replicated(self) -> Tree:
        """Values that are equal on all ranks at each commit: the parameters of models, optimizers, and the step."""
        trained = {name: self._family.trained(handler.value) for name, handler in self._ours().items()}
        return {**{name: tree for name, tree in trained.items() if tree is not None}, "step": self.step}

    def _is_kept(self, synced: Tree, mine: Tree) -> bool:
        """Whether a sync has left all of its tensors as they are."""
        tensors, before = tensors_of(self._family, synced), tensors_of(self._family, mine)
        return bool(tensors) and len(tensors) == len(before) and all(map(operator.is_, tensors, before))

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
                self._load(name, values[name])
            except Exception as error:  # the script's own code too, given what it did not write
                problem = f"{uri} does not fit the {name} of this script: {error}"
                raise InvalidSettings("checkpoint", problem, "Start afresh, or give the run another URI") from error

    def copied(self) -> dict[str, Any]:
        """A copy of all, for :meth:`put_back`."""
        live = self._live()
        states = {name: handler.state.state_dict() for name, handler in self.handlers.items() if handler.state}
        return {"plain": live.plain, **copy_tree(self._family, {"states": states, "trees": live.trees})}

    def put_back(self, values: Mapping[str, Any]) -> None:
        """Restore the values as they were when they were copied."""
        trees = copy_tree(self._family, values["trees"])
        for name, state in copy_tree(self._family, values["states"]).items():
            self._load(name, state)
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

    def _load(self, name: str, tree: Tree) -> None:
        handler = self.handlers[name]
        if isinstance(handler, StateDictHandler):
            handler.load(tree)
        elif handler.state is not None:
            load(self._family, name, handler.state, tree)

    def _live(self) -> Attributes:
        return sort_attributes(self._family, {name: getattr(self._owner, name) for name in self._names})

    def _save_attributes(self) -> None:
        live = self._live()
        self.plain = live.plain
        self._trees.renew(live.trees)

    def _set(self, attributes: Attributes) -> None:
        values = attributes.values()
        for name, tree in attributes.trees.items():
            values[name] = self._family.put(tree, getattr(self._owner, name, None))
        for name, value in values.items():
            setattr(self._owner, name, value)


def flat_tree(tree: Mapping[str, Tree]) -> Tree:
    """With attributes under their own names, for the errors of a comparison."""
    return {**tree.get("states", {}), **tree.get("plain", {}), **tree.get("trees", {})}


@dataclass(frozen=True, slots=True)
class Attributes:
    """Values of all attributes, sorted by how they are kept."""

    plain: Mapping[str, Any]
    """Encoded by :mod:`elastic_runtime.training.plain`; a copy, whatever happens to the values."""
    trees: Mapping[str, Tree]
    """Those with tensors in them; the values themselves."""

    def values(self) -> dict[str, Any]:
        """Return the values by attribute. Plain values are new objects."""
        return {**{name: plain.decode(value) for name, value in self.plain.items()}, **self.trees}


def check_names(state: type, names: Iterable[str]) -> None:
    """Raises InvalidSettings for one that is taken."""
    for name in names:
        if hasattr(state, name) or name.startswith("_"):
            raise InvalidSettings(f"DurableState.{name}", "the name is taken by the state itself", "Choose another")


def check_parts(names: Iterable[str]) -> None:
    """Raises InvalidSettings for a name that no part of a checkpoint can have."""
    for name in names:
        if PART.fullmatch(name + SUFFIX) is None:
            problem = "a checkpoint cannot have a part of that name"
            remedy = f"Use letters, digits and _, and at most {LONGEST_PART - len(SUFFIX)} characters"
            raise InvalidSettings(f"DurableState.{printable(name, 200)}", problem, remedy)


def sort_attributes(family: Family, values: Mapping[str, Any]) -> Attributes:
    """Sort values by how they can be kept.

    Raises:
        InvalidSettings: one can be kept neither way; or ``step``, which names and orders checkpoints, is no int of a
            size that a checkpoint's name can have.
    """
    encoded: dict[str, Any] = {}
    trees: dict[str, Tree] = {}
    for name, value in values.items():
        try:
            encoded[name] = plain.encode(value)
        except plain.NotPlain as error:
            found: object = error
            if is_tree(family, value):
                found = next(filter(None, map(family.unfit, tensors_of(family, value))), None)
            if found:
                raise InvalidSettings(
                    f"DurableState.{name}",
                    f"a {type(value).__name__} cannot be kept, because of {found} in it",
                    "Give numbers, strings, lists, tuples, dicts, tensors, or what has state_dict and load_state_dict",
                ) from error
            trees[name] = value
    if "step" in values:
        _check_step(values["step"])
    return Attributes(encoded, trees)


def _check_step(step: object) -> None:
    if type(step) is not int:
        raise InvalidSettings("DurableState.step", f"{step!r} is not an int", "Give int(…)")
    if step > MOST_STEPS:
        check_stored_step(step)


def check_stored_step(step: int) -> None:
    """Raises InvalidSettings for one that no checkpoint can have."""
    if not 0 <= step <= MOST_STEPS:
        found = step if abs(step) <= MOST_STEPS else "a number with more digits"
        problem = f"{found} is not from 0 to {MOST_STEPS}, and no checkpoint of it could be found again"
        raise InvalidSettings("DurableState.step", problem, "Count optimizer steps, from 0")
