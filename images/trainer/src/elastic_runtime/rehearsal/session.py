"""A model of :class:`elastic_runtime.engines.horovod.session.HorovodSession`.

What it does, and when, is what the real one was seen to do (docs/architecture.md); how long it takes is in the costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Protocol

from elastic_runtime.engines.base import SessionFact, SessionOutcome, SessionState
from elastic_runtime.rehearsal.account import Cause
from elastic_runtime.rehearsal.checkpoints import Checkpoints
from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.progress import Progress
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.timeline import Event, Timeline
from elastic_runtime.run.waits import NOTICE_CAUTION, NOTICE_MARGIN, RECLAIM_TIMEOUT
from elastic_runtime.training.checkpointing.notices import LastCommit

_EARLY = 0.01
"""Seconds. A commit that is so much too early is a matter of rounding."""


class Ranks(Protocol):
    """What a session has to know of the workers."""

    @property
    def known(self) -> frozenset[str]:
        """Ranks that nobody misses."""

    @property
    def dead(self) -> frozenset[str]:
        """Ranks among them that are gone all the same."""

    def retire(self, rank_ids: Collection[str]) -> None:
        """These are over."""


class Session:
    """From :meth:`open` to the loss of the last rank that holds the state.

    Args:
        timeline: of the simulation.
        ranks: the fleet.
        progress: what the world adds to.
        checkpoints: of the run.
        costs: of everything.
        scaling: rate by world size.
        most: returns the workers that a global batch is cut for.
        in_place: survivors keep their state over a reset; else every change is a restart.
        on_world: called when a world is complete.
    """

    def __init__(
        self,
        timeline: Timeline,
        ranks: Ranks,
        progress: Progress,
        checkpoints: Checkpoints,
        costs: Costs,
        scaling: Scaling,
        *,
        most: Callable[[], int],
        in_place: bool,
        on_world: Callable[[], None],
    ) -> None:
        self._timeline, self._ranks, self._progress, self._checkpoints = timeline, ranks, progress, checkpoints
        self._costs, self._scaling, self._in_place, self._on_world = costs, scaling, in_place, on_world
        self._most = most
        self._state = SessionState.FORMING
        self._listed: tuple[str, ...] = ()
        self._minimum = 1
        self._worlds = 0
        self._holders: frozenset[str] = frozenset()
        self._next: Event | None = None
        self._broken = self._copying = self._standing = False
        self._last_commit = LastCommit()
        self._deadline: float | None = None
        self._writer = ""
        self.members: tuple[str, ...] = ()
        """Ranks of the present world, or the one that forms."""
        self.cause = Cause.RESTARTING
        """Why it does not train, if it does not."""
        self.planned_resets = self.forced_resets = 0

    @property
    def fact(self) -> SessionFact:
        """For the decision."""
        return SessionFact(
            self._state,
            self._listed,
            SessionOutcome.LOST if self._state is SessionState.ENDED else None,
            holders=tuple(each for each in self.members if each in self._holders) if self._holders else None,
            minimum=self._minimum,
            world=self._worlds,
        )

    @property
    def trains(self) -> bool:
        """Whether it makes progress now."""
        return self._state is SessionState.SETTLED and not (self._broken or self._copying or self._standing)

    @property
    def rate(self) -> float:
        """Of the world, while it trains. One beyond the wanted, kept for the state it holds, makes it no faster."""
        return self._scaling.rate(min(len(self.members), self._most()))

    def open(self, listed: tuple[str, ...], minimum: int, seconds: float) -> None:
        """Form the first world."""
        self._listed, self._minimum = listed, minimum
        self._form(listed, seconds, Cause.RESTARTING)

    def list_ranks(self, listed: tuple[str, ...], minimum: int) -> None:
        """Use these from the next reset on."""
        self._listed, self._minimum = listed, minimum
        if self._state is SessionState.WAITING:
            self._form_if_enough(self._costs.grow, Cause.WAITING)
        elif self._state is SessionState.SETTLED and self._differs and not self._in_place:
            self._end()
        elif self.trains or self._standing:
            self._plan()

    def reform(self) -> None:
        """Form the next world of those that hold the state, and have come therefore."""
        self.forced_resets += 1
        self._leave_out([each for each in self.members if each not in self._holders or each in self._ranks.dead])
        self._holders &= frozenset(self.members)
        self._form_if_enough(self._costs.forced_reset, self._cause_of_loss)

    def keep(self, rank_id: str | None) -> None:
        """While ranks wait: this one is to have the last commit durable. At once, for no other commit will come."""
        steps = self._progress.committed
        if self._state is SessionState.WAITING and rank_id and not self._checkpoints.takes_care_of(steps):
            self._writer = rank_id
            self._checkpoints.take(steps)

    def last_commit_by(self, deadline: float | None) -> None:
        """When everybody who holds the state will be gone; None: somebody will stay."""
        if deadline == self._deadline:
            return
        self._deadline = deadline
        self._last_commit.expect_end(deadline)
        if self.trains or self._standing:
            self._plan()

    def hand_over(self) -> None:
        """A notice has come: have the next commit durable."""
        self._checkpoints.want_handover()
        if self.trains:
            self._plan()

    def vanished(self, rank_id: str) -> None:
        """A rank is gone; the others wait for it, and know nothing."""
        if rank_id not in self.members or self._state is SessionState.ENDED:
            return
        if rank_id == self._writer:
            self._checkpoints.writer_lost()
        if self._state is SessionState.WAITING:
            return
        self._wait_for(None)
        self._broken, self._copying, self._standing, self.cause = True, False, False, self._cause_of_loss
        if self._state is SessionState.SETTLED:
            self._progress.back_to(self._progress.committed)

    def missed(self, rank_id: str) -> None:
        """It is known now: go on without it."""
        if rank_id not in self.members or self._state is SessionState.ENDED:
            return
        self.members = tuple(each for each in self.members if each != rank_id)
        had_holders, self._holders = bool(self._holders), self._holders - {rank_id}
        if not self.members or (had_holders and not self._holders) or not self._in_place:
            self._end()
        elif self._state is not SessionState.WAITING:
            self.forced_resets += 1
            self._form_if_enough(self._costs.forced_reset, self._cause_of_loss)

    @property
    def _cause_of_loss(self) -> Cause:
        return Cause.RECOVERING if self._holders else Cause.RESTARTING

    @property
    def _present(self) -> tuple[str, ...]:
        """Ranks of the next world: listed, and not known to be gone."""
        known = self._ranks.known
        return tuple(each for each in self._listed if each in known)

    @property
    def _differs(self) -> bool:
        return set(self._present) != set(self.members)

    def _form_if_enough(self, seconds: float, cause: Cause) -> None:
        present = self._present
        enough = len(present) >= self._minimum
        if self._holders and not enough:
            self._wait_for(None)
            self._leave_out([each for each in self.members if each not in self._holders])
            self._state, self._broken, self.cause = SessionState.WAITING, False, Cause.WAITING
        elif not enough or (self._holders and self._holders.isdisjoint(present)):
            self._end()
        else:
            self._form(present, seconds, Cause.RECOVERING if cause is Cause.WAITING else cause)

    def _form(self, members: tuple[str, ...], seconds: float, cause: Cause) -> None:
        self._leave_out([each for each in self.members if each not in members])
        self.members, self._state, self.cause = members, SessionState.FORMING, cause
        self._worlds += 1
        self._broken = not self._ranks.dead.isdisjoint(members)
        # With a dead one among them they wait until it is missed.
        self._wait_for(None if self._broken else self._timeline.after(seconds, self._settle))

    def _settle(self) -> None:
        if not self._holders:
            self._checkpoints.open()
        self._state, self._holders = SessionState.SETTLED, frozenset(self.members)
        self._on_world()
        self._plan()

    def _plan(self) -> None:
        """The commit at which something is to be done."""
        self._standing = False
        later = 0.0 if self._differs else max(0.0, min(self._checkpoints.due_in, self._stands_in))
        self._wait_for(self._timeline.after(self._progress.until_commit(self.rate, later), self._commit))

    def _commit(self) -> None:
        steps = self._progress.commit()
        if self._checkpoints.due or (self._is_last and not self._checkpoints.takes_care_of(steps)):
            self._writer = self.members[0]
            self._checkpoints.take(steps)
            self._copying, self.cause = True, Cause.CHECKPOINTING
            self._wait_for(self._timeline.after(self._costs.checkpoint_stall, self._copied))
        else:
            self._go_on()

    def _copied(self) -> None:
        self._copying = False
        self._go_on()

    def _go_on(self) -> None:
        if self._differs:
            self.planned_resets += 1
            grows = not set(self._present) <= set(self.members)
            self._form_if_enough(self._costs.grow if grows else self._costs.leave, Cause.RESIZING)
            self._holders &= frozenset(self.members)
        elif self._is_last and self._checkpoints.takes_care_of(self._progress.committed):
            assert self._deadline is not None  # or no commit would be the last
            self._standing, self.cause = True, Cause.STANDING
            self._wait_for(self._timeline.at(self._deadline + RECLAIM_TIMEOUT + _EARLY, self._plan))
        else:
            self._plan()

    @property
    def _interval(self) -> float:
        return self._progress.commit_work / self.rate

    @property
    def _stands_in(self) -> float:
        """Seconds until the commit is due after which no other could be made durable."""
        if self._deadline is None or self._timeline.now > self._deadline + RECLAIM_TIMEOUT:
            return math.inf
        write = self._costs.checkpoint_write * (1 + self._checkpoints.under_way)
        return self._deadline - NOTICE_MARGIN - NOTICE_CAUTION * (self._interval + write) - self._timeline.now

    @property
    def _is_last(self) -> bool:
        """What rank 0 makes of it: the real judgement."""
        now = self._timeline.now + _EARLY
        self._last_commit.commits.committed(now - self._interval)
        self._last_commit.commits.committed(now)
        return self._last_commit.is_here(now, self._costs.checkpoint_write, self._checkpoints.under_way)

    def _end(self) -> None:
        self._wait_for(None)
        self._progress.back_to(self._progress.durable)
        self._checkpoints.writer_lost()
        self._leave_out(self.members)
        self.members, self._state, self.cause = (), SessionState.ENDED, Cause.RESTARTING

    def _leave_out(self, rank_ids: Collection[str]) -> None:
        self._ranks.retire(rank_ids)
        self.members = tuple(each for each in self.members if each not in rank_ids)

    def _wait_for(self, event: Event | None) -> None:
        if self._next:
            self._next.cancel()
        self._next = event
