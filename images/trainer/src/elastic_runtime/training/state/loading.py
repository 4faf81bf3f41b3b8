"""An object of a state gets a state back, and has exactly that afterwards."""

from __future__ import annotations

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.training.family import Family, HasState, Tree
from elastic_runtime.training.state.fingerprint import fingerprint, first_difference


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
