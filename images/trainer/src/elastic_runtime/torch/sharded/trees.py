"""Trees with tensors that are sharded, as trees of what this rank has of them.

The parts are those that torch's own sharded checkpoints know (``DTensor.__create_chunk_list__``); a tensor that is not
sharded is one part on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, empty

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.torch.family import TORCH
from elastic_runtime.torch.optimizers import load_optimizer
from elastic_runtime.torch.sharded.boxes import Box, Leaf, whole
from elastic_runtime.training.family import Tree
from elastic_runtime.training.trees import map_tensors, tensors_of

AS_ITS_PARAMETER = "="
"""How a tensor of an optimizer is placed whose writer had it whole: as its parameter is, where it has its shape."""
REMEDY = "Shard with fully_shard alone, over one mesh of ranks, or over one of replicas and ranks"


@dataclass(frozen=True, slots=True)
class Outline:
    """What a tree is, without what is in its tensors; the same on every rank."""

    tree: Tree
    """With a tensor of the device ``meta``, of the whole one's shape, in the place of each."""
    placements: tuple[str, ...]
    """Of each tensor: ``S0`` for sharded in dimension 0, ``R`` for replicated, one of both for each dimension of the
    mesh, and a comma between; nothing for a tensor that is none of the mesh."""


def kept_tree(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Tree]:
    """State dicts, tensors sharing their memory."""
    states: dict[str, Tree] = {"model": model.state_dict()}
    if optimizer is not None:
        state = optimizer.state_dict()
        # Entries are in the order in which parameters took their first step.
        states["optimizer"] = {**state, "state": dict(sorted(state["state"].items()))}
    return states


