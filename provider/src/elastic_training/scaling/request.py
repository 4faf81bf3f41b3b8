"""A request for another size, on its way to being true: from when on it is asked for, and how far it has come."""

from __future__ import annotations

import asyncio
import math
import operator
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from elastic_runtime.clock import utc_now
from elastic_runtime.documents import time_to_text
from elastic_runtime.errors import ElasticError, InvalidSettings, PermanentError, RetryableError, RunNotFound
from elastic_runtime.run.join import is_joined
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import MAX_METRIC_NAME, EventKind, Phase, Status
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.document import SizeRequest
from elastic_training.clusters.registry import cluster_called
from elastic_training.clusters.types import RunRef, RunSummary, StatusChanged
from elastic_training.following.follow import Log, summary
from elastic_training.lifecycle.training_task import TrainingTask
from elastic_training.outcome.steps import REMEDY
from elastic_training.scaling.airflow_tasks import TaskView, TrainingOutlook, view_of
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import whole_number

# From when on a size is asked for: a step, an epoch, or the bound of a metric. Pure.

EPOCH = "epoch"
"""The metric by which a script tells its epoch: ``report(epoch=3)``."""
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class MetricBound:
    """A metric, and where it has to come."""

    name: str
    comparison: str
    bound: float

    def reached(self, status: Status) -> bool:
        """Whether it has ever been there, as far as the status remembers: a value between two looks counts."""
        compare = _COMPARISONS[self.comparison]
        newest = (status.metrics[self.name],) if self.name in status.metrics else ()
        series = status.series.get(self.name)
        return any(compare(value, self.bound) for value in (*newest, *(series.values if series else ())))


@dataclass(frozen=True, slots=True)
class ScaleAfter:
    """Condition of a size request. All parts that are given must hold."""

    step: int | None = None
    epoch: int | None = None
    metric: MetricBound | None = None

    def missing(self, status: Status) -> str | None:
        """Return a message about the first part that does not hold yet. None: all hold."""
        if self.step is not None and (status.step is None or status.step < self.step):
            return _not_come(f"step {self.step}", "step", REMEDY, known=status.step is not None, status=status)
        if self.epoch is not None and not MetricBound(EPOCH, ">=", self.epoch).reached(status):
            remedy = "the script has to call report(epoch=...)"
            return _not_come(f"epoch {self.epoch}", "epoch", remedy, known=EPOCH in status.metrics, status=status)
        if (metric := self.metric) is not None and not metric.reached(status):
            what = f"{metric.name} {metric.comparison} {metric.bound:g}"
            remedy = f"the script has to report {metric.name}"
            return _not_come(what, "value", remedy, known=metric.name in status.metrics, status=status)
        return None


def _not_come(what: str, kind: str, remedy: str, *, known: bool, status: Status) -> str:
    """For people: of a run that trains and tells nothing of the kind, what would have it told."""
    missing = f"{what} has not come"
    return missing if known or not status.world_size else f"{missing}, and no {kind} is known of it: {remedy}"


def scale_after(step: object, epoch: object, metric: object) -> ScaleAfter:
    """Parse the condition for a size request, after rendering. Raise InvalidSettings."""
    return ScaleAfter(
        step=None if step is None else whole_number("after_step", step, least=0),
        epoch=None if epoch is None else whole_number("after_epoch", epoch, least=0),
        metric=None if metric is None else metric_bound(metric),
    )


def metric_bound(metric: object) -> MetricBound:
    """As in ``("accuracy", ">=", 0.9)``; the bound may be text that a template has made. Raises InvalidSettings."""
    field, remedy = "after_metric", 'Write a name, one of >= > <= <, and a number, as in ("accuracy", ">=", 0.9)'
    if isinstance(metric, str) or not isinstance(metric, Sequence) or len(metric) != 3:
        raise InvalidSettings(field, f"{metric!r} is not a metric with its bound", remedy)
    name, comparison, bound = metric
    if not isinstance(name, str) or not 0 < len(name) <= MAX_METRIC_NAME:
        raise InvalidSettings(field, f"{name!r} is not a metric's name", remedy)
    if comparison not in _COMPARISONS:
        raise InvalidSettings(field, f"{comparison!r} is not a comparison", remedy)
    try:
        if isinstance(bound, bool) or not isinstance(bound, int | float | str):
            raise ValueError
        number = float(bound)
    except ValueError:
        raise InvalidSettings(field, f"{bound!r} is not a number", remedy) from None
    if not math.isfinite(number):
        raise InvalidSettings(field, f"{bound!r} is not a finite number", remedy)
    return MetricBound(name, comparison, number)


