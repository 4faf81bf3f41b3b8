"""Looking after a wish for another size: what the sensor, the operator and the trigger do alike."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ElasticError, PermanentError, RetryableError, RunNotFound
from elastic_training.clusters.registry import cluster_called
from elastic_training.clusters.types import StatusChanged
from elastic_training.following.follow import Log, summary
from elastic_training.scaling.airflow_tasks import TaskView, TrainingOutlook, look_at
from elastic_training.scaling.request import ScaleRequest, ScaleState, Verdict

BEAT = 5.0
"""Seconds between two looks at the clock while nothing changes; and, at least, between two questions to Airflow."""

LEAST = 0.2
"""Seconds between two looks, at least."""


class Pursuit:
    """Of one wish, in one process.

    Args:
        cluster: its own name, see :func:`~elastic_training.clusters.registry.own_name`.
        request: what is wanted.
        log: for what is worth a line, once.
        silent: an error that nobody expects is logged, and not a verdict (Airflow's ``silent_fail``).
    """

    def __init__(self, cluster: str, request: ScaleRequest, log: Log, *, silent: bool = False) -> None:
        self.cluster, self.request, self._log, self._silent = cluster, request, log, silent
        self._sight: TaskView | None = None
        self._asked_airflow = float("-inf")
        self._told: set[str] = set()

    async def look(self) -> Verdict:
        """How far it is. What may pass is waited for; what cannot, is a verdict."""
        try:
            verdict = await self._look()
        except RunNotFound as error:
            verdict = await self._expected(Verdict(ScaleState.WAITING, str(error)))
        except RetryableError as error:
            self._tell(f"{error}; looking again until the time is over")
            verdict = Verdict(ScaleState.WAITING, str(error))
        except PermanentError as error:
            verdict = Verdict(ScaleState.INVALID, str(error))
        except Exception:  # Whatever it is: Airflow's silent_fail promises to look again.
            if not self._silent:
                raise
            self._tell(f"a look has failed, and silent_fail is set: {traceback.format_exc()}")
            verdict = Verdict(ScaleState.WAITING, "a look has failed")
        self._tell(f"{verdict.scaling}: {verdict.reason}")
        return verdict

    async def settle(self, deadline: datetime, interval: float) -> Verdict:
        """Wait for another verdict than that it has to be waited.

        Args:
            deadline: from then on it is that the time is over.
            interval: seconds between two looks for a training that does not run.
        """
        verdict = Verdict(ScaleState.WAITING, "the training has not begun")
        while True:
            if utc_now() >= deadline:
                return Verdict(ScaleState.TIMEOUT, verdict.reason)
            verdict = await self.look()
            if verdict.scaling is ScaleState.WAITING:
                verdict = await self._until_changed(verdict, deadline, interval)
            if verdict.scaling is not ScaleState.WAITING:
                return verdict

    async def _look(self) -> Verdict:
        if self.request.training.logical_date and not self.request.training.run_id:
            sight = await self._ask_airflow()
            self.request = replace(self.request, training=sight.task)
        verdict = await self.request.pursue(cluster_called(self.cluster))
        if verdict.scaling is ScaleState.ENDED:
            return await self._expected(verdict)
        return verdict

    async def _expected(self, verdict: Verdict) -> Verdict:
        """Of a training that has no run, or whose run is over: what Airflow says of its task decides."""
        sight = await self._ask_airflow()
        match sight.prospect:
            case TrainingOutlook.NONE:
                return Verdict(ScaleState.INVALID, sight.words)
            case TrainingOutlook.OVER:
                ended = verdict.scaling is ScaleState.ENDED
                return verdict if ended else Verdict(ScaleState.ENDED, f"{sight.words}; {verdict.reason}")
            case TrainingOutlook.TRAINS:
                return Verdict(ScaleState.WAITING, f"{verdict.reason}; {sight.words}")
        self._tell(sight.words)
        return verdict

    async def _ask_airflow(self) -> TaskView:
        now = asyncio.get_running_loop().time()
        if self._sight is None or now >= self._asked_airflow + BEAT:
            self._asked_airflow = now
            self._sight = await look_at(self.request.training, self.request.began, utc_now())
        return self._sight

    async def _until_changed(self, verdict: Verdict, deadline: datetime, interval: float) -> Verdict:
        """The first verdict that differs, from one watch; the one at hand when the watch or the time ends before."""
        with suppress(Exception if self._silent else ElasticError):  # What it means, the next look finds out.
            cluster = cluster_called(self.cluster)
            ref = await self.request.training.find(cluster)
            told, seen = "", ""
            async with aclosing(cluster.watch(ref, None, min(BEAT, interval))) as updates:
                async for update in updates:
                    if isinstance(update, StatusChanged):
                        seen = f"{summary(update.status)} {self.request.after.missing(update.status)}"
                    if seen != told:
                        told = seen
                        verdict = await self.look()
                    if verdict.scaling is not ScaleState.WAITING or utc_now() >= deadline:
                        return verdict
        # An ended run of an earlier try has nothing to watch; look again for the new one, in a while.
        await asyncio.sleep(max(LEAST, min(interval, (deadline - utc_now()).total_seconds())))
        return verdict

    def _tell(self, words: str) -> None:
        if words not in self._told:
            self._told = {*list(self._told)[-50:], words}
            self._log.info("%s", words)
