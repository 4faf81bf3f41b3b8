"""Random states on the ranks of one world: equal everywhere after a sync, equal to what was saved after a restore.

Each rank makes the objects of a seed in the same way, with values and a past of its own, as survivors and new ranks
do. What is compared is encoded here, without the code under test.
"""

from __future__ import annotations

import hashlib
import io
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from elastic_runtime.training import tensor_files
from elastic_runtime.world import current_world

Encode = Callable[[Any], Any]
"""Something that is equal exactly when a tensor is, to the last bit; None: it is no tensor."""


class Objects(Protocol):
    """What one rank has made of a seed."""

    state: Any
    """The state that keeps them."""

    def train(self, seed: int) -> None:
        """Take a step, the same on ranks that have the same state."""

    def everything(self) -> dict[str, Any]:
        """Return all that is kept, as it is now, by :func:`canonical`."""


def canonical(value: Any, encode: Encode) -> Any:
    """Something that is equal exactly when the value is."""
    if (encoded := encode(value)) is not None:
        return encoded
    if isinstance(value, Mapping):
        return {repr(key): canonical(item, encode) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(canonical(item, encode) for item in value)]
    return repr(value)


def check_equal(what: str, seed: int, value: dict[str, Any]) -> None:
    """On all ranks, each entry by a number of 48 bits."""
    digests = [hashlib.sha256(repr(item).encode()).digest() for _, item in sorted(value.items())]
    numbers = [float(int.from_bytes(digest[:6], "big")) for digest in digests]
    found = current_world().maximum([*numbers, *(-number for number in numbers)])
    pairs = zip(sorted(value), found[: len(numbers)], found[len(numbers) :], strict=True)
    differ = [name for name, greatest, least in pairs if greatest != -least]
    assert not differ, f"seed {seed}: ranks differ {what}: {differ}"


def check(seed: int, make: Callable[[int, int], Objects]) -> None:
    """All that is promised of one state.

    Args:
        seed: of the objects.
        make: makes them of a seed, with values and a past of a number.
    """
    rank = current_world().rank
    objects = make(seed, rank)
    before = objects.everything()
    objects.state.sync()
    after = objects.everything()
    assert rank or before == after, f"seed {seed}: rank 0 has changed"
    check_equal("after a sync", seed, after)
    objects.train(seed + 100)  # Two entries that share memory would show.
    check_equal("a step later", seed, objects.everything())
    objects.state.save()
    saved = objects.everything()
    family, values = objects.state.family, objects.state._values
    loan = values.lend()
    loan.wait()
    parts = {name: io.BytesIO() for name in loan.tree}
    for name, stream in parts.items():
        tensor_files.write(family, loan.tree[name], stream)
    loan.give_back()
    objects.train(seed + 101)
    objects.train(seed + 102)
    objects.state.step += 1
    objects.state.restore()
    assert objects.everything() == saved, f"seed {seed}: a restore differs from what was saved"
    other = make(seed, rank + 5)
    found = {
        name: tensor_files.read(family, io.BytesIO(part.getvalue()), len(part.getvalue()))
        for name, part in parts.items()
    }
    other.state._values.take({**values._live().values(), **found}, "the checkpoint")
    assert other.everything() == saved, f"seed {seed}: a checkpoint differs from what was saved"


def main(check_one: Callable[[int], None]) -> None:
    """The arguments are the first seed, and how many."""
    first, count = map(int, sys.argv[1:3])
    for seed in range(first, first + count):
        try:
            check_one(seed)
        except Exception:  # noqa: BLE001 - torch's hook would begin each line with ranks of earlier worlds
            print(f"seed {seed}", traceback.format_exc(), flush=True)
            sys.exit(1)
    print(f"{count} states checked", flush=True)