def check_after(step: object, epoch: object, metric: object) -> None:
    """Check the parts of a condition that are not templates, when the DAG is parsed. Raise InvalidSettings."""
    for name, value in (("after_step", step), ("after_epoch", epoch)):
        if isinstance(value, int | float | str) and not is_template(value):
            whole_number(name, value, least=0)
    if metric is not None and not is_template(metric):
        parts = metric if isinstance(metric, list | tuple) else ()
        if not any(is_template(part) for part in parts):
            metric_bound(metric)


class ScaleState(StrEnum):
    """Progress of a request for another size."""

    WAITING = "waiting"
    """Not there yet."""
    REACHED = "reached"
    """The world has the wanted size; or it was asked for, where that is all that is waited for."""
    OVERRULED = "overruled"
    """Somebody has asked for yet another size since."""
    ENDED = "ended"
    """The training ended before, or will never begin."""
    INVALID = "invalid"
    """It can never be: out of bounds, no such training, a missing right."""
    TIMEOUT = "timeout"
    """The time is over."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one check of a size request: its state, and the reason."""

    scaling: ScaleState
    reason: str
    """For people."""
    result: dict[str, Any] | None = None
    """What the task returns, once it is reached; plain JSON."""
    asked: bool = field(default=False, compare=False)
    """Whether the training has been asked by now."""


def judge(status: Status, asked: SizeRequest, slots: int, present: int, release: tuple[str, ...] = ()) -> Verdict:
    """Return the progress of a size request of a run that has not ended.

    Args:
        status: of the run.
        asked: the request, with the number of workers that it came to.
        slots: ranks per worker.
        present: workers that the run is asked for now.
        release: workers that have to be gone, too.
    """
    wanted = asked.workers
    if not present:
        return Verdict(ScaleState.WAITING, "the run is ending")
    if present != wanted:
        return Verdict(ScaleState.OVERRULED, f"{wanted} workers were asked for, and since then {present}")
    ranks = wanted * slots
    joined = sum(len(each.ranks) for each in status.workers if is_joined(each.name))
    enough = status.world_size - joined <= ranks <= status.world_size
    there = status.phase is Phase.RUNNING and status.target_size == wanted and enough
    staying = [each.name for each in status.workers if each.name in release and not each.state.gone]
    text = f"{status.world_size} of {ranks} ranks train, phase {status.phase}"
    if staying:
        return Verdict(ScaleState.WAITING, f"{text}; {', '.join(staying)} are still there")
    return Verdict(ScaleState.REACHED, text, result(status, asked)) if there else Verdict(ScaleState.WAITING, text)


def judge_pause(status: Status, asked: SizeRequest, pause: SizeRequest | None) -> Verdict:
    """Return the progress of a request for a pause of a run that has not ended.

    Args:
        status: of the run.
        asked: the request.
        pause: the present pause; None: there is none, or none any more.
    """
    known = status.pause
    if known is not None and known.request == asked.name and known.refused:
        return Verdict(ScaleState.INVALID, f"the training run {status.run} was not paused: {known.refused}")
    if pause is None:
        return Verdict(ScaleState.OVERRULED, f"the training run {status.run} has been resumed since")
    staying = [each.name for each in status.workers if not each.state.gone]
    if status.phase is not Phase.PAUSED or staying:
        text = f"{status.phase}: {status.reason}"
        return Verdict(ScaleState.WAITING, f"{text}; {', '.join(staying)} are still there" if staying else text)
    seconds = None
    if asked.asked and known and known.since:
        seconds = round(max(0.0, (known.since - asked.asked).total_seconds()), 3)
    return Verdict(ScaleState.REACHED, status.reason, told(status, asked) | {"world_size": 0, "seconds": seconds})


