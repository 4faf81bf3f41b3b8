"""The rank's word to its agent: metrics from anywhere in a script."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.plausible import COUNT
from elastic_runtime.protocol.rank_link import Metrics, Progress, TotalSteps, shared_link
from elastic_runtime.script.unjoined import stepped
from elastic_runtime.training.observing import observing
from elastic_runtime.world import current_world

_log = script_logger(__name__)
_warned: set[str] = set()
_total: list[int] = []
"""What this process has told of its steps, the newest alone."""


def report(step: int | None = None, *, of: SupportsIndex | None = None, **metrics: SupportsFloat) -> None:
    """Publish metrics in the run's status: ``report(step, of=3000, loss=loss, accuracy=0.97)``.

    Rank 0 sends them, other ranks do nothing, and without an agent (a script that is run by hand) no rank does. The
    newest value of each name is in the status and in the result. The status also has a curve of it over the steps, of
    at most 200 points. Values are numbers, or tensors with one element. Converting a tensor on a GPU waits for the
    GPU, so do not report at every step.

    A value that is not finite is left out, because JSON has none, with a warning at the first time for each name.

    Args:
        step: Global step of the values. None: the newest that a state has committed. In a script without a state it is
            the run's progress, also without values: ``report(step)``.
        of: Steps of the whole training, for its percentage and the time that is left. The newest is used. None: as told
            before, or as ``GlobalBatches`` counts them.
        **metrics: Values by name.

    Raises:
        InvalidSettings: a value is not a number, or ``of`` is not a whole number from 1 on.
    """
    link = shared_link()
    # In this order: a script without an agent need not have an engine either.
    if not link.connected:
        return
    stepped()
    if not (world := current_world()).connected or world.rank != 0:
        return
    committed = observing().step
    # A script without a state may end by os._exit after any step, a state's last word takes along what waits.
    send = link.send if committed is None else link.send_soon
    if of is not None and [total := _steps(of)] != _total:
        _total[:] = [total]
        send(TotalSteps(total, by_script=True))
    if committed is None and step is not None:
        send(Progress(step))
    # The launcher receives commits a few times a second only, and would take these values for those of an older step.
    step = committed if step is None else step
    values = {name: _number(name, value) for name, value in metrics.items()}
    for name in [name for name, value in values.items() if not math.isfinite(value)]:
        if name not in _warned:
            _warned.add(name)
            _log.warning("report: %s is %s and is left out; further ones are left out silently", name, values[name])
        del values[name]
    if values:
        send(Metrics(values=values, step=step))
        observing().reported(values, step)


def _steps(of: SupportsIndex) -> int:
    try:
        steps = 0 if isinstance(of, bool) else operator.index(of)
    except TypeError:
        steps = 0
    if not 1 <= steps <= COUNT:
        large = isinstance(of, int) and abs(of) > COUNT  # Python refuses to print the largest.
        problem = f"{'a number that is too large' if large else repr(of)[:60]} is not a number of steps"
        raise InvalidSettings("report.of", problem, f"Give a whole number from 1 to {COUNT}")
    return steps


def _number(name: str, value: SupportsFloat) -> float:
    try:
        # A loss still carries its graph, and torch warns when that is dropped silently.
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidSettings(f"report.{name}", f"{value!r} is not a number", "Report one number a name") from error
