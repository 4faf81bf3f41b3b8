"""A value over steps, in few points however long the run. Pure.

Steps are divided into stretches of ``stride`` steps, and the first point in each is kept; when there are too many, the
stride doubles until they are few enough. So the points cover the whole run evenly, and each that stays is one that the
wider stride would have chosen, too. What lies between two points is not kept: a peak of a single step may be missing.
TensorBoard_ draws its points at random (reservoir sampling); these follow from the reports alone.

.. _TensorBoard: https://github.com/tensorflow/tensorboard/blob/master/README.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from elastic_runtime.run.status import MAX_METRICS, Series

MAX_POINTS = 200
"""Points of one series."""
MAX_ALL_POINTS = 3000
"""Points of all series of metrics together: about 100 kB of JSON, in a ConfigMap that takes 1 MiB."""


def noted(before: Mapping[str, Series], values: Mapping[str, float], step: int, time: datetime) -> Mapping[str, Series]:
    """The series by name, each of these values added to its own; see :func:`extended`.

    Of more than :data:`MAX_METRICS` names, those that came first are dropped; the more there are, the fewer points
    each may have.
    """
    after = {**before, **{name: before.get(name, Series()) for name in values}}
    names = list(after)[-MAX_METRICS:]
    limit = min(MAX_POINTS, MAX_ALL_POINTS // len(names)) if names else MAX_POINTS
    return {
        name: extended(after[name], step, time, values[name], limit) if name in values else thinned(after[name], limit)
        for name in names
    }


def extended(series: Series, step: int, time: datetime, value: float, limit: int = MAX_POINTS) -> Series:
    """With one more point, which is the last.

    A step that is not beyond the last one says that the training has gone back to before it: points from there on tell
    of steps that were undone, and are dropped. So steps always ascend.

    Args:
        series: so far.
        step: that the value belongs to.
        time: at which it was heard of. By a clock that was set back, it is that of the point before.
        value: kept to six significant digits.
        limit: points to keep; at least 2.
    """
    if series.steps and step <= series.steps[-1]:
        series = rewound(series, step - 1)
    end = -1 if _passing(series) else None
    seconds = max([round(time.timestamp(), 2), *series.times[-1:]])
    more = Series(
        stride=series.stride,
        steps=(*series.steps[:end], step),
        times=(*series.times[:end], seconds),
        values=(*series.values[:end], float(f"{value:.6g}")),
    )
    return more if len(more.steps) <= limit else thinned(more, limit)


def rewound(series: Series, step: int) -> Series:
    """Up to that step: the training goes on from there."""
    return _only(series, [at for at, each in enumerate(series.steps) if each <= step])


def thinned(series: Series, limit: int) -> Series:
    """At most ``limit`` points (at least 2): the first of each stretch, and the last of all."""
    stride, kept = chosen(series.steps, series.stride, limit)
    return _only(replace(series, stride=stride), kept)


def chosen(places: Sequence[int], stride: int, limit: int) -> tuple[int, list[int]]:
    """Which of these ascending places stay, by index: the first of each stretch, and the last of all; and the stride.

    The stride doubles until they are at most ``limit`` (at least 2).
    """
    last = len(places) - 1
    while True:
        stretch = [(place - places[0]) // stride for place in places]
        kept = [at for at in range(last + 1) if at in (0, last) or stretch[at] != stretch[at - 1]]
        if len(kept) <= limit:
            return stride, kept
        stride *= 2


def _passing(series: Series) -> bool:
    """Whether the last point is there only because it is the last."""
    first, before, last = series.steps[:1], series.steps[-2:-1], series.steps[-1:]
    return bool(before) and (before[0] - first[0]) // series.stride == (last[0] - first[0]) // series.stride


def _only(series: Series, kept: Sequence[int]) -> Series:
    if len(kept) == len(series.steps):
        return series
    steps, times, values = series.steps, series.times, series.values
    return Series(
        stride=series.stride,
        steps=tuple(steps[at] for at in kept),
        times=tuple(times[at] for at in kept),
        values=tuple(values[at] for at in kept),
    )