def had(status: Status, asked: SizeRequest, slots: int) -> bool:
    """Whether a run that is over has had the size, or the pause, that was asked for, and nobody was there to see it."""
    if not asked.done or asked.asked is None or not asked.workers:
        return False
    since = asked.asked
    if asked.pause:
        return any(event.kind is EventKind.PAUSED and event.time >= since for event in status.events)
    before = [world.size for world in status.history if world.time < since][-1:]
    return asked.workers * slots in (*before, *(world.size for world in status.history if world.time >= since))


def result(status: Status, asked: SizeRequest, ranks: int | None = None) -> dict[str, Any]:
    """Return the result of a task whose size was reached.

    Args:
        status: of the run.
        asked: the request, with the number of workers that it came to.
        ranks: of the world that was reached; None: of the present one.

    Returns:
        ``workers``, ``world_size`` (ranks), ``run``, ``asked_at`` (RFC 3339), and ``seconds`` from then to the first
        world of that size, by the clocks of Airflow's machine and the launcher's; 0 if it was there before. Of a
        pause, ``workers`` are 0.
    """
    seconds, ranks = None, status.world_size if ranks is None else ranks
    if asked.asked is not None:
        begun = [each.time for each in status.history if each.size == ranks and each.time >= asked.asked]
        seconds = round((begun[0] - asked.asked).total_seconds(), 3) if begun else 0.0
    return {
        "workers": 0 if asked.pause else asked.workers,
        "world_size": ranks,
        "run": status.run,
        "asked_at": time_to_text(asked.asked) if asked.asked else None,
        "seconds": seconds,
    }


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """Request of a task to scale a training, with the condition for it."""

    training: TrainingTask
    size_request: SizeRequest
    began: datetime
    """When this try of the task began."""
    after: ScaleAfter = field(default_factory=ScaleAfter)
    wait: bool = True
    """Until the world has the size; else only until it was asked for."""

    async def check(self, cluster: Cluster) -> Verdict:
        """Check the training once, and request the size if that has not been done and the training has begun.

        While the first workers start, a request would set the size of the first world, instead of changing it.

        Raises:
            InvalidSettings: the size is out of the training's bounds, or a worker to give up is not there.
            RunNotFound: there is no run yet.
        """
        ref = await self.training.find(cluster)
        spec, status = await cluster.spec(ref), await cluster.status(ref)
        if verdict := await self._before_asking(cluster, ref, spec, status):
            return verdict
        asked = await cluster.ask(ref, self.size_request)
        return replace(await self._after_asking(cluster, ref, spec, status, asked), asked=True)

    async def _after_asking(
        self, cluster: Cluster, ref: RunRef, spec: RunSpec, status: Status, asked: SizeRequest
    ) -> Verdict:
        words = "asked for a pause" if asked.pause else f"asked for {asked.workers} workers"
        if not self.wait:
            return Verdict(ScaleState.REACHED, words, told(status, asked))
        if not asked.done:
            return Verdict(ScaleState.WAITING, f"{words}; {status.world_size} ranks train")
        pause = await cluster.paused(ref)
        if asked.pause:
            return judge_pause(status, asked, pause)
        if pause:
            return Verdict(ScaleState.WAITING, f"the training is paused: {status.reason}")
        return judge(status, asked, spec.workers.slots, await cluster.size(ref), self.size_request.release)

    async def _before_asking(self, cluster: Cluster, ref: RunRef, spec: RunSpec, status: Status) -> Verdict | None:
        """Return the verdict about a training that is not to be asked now, or any more. None: it is."""
        if status.phase.final:
            asked_before, slots = await cluster.known_request(ref, self.size_request.name), spec.workers.slots
            if asked_before and had(status, asked_before, slots):
                ranks = 0 if asked_before.pause else asked_before.workers * slots
                text = f"the training run {status.run} has {status.phase}, and had {ranks} ranks before"
                return Verdict(ScaleState.REACHED, text, result(status, asked_before, ranks))
            goal = _goal(self.size_request)
            return Verdict(
                ScaleState.ENDED, f"the training run {status.run} has {status.phase} ({status.reason}) before {goal}"
            )
        if status.phase in (Phase.PENDING, Phase.STARTING) and not self._is_about_pause:
            self.size_request.target(spec.workers.start, spec.workers)  # A bad one is told now.
            return Verdict(ScaleState.WAITING, f"the training has not begun: {status.reason}")
        if missing := self.after.missing(status):
            return Verdict(ScaleState.WAITING, missing)
        if self.size_request.resume and await self._has_nothing_to_resume(cluster, ref):
            there = SizeRequest(self.size_request.name, workers=status.target_size)
            return Verdict(ScaleState.REACHED, f"the training run {status.run} is not paused", told(status, there))
        return None

    def missing(self, status: Status) -> str:
        """Return another text whenever a look at this status may say something else, its :func:`summary` apart."""
        after = self.after.missing(status)
        if not self.size_request.pause:
            return f"{after}"
        return f"{after} {status.pause} {[each.name for each in status.workers if not each.state.gone]}"

    async def _has_nothing_to_resume(self, cluster: Cluster, ref: RunRef) -> bool:
        return not (await cluster.paused(ref) or await cluster.known_request(ref, self.size_request.name))

    @property
    def _is_about_pause(self) -> bool:
        return self.size_request.pause or self.size_request.resume


