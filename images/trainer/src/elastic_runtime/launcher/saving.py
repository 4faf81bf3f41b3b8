"""Have the state durable before ranks that have it end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from elastic_runtime.clock import utc_now
from elastic_runtime.engines.base import Session, SessionFact, SessionState
from elastic_runtime.errors import FailureKind
from elastic_runtime.launcher.decision.facts import LeadershipState
from elastic_runtime.launcher.platform import Platform
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.launcher.worker_pool import WorkerPool
from elastic_runtime.protocol.rank_link import CommitDeadline
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Checkpoint

ASKED_FOR = (FailureKind.CANCELLED, FailureKind.ABANDONED, FailureKind.BUDGET)
"""Ends whose cause is not what ranks have written last."""
HANDOVER_TIMEOUT = 10.0
"""Seconds to wait for a durable checkpoint before the ranks that would write it end."""
SCRIPT_TIMEOUT = 20.0
"""Seconds to wait for the script's own one, at most: a launcher's pod has 30 from its notice to its end."""


class Saving:
    """Asks ranks for what they have, and waits for it.

    Args:
        spec: of the run.
        pool: its workers.
        record: that tells when a checkpoint is durable.
        platform: that tells when the run is to end.
        session: returns the present one.
        change: waits until anything has changed, or a tick.
    """

    def __init__(
        self,
        spec: RunSpec,
        pool: WorkerPool,
        record: RunRecord,
        platform: Platform,
        session: Callable[[], Session | None],
        change: Callable[[], Awaitable[None]],
    ) -> None:
        self._spec, self._pool, self._record, self._platform = spec, pool, record, platform
        self._session, self._change = session, change

    def last_word(self, fact: SessionFact | None, by: datetime | None = None) -> CommitDeadline | None:
        """To ranks of that session that wait for a world; None while none do."""
        if fact is None or fact.state not in (SessionState.WAITING, SessionState.FORMING) or fact.holders is None:
            return None
        word = self._pool.last_word(fact.holders, by)
        there = [each for each in fact.holders if each not in fact.awaited]
        if there and word.keeper in fact.awaited:
            return self._pool.last_word(there, by)  # Who has not come cannot write.
        return word

    async def have_script_save(self, session: Session) -> None:
        """Ask ranks that are restarted for each world to write their checkpoint: they end with this launcher."""
        session.list_ranks((), 1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._spec.restart.grace, SCRIPT_TIMEOUT)):
                while session.fact.outcome is None:
                    await self._change()

    async def save_state(self, failure: FailureKind | None) -> str:
        """Have a rank that has the state write it before its session is closed. Returns for people what is lost."""
        session = self._session()
        fact = session.fact if session else None
        if session and fact and fact.outcome is None and fact.restarts and failure in ASKED_FOR:
            await self.have_script_save(session)
            return ""
        if fact is None or fact.outcome is not None or not fact.holders:
            return ""
        trains = fact.state not in (SessionState.WAITING, SessionState.FORMING)
        if trains and failure is FailureKind.EARLY_EXIT:
            return ""  # There will be no other commit.
        if self._spec.checkpoint is None:
            lost = failure not in ASKED_FOR or failure is FailureKind.BUDGET
            return "; there is no checkpoint store, so the state is lost" if lost else ""
        max_wait = HANDOVER_TIMEOUT if trains else self._spec.timing.forming
        written, step = self._record.checkpoint, self._record.step
        if written is not None and step is not None and written.step >= step:
            return ""  # As far as anybody has told, nothing is newer.
        if trains and step is None and failure in ASKED_FOR:
            return ""  # No rank has committed anything, or the script never does.
        if await self.hand_over(max_wait):
            return ""
        return f"; no rank could write the state within {max_wait:.0f} s: what came after that checkpoint is lost"

    async def hand_over(self, max_wait: float) -> bool:
        """Have the state durable, if that can be had in so many seconds. Returns whether it is.

        Ranks that wait for a world are asked in turn, those first that are known to look for words: one that is stopped
        does not write.
        """
        before, session = self._record.checkpoint, self._session()
        fact = session.fact if session else None
        if fact is None or self.last_word(fact) is None:
            self._pool.hand_over("the launcher", utc_now() + timedelta(seconds=max_wait))
            return await self._is_written(before, max_wait)
        by = utc_now() + timedelta(seconds=max_wait)
        words = [self._pool.last_word((rank_id,), by) for rank_id in fact.waiting or fact.holders or ()]
        keepers = [word for word in words if word.keeper]
        for word in keepers:
            self._pool.tell_last_commit(word)
            if await self._is_written(before, max_wait / len(keepers)):
                return True
        return False

    async def _is_written(self, before: Checkpoint | None, max_wait: float) -> bool:
        """Whether there is another checkpoint within so many seconds, unless somebody ends the run meanwhile."""
        asked = self._platform.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait):
                while self._record.checkpoint == before:
                    lost = self._platform.leadership() is LeadershipState.LOST
                    if lost or self._platform.cancel() != asked or not self._pool.has_ranks:
                        return False
                    await self._change()
        return self._record.checkpoint != before
