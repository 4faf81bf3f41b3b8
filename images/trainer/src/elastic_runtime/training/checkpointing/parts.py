"""States as the parts of a checkpoint: a file for each tree of tensors, ``attributes.json`` for the plain values.

``NAME.safetensors`` (:mod:`elastic_runtime.training.tensor_files`) is what the library of that name reads, with every
framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any

from elastic_runtime.checkpoint.checkpoints import PartStream, PartWriter, StoredCheckpoint, opened_checkpoint
from elastic_runtime.checkpoint.manifest import MOST_STEPS, Part
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.training import plain, tensor_files
from elastic_runtime.training.family import Family, Tree
from elastic_runtime.training.tensor_files import SUFFIX

ATTRIBUTES = "attributes.json"
_PICKLED = ".pt"
"""Suffix of what this wrote for torch before, which is no longer read."""


def part_writers(family: Family, trees: Mapping[str, Tree], attributes: Mapping[str, Any]) -> dict[str, PartWriter]:
    """Writers of all parts.

    Args:
        family: whose tensors they have.
        trees: state dicts and other trees with tensors, in host memory, not written to until the parts are.
        attributes: plain values, encoded by :mod:`elastic_runtime.training.plain`.
    """
    writers = {f"{name}{SUFFIX}": partial(_write_tree, family, name, tree) for name, tree in trees.items()}
    text = json.dumps(attributes, allow_nan=False, indent=1).encode()
    return {**writers, ATTRIBUTES: lambda stream: _write(stream, text)}


def read_parts(
    family: Family, stored: StoredCheckpoint, wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """Every state and attribute by name, tensors in host memory, of the parts whose names are wanted.

    Raises:
        InvalidDocument: a part is torn, altered, unreadable, or of another framework.
        StoreUnavailable: the store does not answer.
    """
    values: dict[str, Any] = {}
    for part in filter(lambda part: wanted(part.name), stored.manifest.parts):
        with stored.open_part(part.name) as stream:
            if part.name == ATTRIBUTES:
                values |= _read_attributes(stream.read())
            elif part.name.endswith(SUFFIX):
                values[part.name.removesuffix(SUFFIX)] = read_tree(family, stream, part)
            elif part.name.endswith(_PICKLED):
                raise InvalidDocument(f"its part {part.name} is an archive of torch.save, which is not read any more")
    step = values.get("step", 0)
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        raise InvalidDocument(f"its step is not a number from 0 to {MOST_STEPS}")
    return values


def load_checkpoint(family: Family, uri: str) -> dict[str, Any]:
    """What a state held. Raises as :func:`read_parts`, and InvalidSettings when it is not the URI of a checkpoint."""
    with opened_checkpoint(uri) as stored:
        return read_parts(family, stored)


def _write_tree(family: Family, name: str, tree: Tree, stream: PartStream) -> None:
    try:
        tensor_files.write(family, tree, stream)
    except plain.NotPlain as error:  # that was none when the state was made
        raise unkept(name, f"its state cannot be kept: {error}") from error


def unkept(name: str, problem: str) -> InvalidSettings:
    """Return the error for an attribute of a state that cannot be kept."""
    remedy = "Have its state_dict give tensors and plain values alone, or keep it out of the state"
    return InvalidSettings(f"DurableState.{name}", problem, remedy)


def _write(stream: PartStream, data: bytes) -> None:
    stream.write(data)


def _read_attributes(data: bytes) -> dict[str, Any]:
    attributes = parse_json(data, deepest=None)
    if not isinstance(attributes, dict):
        raise InvalidDocument(f"its part {ATTRIBUTES} is not a JSON object")
    try:
        return {name: plain.decode(value) for name, value in attributes.items()}
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise InvalidDocument(f"its part {ATTRIBUTES} does not hold plain values: {printable(error)}") from error


def read_tree(family: Family, stream: IO[bytes], part: Part) -> Tree:
    """One part's tree. Raises InvalidDocument, with the name of the part."""
    try:
        return tensor_files.read(family, stream, part.size)
    except InvalidDocument as error:
        raise InvalidDocument(f"its part {part.name} cannot be loaded: {error}") from error
