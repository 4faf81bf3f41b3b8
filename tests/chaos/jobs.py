"""What is trained in a round, engine by engine: how a run of it is made, and how its end is read."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from elastic_runtime.spec import CheckpointSpec, RecoverySpec, Timing
from tests.chaos.plan import Plan
from tests.engines.kinds import HUB
from tests.local.harness import ScriptedRun
from tests.paced import Script

EPOCHS, STEP_SECONDS = 16, 0.05
"""A run that nobody disturbs trains for about six seconds: 112 steps."""
MAX_WAIT = 60.0
"""Seconds after which a run that cannot train ends as failed."""


class Job(Protocol):
    """A training whose weights are the same to the last bit, whatever the sizes of its worlds."""

    engine: str

    def run(self, plan: Plan, base: Path) -> ScriptedRun:
        """One that is not started yet. Its ranks write, for each step, a note with its number, their ``rank``
        and the monotonic ``time`` (:meth:`ScriptedRun.notes`), and their ``weights`` at the end."""


class HorovodJob:
    """``tests/local/scripts/doubles.py``, with checkpoints in a folder."""

    engine = "horovod"

    def run(self, plan: Plan, base: Path) -> ScriptedRun:
        """See :class:`Job`."""
        script = Script("doubles.py", epochs=EPOCHS, commit_every=plan.commit_every, step_seconds=STEP_SECONDS)
        return ScriptedRun(
            base,
            script,
            (plan.minimum, plan.start, plan.maximum),
            checkpoint=CheckpointSpec((base / "checkpoints").as_uri(), every=plan.checkpoint_every),
            recovery=RecoverySpec(backoff=plan.backoff, backoff_maximum=2.0, rank_failures=1000, max_wait=MAX_WAIT),
            timing=Timing(agent_silence=plan.agent_silence),
        )


class HubJob:
    """``tests/local/scripts/tally.py``. Without checkpoints: where all ranks are lost, it starts again."""

    engine = "hub"

    def run(self, plan: Plan, base: Path) -> ScriptedRun:
        """See :class:`Job`."""
        script = Script("tally.py", epochs=EPOCHS, commit_every=plan.commit_every, step_seconds=STEP_SECONDS)
        return ScriptedRun(
            base,
            script,
            (plan.minimum, plan.start, plan.maximum),
            path=HUB.path,
            engine=self.engine,
            recovery=RecoverySpec(backoff=plan.backoff, backoff_maximum=2.0, rank_failures=1000, max_wait=MAX_WAIT),
            timing=Timing(agent_silence=plan.agent_silence),
        )


JOBS: tuple[Job, ...] = (HorovodJob(), HubJob())