def _goal(request: SizeRequest) -> str:
    """For people: what the training was to have done."""
    if request.release:
        return "it released them"
    if request.pause:
        return "it was paused"
    return f"it had the size {request.size}" if request.size else "it was resumed"


def told(status: Status, asked: SizeRequest) -> dict[str, Any]:
    """Return the result of a task that does not wait for the world: its ``world_size`` and ``seconds`` are None."""
    return result(status, asked) | {"world_size": None, "seconds": None}


BEAT = 5.0
"""Seconds between two looks at the clock while nothing changes; and, at least, between two questions to Airflow."""

LEAST = 0.2
"""Seconds between two looks, at least."""


class ScaleWait:
    """Wait of one process for one requested size.

    Args:
        cluster: its own name, see :func:`~elastic_training.clusters.registry.own_name`.
        request: what is wanted.
        log: for what is worth a line, once.
        silent: an error that nobody expects is logged, and not a verdict (Airflow's ``silent_fail``).
    """

    def __init__(self, cluster: str, request: ScaleRequest, log: Log, *, silent: bool = False) -> None:
        self.cluster, self.request, self._log, self._silent = cluster, request, log, silent
        self._view: TaskView | None = None
        self._asked_airflow = float("-inf")
        self._may_have_asked = True
        """Whether the latest training may have been asked already: by a process before, or in a look that failed."""
        self._told: set[str] = set()

    async def check(self) -> Verdict:
        """Return the progress of the request. Errors that may pass are WAITING, permanent ones are INVALID."""
        try:
            verdict = await self._check()
        except RunNotFound as error:
            verdict = await self._expected(Verdict(ScaleState.WAITING, str(error)))
        except RetryableError as error:
            self._log_once(f"{error}; looking again until the time is over")
            verdict = Verdict(ScaleState.WAITING, str(error))
        except PermanentError as error:
            verdict = Verdict(ScaleState.INVALID, str(error))
        except Exception:  # Whatever it is: Airflow's silent_fail promises to look again.
            if not self._silent:
                raise
            self._log_once(f"a look has failed, and silent_fail is set: {traceback.format_exc()}")
            verdict = Verdict(ScaleState.WAITING, "a look has failed")
        self._log_once(f"{verdict.scaling}: {verdict.reason}")
        return verdict

    async def wait(self, deadline: datetime, interval: float) -> Verdict:
        """Check until the verdict is another one than WAITING, and return it.

        Args:
            deadline: from then on the verdict is TIMEOUT.
            interval: seconds between two looks for a training that does not run.
        """
        verdict = Verdict(ScaleState.WAITING, "the training has not begun")
        while True:
            if utc_now() >= deadline:
                return Verdict(ScaleState.TIMEOUT, verdict.reason)
            verdict = await self.check()
            if verdict.scaling is ScaleState.WAITING:
                verdict = await self._until_changed(verdict, deadline, interval)
            if verdict.scaling is not ScaleState.WAITING:
                return verdict

    async def _check(self) -> Verdict:
        if self.request.training.logical_date and not self.request.training.run_id:
            view = await self._ask_airflow()
            self.request = replace(self.request, training=view.task)
        cluster = cluster_called(self.cluster)
        latest = self.request.training.is_latest
        verdict = await (self._check_latest(cluster) if latest else self.request.check(cluster))
        if verdict.scaling is ScaleState.ENDED:
            return await self._expected(verdict)
        return verdict

    async def _check_latest(self, cluster: Cluster) -> Verdict:
        """The same for the latest training, until one has been asked: no later look may ask another one, too."""
        runs = await self.request.training.runs(cluster)
        asked = await self._asked_before(cluster, runs) if self._may_have_asked else None
        chosen = self.request.training.in_run_of(asked or runs[0])
        self._may_have_asked = True
        if asked:
            self._keep_to(chosen)
        verdict = await replace(self.request, training=chosen).check(cluster)
        self._may_have_asked = False
        if verdict.asked and not asked:
            self._keep_to(chosen)
        return verdict

    async def _asked_before(self, cluster: Cluster, runs: Sequence[RunSummary]) -> RunSummary | None:
        """The run that has this request already, of those that it can have been made of."""
        for each in runs:
            if each.headline.phase.final and each.headline.updated < self.request.began:
                continue
            with suppress(RunNotFound):
                if await cluster.known_request(each.ref, self.request.size_request.name):
                    return each
        return None

    def _keep_to(self, training: TrainingTask) -> None:
        self.request = replace(self.request, training=training)
        self._view = None

    async def _expected(self, verdict: Verdict) -> Verdict:
        """Of a training that has no run, or whose run is over: what Airflow says of its task decides."""
        view = await self._ask_airflow()
        match view.outlook:
            case TrainingOutlook.NONE:
                return Verdict(ScaleState.INVALID, view.words)
            case TrainingOutlook.OVER:
                ended = verdict.scaling is ScaleState.ENDED
                return verdict if ended else Verdict(ScaleState.ENDED, f"{view.words}; {verdict.reason}")
            case TrainingOutlook.TRAINS:
                return Verdict(ScaleState.WAITING, f"{verdict.reason}; {view.words}")
        self._log_once(view.words)
        return verdict

    async def _ask_airflow(self) -> TaskView:
        now = asyncio.get_running_loop().time()
        if self._view is None or now >= self._asked_airflow + BEAT:
            self._asked_airflow = now
            self._view = await view_of(self.request.training, self.request.began, utc_now())
        return self._view

    async def _until_changed(self, verdict: Verdict, deadline: datetime, interval: float) -> Verdict:
        """The first verdict that differs, from one watch; the one at hand when the watch or the time ends before."""
        with suppress(Exception if self._silent else ElasticError):  # What it means, the next look finds out.
            cluster = cluster_called(self.cluster)
            ref = await self.request.training.find(cluster)
            told, seen = "", ""
            async with aclosing(cluster.watch(ref, None, min(BEAT, interval))) as updates:
                async for update in updates:
                    if isinstance(update, StatusChanged):
                        seen = f"{summary(update.status)} {self.request.missing(update.status)}"
                    if seen != told:
                        told = seen
                        verdict = await self.check()
                    if verdict.scaling is not ScaleState.WAITING or utc_now() >= deadline:
                        return verdict
        # An ended run of an earlier try has nothing to watch; look again for the new one, in a while.
        await asyncio.sleep(max(LEAST, min(interval, (deadline - utc_now()).total_seconds())))
        return verdict

    def _log_once(self, words: str) -> None:
        if words not in self._told:
            self._told = {*list(self._told)[-50:], words}
            self._log.info("%s", words)
