"""The attributes of a state that have no handler: plain values, and trees with tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.training import plain
from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.trees import is_tree, tensors_of


@dataclass(frozen=True, slots=True)
class Attributes:
    """Values of all attributes, sorted by how they are kept."""

    plain: Mapping[str, Any]
    """Encoded by :mod:`elastic_runtime.training.plain`; a copy, whatever happens to the values."""
    trees: Mapping[str, Tree]
    """Those with tensors in them; the values themselves."""

    def values(self) -> dict[str, Any]:
        """By name, the plain ones as fresh objects."""
        return {**{name: plain.decode(value) for name, value in self.plain.items()}, **self.trees}


def check_names(state: type, names: Iterable[str]) -> None:
    """Raises InvalidSettings for one that is taken."""
    for name in names:
        if hasattr(state, name) or name.startswith("_"):
            raise InvalidSettings(f"DurableState.{name}", "the name is taken by the state itself", "Choose another")


def sort_attributes(family: Family, values: Mapping[str, Any]) -> Attributes:
    """Sort values by how they can be kept.

    Raises:
        InvalidSettings: one can be kept neither way; or ``step``, which names and orders checkpoints, is no int.
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
    if "step" in values and type(values["step"]) is not int:
        raise InvalidSettings("DurableState.step", f"{values['step']!r} is not an int", "Give int(…)")
    return Attributes(encoded, trees)
