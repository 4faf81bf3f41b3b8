"""States as the parts of a checkpoint: ``NAME.pt`` for each state dict, ``attributes.json`` for the plain values.

``NAME.pt`` is what ``torch.save(state_dict)`` writes, so ``torch.load(…, weights_only=True)`` reads it anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any, cast

import torch
from torch.utils.serialization import config

from elastic_runtime.checkpoint.checkpoints import PartStream, PartWriter, StoredCheckpoint, opened_checkpoint
from elastic_runtime.checkpoint.manifest import Part
from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.torch.checkpointing.archives import read_archive
from elastic_runtime.torch.state import plain
from elastic_runtime.torch.state.trees import Tree

ATTRIBUTES = "attributes.json"
_TENSORS = ".pt"


def part_writers(trees: Mapping[str, Tree], attributes: Mapping[str, Any]) -> dict[str, PartWriter]:
    """Writers of all parts.

    Args:
        trees: state dicts and other trees with tensors, in host memory, not written to until the parts are.
        attributes: plain values, encoded by :mod:`elastic_runtime.torch.state.plain`.
    """
    writers = {f"{name}{_TENSORS}": _tree_writer(tree) for name, tree in trees.items()}
    text = json.dumps(attributes, allow_nan=False, indent=1).encode()
    return {**writers, ATTRIBUTES: lambda stream: _write(stream, text)}


def read_parts(stored: StoredCheckpoint) -> dict[str, Any]:
    """Every state and attribute by name, tensors in host memory.

    Raises:
        InvalidDocument: a part is torn, altered or unreadable.
        StoreUnavailable: the store does not answer.
    """
    values: dict[str, Any] = {}
    for part in stored.manifest.parts:
        with stored.open_part(part.name) as stream:
            if part.name == ATTRIBUTES:
                values |= _read_attributes(stream.read())
            elif part.name.endswith(_TENSORS):
                values[part.name.removesuffix(_TENSORS)] = _read_tree(stream, part)
    if type(values.get("step", 0)) is not int:
        raise InvalidDocument("its step is not a number")
    return values


def load_checkpoint(uri: str) -> dict[str, Any]:
    """What a :class:`~elastic_runtime.torch.DurableState` held, to evaluate or export it.

    ::

        model.load_state_dict(load_checkpoint(result["checkpoint"]["uri"])["model"])

    Args:
        uri: of the checkpoint, as a result gives it.

    Returns:
        State dicts (``model``, ``optimizer`` …) and plain attributes (``step`` …) by name, tensors in host memory.

    Raises:
        InvalidSettings: it is not the URI of a checkpoint.
        InvalidDocument: there is none, or it is torn or altered.
        StoreUnavailable: the store does not answer.
    """
    with opened_checkpoint(uri) as stored:
        return read_parts(stored)


def _tree_writer(tree: Tree) -> PartWriter:
    def write(stream: PartStream) -> None:
        # Without the CRCs that torch puts into its archives and never reads, a quarter of the work of writing: the
        # manifest has a SHA-256 of the whole. The setting is this thread's alone.
        with config.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
            # torch asks for a whole IO[bytes] and uses write and flush.
            torch.save(tree, cast(IO[bytes], stream))

    return write


def _write(stream: PartStream, data: bytes) -> None:
    stream.write(data)


def _read_attributes(data: bytes) -> dict[str, Any]:
    attributes = parse_json(data)
    if not isinstance(attributes, dict):
        raise InvalidDocument(f"its part {ATTRIBUTES} is not a JSON object")
    try:
        return {name: plain.decode(value) for name, value in attributes.items()}
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidDocument(f"its part {ATTRIBUTES} does not hold plain values: {printable(error)}") from error


def _read_tree(stream: IO[bytes], part: Part) -> Tree:
    try:
        return read_archive(stream, part.size)
    except InvalidDocument as error:
        raise InvalidDocument(f"its part {part.name} cannot be loaded: {error}") from error
