"""A state goes on from the newest checkpoint that can be read and fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic_runtime.checkpoint.checkpoints import Checkpoints, StoredCheckpoint
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.protocol.rank_link import CheckpointSkipped, RankLink, Resumed
from elastic_runtime.training.state.values import StateValues


def take_newest(
    checkpoints: Checkpoints,
    read: Callable[[StoredCheckpoint], dict[str, Any]],
    values: StateValues,
    link: RankLink,
    *,
    own: bool = False,
) -> StoredCheckpoint | None:
    """Give the values what it holds, and say so; returns it, or None if there is none.

    One that does not fit is passed over only for one that does: somebody else must have written it, as this script
    could not have gone on from it. If none fits, the script is another one, and must not begin anew unnoticed.

    Args:
        checkpoints: of the run.
        read: raises InvalidDocument for one that is broken, and InvalidSettings for one that does not fit.
        values: receive what is read.
        link: to the agent.
        own: only from those that this run has written, as where it was told to start afresh.

    Raises:
        InvalidSettings: the newest one does not fit them, and none before it does.
        StoreUnavailable: the store does not answer.
    """
    before: Mapping[str, Any] | None = None
    misfits: list[InvalidSettings] = []

    def take(stored: StoredCheckpoint) -> None:
        nonlocal before
        before = before or values.copied()
        try:
            values.take(read(stored), stored.uri)
        except InvalidSettings as error:
            values.put_back(before)
            misfits.append(error)
            raise InvalidDocument(error.problem.removeprefix(f"{stored.uri} ")) from error

    newest = checkpoints.newest(take, lambda uri, why: link.send(CheckpointSkipped(uri=uri, reason=why)), own=own)
    if newest is None:
        if misfits:
            raise misfits[0]
        return None
    stored, _ = newest
    link.send(Resumed(uri=stored.uri, step=stored.manifest.step))
    return stored
