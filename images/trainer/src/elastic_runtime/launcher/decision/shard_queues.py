"""Which rank trains on which of a step's shards: the rank that asks first, so that faster ranks get more.

Each step of a world has a queue. Shards that no rank has yet are TODO, and the others DOING. Nothing is ever DONE here:
the commit of the step is, and the state that it saves has the step. So ranks that go back to a commit, in another world
or from a checkpoint, begin a new queue with the step after it, and what lost ranks had is in it again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from elastic_runtime.protocol.shards import ShardGiven, ShardWanted

MOST_STREAMS = 16
"""Streams of shards of a run."""


@dataclass(slots=True)
class _Step:
    world: Hashable
    first: ShardWanted
    """The request that began the step."""
    given: dict[str, list[int]] = field(default_factory=dict)
    """Positions that each rank has got, in that order."""
    begun: int = 0
    """Positions that any rank has got; the others are TODO."""

    def take(self, rank_id: str, wanted: ShardWanted) -> ShardGiven:
        own = self.given.setdefault(rank_id, [])
        if wanted.number > len(own):
            return _refuse(wanted, f"the rank has got {len(own)} shards of step {wanted.step}, not {wanted.number}")
        if wanted.number == len(own):
            if self.begun == self.first.size:
                return ShardGiven(wanted.serial)
            own.append(self.begun)
            self.begun += 1
        return ShardGiven(wanted.serial, own[wanted.number])


class ShardQueues:
    """Queues of a run, one for each stream of shards."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}

    def take(self, world: Hashable, rank_id: str, wanted: ShardWanted) -> ShardGiven:
        """Answer a rank of the present world. The same request has the same answer.

        Args:
            world: the same for the requests of one world, and another one for each other.
            rank_id: name of the rank.
            wanted: what it asks for.
        """
        step = self._steps.get(wanted.stream)
        if step is None and len(self._steps) == MOST_STREAMS:
            return _refuse(wanted, f"the run has {MOST_STREAMS} streams of shards already")
        if step is None or step.world != world:
            step = self._steps[wanted.stream] = _Step(world, wanted)
        if wanted.digest != step.first.digest:
            return _refuse(wanted, "this rank's shards are not those of the other ranks, by number, names or settings")
        if wanted.step < step.first.step:
            if rank_id in step.given:
                return _refuse(wanted, f"the rank goes back to step {wanted.step} without a rollback")
            return ShardGiven(wanted.serial)  # Others go on when that step has none left.
        if wanted.step > step.first.step:
            if left := step.first.size - step.begun:
                return _refuse(wanted, f"step {step.first.step} has {left} shards left that no rank has taken")
            step = self._steps[wanted.stream] = _Step(world, wanted)
        return step.take(rank_id, wanted)


def _refuse(wanted: ShardWanted, why: str) -> ShardGiven:
    return ShardGiven(wanted.serial, refused=why)
