"""The figures that ranks report: the newest of each, and how they went over the steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from elastic_runtime.launcher.record import series
from elastic_runtime.printable import printable
from elastic_runtime.run.status import MAX_METRIC_NAME, MAX_METRICS, Series, Status

log = logging.getLogger(__name__)

SHORTEST = 1.0
"""Seconds over which the throughput is measured, at least: words of ranks come in bunches on a busy machine."""


class Figures:
    """Fields are as in the status.

    Args:
        previous: the status of the launcher before, whose figures are continued.
    """

    def __init__(self, previous: Status | None) -> None:
        self.metrics: dict[str, float] = dict(previous.metrics) if previous else {}
        self.series: Mapping[str, Series] = previous.series if previous else {}
        self.throughput = previous.throughput if previous else Series()
        self.sample_throughput = previous.sample_throughput if previous else Series()
        self.samples: float | None = None
        """Of a step, over all ranks; None: not told."""
        self._too_many = False
        self._measured: tuple[int, datetime] | None = None
        """Step and time from which the throughput is measured next."""

    def report(self, values: Mapping[str, float], step: int | None, now: datetime) -> None:
        """Values of that step; None: nobody knows of which."""
        values = {printable(name, MAX_METRIC_NAME): value for name, value in values.items()}
        self.metrics.update(values)
        if len(self.metrics) > MAX_METRICS and not self._too_many:
            self._too_many = True
            log.warning("more than %d metrics are reported: of the others, the oldest are left out", MAX_METRICS)
        while len(self.metrics) > MAX_METRICS:
            self.metrics.pop(next(iter(self.metrics)))
        if step is not None:
            self.series = series.noted(self.series, values, step, now)

    def progress(self, step: int, now: datetime) -> None:
        """The training has come to that step."""
        before, since = self._measured or (step, now)
        seconds = (now - since).total_seconds()
        if step > before and seconds >= SHORTEST:
            rate = (step - before) / seconds
            self.throughput = series.extended(self.throughput, step, now, rate)
            if self.samples is not None:
                self.sample_throughput = series.extended(self.sample_throughput, step, now, rate * self.samples)
        if self._measured is None or step < before or seconds >= SHORTEST:
            self._measured = step, now

    def go_back(self, step: int) -> None:
        """The training goes on from that step: what was told of later ones is undone."""
        self._measured = None
        self.throughput = series.rewound(self.throughput, step)
        self.sample_throughput = series.rewound(self.sample_throughput, step)
        self.series = {name: series.rewound(each, step) for name, each in self.series.items()}
