"""How often durable checkpoints are written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from elastic_runtime.run.spec import CheckpointSpec
from elastic_training.settings.templating import Settings, all_known
from elastic_training.settings.values import Duration, IntOrTemplate, seconds_of, whole_number


@dataclass(frozen=True, slots=True)
class Checkpoints(Settings):
    """How often durable checkpoints are written. Bare numbers are seconds."""

    every: Duration = timedelta(minutes=1)
    """Between two of them; one more is written on a reclaim notice and on the last commit."""
    keep: IntOrTemplate = 2
    """How many complete ones stay. At least 1."""

    def __post_init__(self) -> None:
        self.known().spec("", 0, "")

    @all_known()
    def spec(self, uri: str, fence: int, owner: str) -> CheckpointSpec:
        """For the launcher. Raises InvalidSettings."""
        return CheckpointSpec(
            uri=uri,
            every=seconds_of("checkpoints.every", self.every),
            keep=whole_number("checkpoints.keep", self.keep, least=1),
            fence=fence,
            owner=owner,
        )