def shared_buffers(model: torch.nn.Module) -> dict[str, Tensor]:
    """Buffers that each rank has whole, by name; running statistics differ between ranks."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict().items()
    return {
        name: value
        for name, value in state
        if isinstance(value, Tensor) and name not in parameters and not isinstance(value, DTensor)
    }


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """What this rank has of it, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def leaf_of(tensor: Tensor) -> Leaf:
    """Return shape, box and type of a tensor.

    Raises:
        InvalidSettings: it is sharded in a way that is not known here.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not isinstance(tensor, DTensor):
        return Leaf(tuple(tensor.shape), whole(tensor.shape), dtype)
    if any(type(each) not in (Shard, Replicate) for each in tensor.placements):
        raise InvalidSettings("ShardedState.build", f"a tensor is placed as {tensor.placements}", REMEDY)
    [chunk] = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    return Leaf(tuple(tensor.shape), Box(tuple(chunk.offsets), tuple(chunk.sizes)), dtype)


def outline(tree: Tree) -> Outline:
    """Return the outline of a tree."""
    tensors = tensors_of(TORCH, tree)
    return Outline(map_tensors(TORCH, _like, tree), tuple(map(_placements, tensors)))


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _placements(tensor: Tensor) -> str:
    if not isinstance(tensor, DTensor):
        return ""
    return ",".join(f"S{each.dim}" if isinstance(each, Shard) else "R" for each in tensor.placements)


def _placement(text: str, dimensions: int) -> Placement:
    if text == "R":
        return Replicate()
    if re.fullmatch("S[0-9]{1,2}", text) and int(text[1:]) < dimensions:
        return Shard(int(text[1:]))
    raise InvalidDocument(f"{printable(text[:20])!r} is not a placement of a tensor of {dimensions} dimensions")


class Targets:
    """Tensors of this rank's model and optimizer, to receive a state that somebody else has had.

    Args:
        model: sharded in the present world.
        optimizer: of its parameters; None: none is kept.
        wanted: what is received.
        demands_optimizer: whether the optimizer has to get a state, since it may have another one's.

    Raises:
        InvalidSettings: it does not fit.
        InvalidDocument: it is no outline of a model's and an optimizer's state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        wanted: Outline,
        *,
        demands_optimizer: bool = False,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        placements = iter(wanted.placements)
        if not isinstance(wanted.tree, dict) or not isinstance(wanted.tree.get("model"), dict):
            raise InvalidDocument("it has no state of a model")
        if len(wanted.placements) != len(tensors_of(TORCH, wanted.tree)):
            raise InvalidDocument("it does not say of each tensor how it is placed")
        self.tree: dict[str, Tree] = {"model": self._of_model(wanted.tree["model"], placements)}
        if "optimizer" in wanted.tree:
            if optimizer is None:
                raise _not_fitting("optimizer", "there is none")
            self.tree["optimizer"] = self._of_optimizer(optimizer, wanted.tree["optimizer"], placements)
        elif demands_optimizer and optimizer is not None:
            raise _not_fitting("optimizer", "it has none, and another one's was loaded before")
        self.tensors: list[Tensor] = tensors_of(TORCH, self.tree)

    def _of_model(self, wanted: Any, placements: Any) -> Tree:
        mine = self._model.state_dict()
        if not all(type(name) is str for name in wanted):
            raise InvalidDocument("it has no state of a model")
        if missing := sorted(set(mine) ^ set(wanted)):
            raise _not_fitting("model", f"{printable(missing[0])} is only in one of both")
        tree = {}
        for name, value in wanted.items():
            if not isinstance(value, Tensor):
                tree[name] = map_tensors(TORCH, lambda tensor: _fresh(tensor, None, next(placements)), value)
            else:
                next(placements)
                own = mine[name]
                if not isinstance(own, Tensor) or own.shape != value.shape or own.dtype != value.dtype:
                    raise _not_fitting("model", f"{printable(name)} is another tensor")
                tree[name] = own
        return tree

    def _of_optimizer(self, optimizer: torch.optim.Optimizer, wanted: Any, placements: Any) -> Tree:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if not isinstance(wanted, dict) or not isinstance(wanted.get("state"), dict):
            raise InvalidDocument("it has no state of an optimizer")
        state = {}
        for number, values in wanted["state"].items():
            if type(number) is not int or not 0 <= number < len(parameters):
                raise _not_fitting("optimizer", "it has the state of another number of parameters")
            fresh = lambda tensor, parameter=parameters[number]: _fresh(tensor, parameter, next(placements))  # noqa: E731
            state[number] = map_tensors(TORCH, fresh, values)
        rest = {name: value for name, value in wanted.items() if name != "state"}
        return {"state": state, **map_tensors(TORCH, lambda tensor: _fresh(tensor, None, next(placements)), rest)}

    def take(self) -> None:
        """Once the tensors have what they are to have: the model has it, and the optimizer gets it."""
        plain = {name: value for name, value in self.tree["model"].items() if not isinstance(value, Tensor)}
        if plain:
            try:
                self._model.load_state_dict(plain, strict=False)
            except Exception as error:  # the script's own code too, given what it may not have written
                raise _not_fitting("model", f"its load_state_dict fails: {printable(error)}") from error
        if self._optimizer is not None and "optimizer" in self.tree:
            try:
                load_optimizer(self._optimizer, self.tree["optimizer"])
            except Exception as error:  # the script's own code too, given what it may not have written
                raise _not_fitting("optimizer", f"its load_state_dict fails: {printable(error)}") from error


def _fresh(like: Tensor, parameter: Tensor | None, placements: str) -> Tensor:
    if placements == AS_ITS_PARAMETER:
        is_alike = isinstance(parameter, DTensor) and parameter.shape == like.shape
        placements = _placements(parameter) if is_alike and parameter is not None else ""
    if placements and isinstance(parameter, DTensor):
        placed = [_placement(each, like.ndim) for each in placements.split(",")]
        if len(placed) == parameter.device_mesh.ndim:
            return empty(*like.shape, dtype=like.dtype, device_mesh=parameter.device_mesh, placements=placed)
    if placements:
        raise _not_fitting("optimizer", "its parameters are sharded in another way")
    return torch.empty(like.shape, dtype=like.dtype)


def _not_fitting(what: str, why: str) -> InvalidSettings:
    problem = f"the {what} that it makes does not fit the state that there is: {why}"
    return InvalidSettings("ShardedState.build", problem, "Make the same in each world, or start afresh")


def leaves_of(tensors: Sequence[Tensor]) -> tuple[Leaf, ...]:
    """Return the leaf of each tensor."""
    return tuple(map(leaf_of, tensors))
