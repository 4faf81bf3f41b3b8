"""Which rank trains on which of a step's shards: the rank that asks first, so that faster ranks get more.

Each step of a world has a queue. Shards that no rank has yet are TODO, and the others DOING. Nothing is ever DONE here:
the commit of the step is, and the state that it saves has the step. So ranks that go back to a commit, in another world
or from a checkpoint, begin a new queue with the step after it, and what lost ranks had is in it again.

A step of asynchronous ranks ends after some time with the shards that ranks have got by then. The state that they
commit says which of these are in it, and the others are in a later step.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field

from elastic_runtime.protocol.shards import ShardGiven, ShardWanted

MOST_STREAMS = 16
"""Streams of shards of a run."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A shard that a rank of the present world has got, and has not finished."""

    rank_id: str
    stream: str
    step: int
    renewed: float
    """When the rank has got it, or has renewed its lease."""
    seconds: float
    """For which it has the shard from then on."""
    stopped: float | None = None
    """When the rank was stopped, because it has had the shard for too long."""


@dataclass(slots=True)
class _Step:
    world: Hashable
    first: ShardWanted
    """The request that began the step."""
    since: float
    """When that came."""
    given: dict[str, list[int]] = field(default_factory=dict)
    """Positions that each rank has got, in that order."""
    begun: int = 0
    """Positions that any rank has got; the others are TODO."""
    is_over: bool = False
    """Ranks get no more."""
    held: dict[str, float] = field(default_factory=dict)
    """When each rank that has a shard has asked last."""
    stopped: dict[str, float] = field(default_factory=dict)
    """When ranks were stopped that get nothing any more."""

    def take(self, rank_id: str, wanted: ShardWanted, now: float, *, broken: bool) -> ShardGiven:
        if wanted.digest != self.first.digest:
            return _refuse(wanted, "this rank's shards are not those of the other ranks, by number, names or settings")
        own = self.given.setdefault(rank_id, [])
        if rank_id in self.stopped:
            return _refuse(wanted, "the rank has had a shard for longer than its lease, so others get it")
        if wanted.number > len(own):
            return _refuse(wanted, f"the rank has got {len(own)} shards of step {wanted.step}, not {wanted.number}")
        if wanted.number == len(own):
            seconds = self.first.seconds
            ends = self.begun == self.first.size or (seconds is not None and (broken or now - self.since >= seconds))
            self.is_over = self.is_over or ends
            if self.is_over:
                self.held.pop(rank_id, None)
                return ShardGiven(wanted.serial, given=self.begun)
            own.append(self.begun)
            self.begun += 1
        self.held[rank_id] = now
        return ShardGiven(wanted.serial, own[wanted.number])


class ShardQueues:
    """Queues of a run, one for each stream of shards. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}

    def take(
        self, world: Hashable, rank_id: str, wanted: ShardWanted, now: float, *, broken: bool = False
    ) -> ShardGiven:
        """Answer a rank of the present world. The same request has the same answer.

        Args:
            world: the same for the requests of one world, and another one for each other.
            rank_id: name of the rank.
            wanted: what it asks for.
            now: the time.
            broken: whether a rank of the world is lost, so that the others are about to leave it.
        """
        step = self._steps.get(wanted.stream)
        if step is None and len(self._steps) == MOST_STREAMS:
            return _refuse(wanted, f"the run has {MOST_STREAMS} streams of shards already")
        if step is None or step.world != world:
            step = self._steps[wanted.stream] = _Step(world, wanted, now)
        if wanted.step < step.first.step:
            if rank_id in step.given:
                return _refuse(wanted, f"the rank goes back to step {wanted.step} without a rollback")
            return ShardGiven(wanted.serial)  # Others go on when that step has none left.
        if wanted.step > step.first.step:
            if not step.is_over and (left := step.first.size - step.begun):
                return _refuse(wanted, f"step {step.first.step} has {left} shards left that no rank has taken")
            step = self._steps[wanted.stream] = _Step(world, wanted, now)
        return step.take(rank_id, wanted, now, broken=broken)

    def leases(self, world: Hashable) -> Iterator[Lease]:
        """Yield those of the present world that end some time."""
        for stream, step in self._steps.items():
            if step.world == world and step.first.lease:
                for rank_id, renewed in step.held.items():
                    stopped = step.stopped.get(rank_id)
                    yield Lease(rank_id, stream, step.first.step, renewed, step.first.lease, stopped)

    def stop(self, rank_ids: Collection[str], now: float) -> None:
        """Give these nothing any more: they are being stopped, and a message of theirs may come late."""
        for step in self._steps.values():
            step.stopped.update({rank_id: now for rank_id in rank_ids if rank_id in step.given})


def _refuse(wanted: ShardWanted, why: str) -> ShardGiven:
    return ShardGiven(wanted.serial, refused=why)
