"""From when on a size is asked for: a step, an epoch, or the bound of a metric. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.status import MAX_METRIC_NAME, Status
from elastic_training.outcome.steps import REMEDY
from elastic_training.settings.templating import is_template
from elastic_training.settings.values import whole_number

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
    """What has to come first; all that is given."""

    step: int | None = None
    epoch: int | None = None
    metric: MetricBound | None = None

    def missing(self, status: Status) -> str | None:
        """What has not come yet, for people; None: it is time."""
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
    """From what a user has written, rendered. Raises InvalidSettings."""
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
    """What is known at parse; the rest may be templates, or outputs of other tasks. Raises InvalidSettings."""
    for field, value in (("after_step", step), ("after_epoch", epoch)):
        if isinstance(value, int | float | str) and not is_template(value):
            whole_number(field, value, least=0)
    if metric is not None and not is_template(metric):
        parts = metric if isinstance(metric, list | tuple) else ()
        if not any(is_template(part) for part in parts):
            metric_bound(metric)
