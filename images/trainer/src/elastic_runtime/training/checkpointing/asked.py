"""Where and how often a state writes checkpoints: by the script's ``checkpoint=``, else by the run's environment."""

from __future__ import annotations

import os

from elastic_runtime.documents import from_json
from elastic_runtime.protocol.rank_link import CHECKPOINT
from elastic_runtime.run.spec import CheckpointSpec


def checkpoints_asked(checkpoint: CheckpointSpec | str | None) -> CheckpointSpec | None:
    """Return the checkpoints of a script's argument, or of the run that this process is a rank of, if it has any."""
    if isinstance(checkpoint, str):
        return CheckpointSpec(uri=checkpoint)
    if checkpoint is None and CHECKPOINT in os.environ:
        return from_json(CheckpointSpec, os.environ[CHECKPOINT])
    return checkpoint
