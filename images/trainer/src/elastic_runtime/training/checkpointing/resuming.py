"""A state goes on from the newest checkpoint that can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.rank_link import CheckpointSkipped, RankLink, Resumed
from elastic_runtime.training.state.values import StateValues


def take_newest(
    checkpoints: Checkpoints, read: Callable[[StoredCheckpoint], dict[str, Any]], values: StateValues, link: RankLink
) -> bool:
    """Give the values what it holds, and say so; returns whether there is one.

    Raises:
        InvalidSettings: it does not fit them.
        StoreUnavailable: the store does not answer.
    """
    newest = checkpoints.newest(read, skipped=lambda uri, reason: link.send(CheckpointSkipped(uri=uri, reason=reason)))
    if newest is None:
        return False
    stored, found = newest
    values.take(found, stored.uri)
    link.send(Resumed(uri=stored.uri, step=stored.manifest.step))
    return True
