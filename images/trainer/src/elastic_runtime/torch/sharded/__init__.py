"""States of which each rank has a part: modules under ``fully_shard`` (FSDP2), and their optimizers."""

from __future__ import annotations

import re

PART = re.compile(r"sharded-[0-9]{5}-of-[0-9]{5}\.safetensors")
"""Of a checkpoint: what one rank had."""


def is_of_parts(name: str) -> bool:
    """Whether a part of a checkpoint is one of these."""
    return PART.fullmatch(name) is not None
