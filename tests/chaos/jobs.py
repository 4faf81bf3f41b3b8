"""What is trained in a round, engine by engine: a script whose weights are the same to the last bit in any worlds.

Its ranks write, for each step, a note with its number, their ``rank``, the world's ``size`` and the monotonic ``time``;
after every fifth, with ``digests`` of all that their state keeps, by entry; and their ``weights``, or ``counts`` of
shards, at the end (:meth:`tests.paced.PacedRun.notes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from elastic_runtime.run.spec import CheckpointSpec, RecoverySpec, Timing
from tests.chaos.places import HERE, Place, RoundRun
from tests.chaos.plan import Plan
from tests.engines.kinds import HOROVOD, HOROVODRUN, HUB, TORCH, TORCH_IN_PLACE, TORCHRUN, Kind
from tests.tensorflow.ranks import ENVIRONMENT, SCRIPTS

EPOCHS, STEP_SECONDS = 16, 0.05
"""A run that nobody disturbs trains for about six seconds: 112 steps."""
STEPS_AN_EPOCH = 7
MAX_WAIT = 60.0
"""Seconds after which a run that cannot train ends as failed."""


@dataclass(frozen=True, slots=True)
class Job:
    """A training with one engine."""

    kind: Kind
    durable: bool
    """Whether its script writes checkpoints; else a run whose ranks are all lost begins again at the first step."""
    epochs: int = EPOCHS
    step_seconds: float = STEP_SECONDS
    """That a step takes at least."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of its ranks, besides."""
    ranks: int | None = None
    """In a world of fewer a step takes longer in proportion; None: as long in any."""
    uneven: bool = False
    """Steps of uneven length, with evaluations and compilations between them."""
    variant: str = ""
    """Of how the engine is used, where the kind does not say it."""
    weights: tuple[float, ...] | None = None
    """At the end, where they are known without a run that nobody disturbs."""
    place: Place = HERE
    """Where launcher and workers run."""

    @property
    def engine(self) -> str:
        """Its name, and how it is used."""
        return self.kind.name + self.variant

    def run(self, plan: Plan, base: Path) -> RoundRun:
        """One that is not started yet."""
        durable: dict[str, Any] = {}
        if self.durable:
            durable["checkpoint"] = CheckpointSpec((base / "checkpoints").as_uri(), every=plan.checkpoint_every)
        return self.kind.run(
            base,
            (plan.minimum, plan.start, plan.maximum),
            self.place.make,
            epochs=self.epochs,
            commit_every=plan.commit_every,
            state_every=plan.state_every,
            step_seconds=self.step_seconds,
            shared_by=self.ranks,
            stand=astuple(plan.stand) if plan.stand else None,
            uneven=self.uneven,
            environment={**self.kind.environment, **self.environment},
            recovery=RecoverySpec(
                backoff=plan.backoff,
                backoff_maximum=2.0,
                rank_failures=1000,
                max_wait=MAX_WAIT,
                standstill=plan.standstill,
                window=plan.window,
            ),
            timing=Timing(agent_silence=plan.agent_silence, lease=0.0),  # Nobody watches it, however long it takes.
            **durable,
        )


JOBS = (
    *(Job(replace(kind, script="rich.py"), durable=True) for kind in (HOROVOD, TORCH, TORCH_IN_PLACE)),
    Job(replace(TORCH, script="rich_sharded.py"), durable=True, variant="-sharded"),
    Job(HUB, durable=False),
)
OWN_CHECKPOINTS = {"CHECKPOINT_EVERY": "10"}
RESTARTED = tuple(Job(kind, durable=False, environment=OWN_CHECKPOINTS) for kind in (TORCHRUN, HOROVODRUN))
"""Whose scripts write checkpoints of their own."""
SHARDS, A_STEP, SHARD_SECONDS = 1200, 12, 0.002
"""Shards of a training, those of a step, and the seconds that one takes."""
TAKING = tuple(
    Job(
        replace(kind, script="counted.py"),
        durable=True,
        variant="-shards",
        environment={"SHARDS": json.dumps([SHARDS, A_STEP, SHARD_SECONDS, "shards"])},
        weights=(1,) * SHARDS,
    )
    for kind in (HOROVOD, TORCH)
)
"""Whose ranks take one shard after the other: each is in the state once."""
BY_TENSORFLOW = (
    *(
        Job(replace(HOROVOD, script=str(SCRIPTS / script)), durable=True, variant=variant, environment=ENVIRONMENT)
        for script, variant in (("rich.py", "-tensorflow"), ("fitted.py", "-fit"))
    ),
    Job(
        replace(HOROVODRUN, script=str(SCRIPTS / "restarting.py")),
        durable=False,
        variant="-tensorflow",
        environment={**ENVIRONMENT, **OWN_CHECKPOINTS},
    ),
)
"""In TensorFlow's environment, on this machine: in a loop of the script's own, by Keras' ``fit``, and restarted."""
