"""A rehearsal of a task: gathers what is known of it, its markets and prices, and has the runs simulated.

Airflow is imported only for a DAG file: the modules that need it are imported where they are used.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.prices.book import SHIPPED as EXAMPLE_BOOK
from elastic_runtime.prices.book import Price, read_prices
from elastic_runtime.printable import printable
from elastic_runtime.rehearsal.alternatives import Alternative, Sizes, better, candidates
from elastic_runtime.rehearsal.checkpoints import NEVER
from elastic_runtime.rehearsal.costs import MISSED, Costs
from elastic_runtime.rehearsal.policy import Job, Policy
from elastic_runtime.rehearsal.rehearse import Figures, Plan, Run, Tariff, figures, rehearse
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.speed import Speed, fitted, speed_of
from elastic_runtime.rehearsal.trace import CLOUD_NOTICES, DAY, HOUR, Notices, Trace
from elastic_runtime.rehearsal.trace_files import SHIPPED as SHIPPED_TRACES
from elastic_runtime.rehearsal.trace_files import read_trace, shipped
from elastic_runtime.rehearsal.window import newest
from elastic_runtime.run.spec import CheckpointSpec, RecoveryMode, RecoverySpec, WorkersSpec
from elastic_training.cost.spot_markets import markets as ec2_markets
from elastic_training.cost.spot_prices import fetch_changes, mean_prices

if TYPE_CHECKING:
    from elastic_training.console.command.task_settings import TaskSettings

EXAMPLE = "example"
_SETTINGS = ("min", "start", "max", "mode", "max_wait", "start_timeout", "reset_limit", "checkpoint_every", "notices")
_RECOVERY = RecoverySpec()
_DEFAULTS: Mapping[str, Any] = {
    "mode": _RECOVERY.mode.value,
    "max_wait": _RECOVERY.max_wait,
    "start_timeout": _RECOVERY.start_timeout,
    "reset_limit": None,
    "checkpoint_every": CheckpointSpec("file:///").every,
    "notices": _RECOVERY.notices.value,
}
"""Of a task that says nothing of them; for a rehearsal without one."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was rehearsed, and what came of it."""

    title: str
    plan: Plan
    workers: WorkersSpec
    price: Price
    tariff: Tariff
    days: float
    notes: tuple[str, ...]
    """Where figures are from, what was assumed, and what was left out."""
    runs: tuple[Run, ...]
    alternatives: tuple[Alternative, ...]
    tried: int
    """Other sizes that were tried."""

    def figures(self, market: str | None = None) -> Figures:
        """Of all runs, or of those in one market."""
        return figures([run for run in self.runs if market in (None, run.market)], self.days * DAY)


@dataclass(slots=True)
class _Facts:
    """What is known before anything is simulated."""

    settings: dict[str, Any]
    found: TaskSettings | None
    notes: list[str] = field(default_factory=list)


def rehearsed(arguments: Namespace) -> Rehearsal:
    """Gather what is known, and simulate.

    Args:
        arguments: of :mod:`.rehearsal_options`.

    Raises:
        InvalidSettings: something is not known, or cannot be.
        ElasticError: what is read cannot be, or EC2 does not tell.
    """
    traces = [_trace(word) for word in arguments.trace]  # What is wrong with them is said before a DAG file is run.
    costs = Costs(silent_reset=MISSED).given(dict(arguments.cost))
    facts = _facts(arguments)
    workers = _workers(facts.settings)
    price, tariff = _price(arguments, facts)
    markets, tariff = _markets(arguments, facts, traces, price, tariff, workers)
    plan = _plan(arguments, facts, workers, price, costs)
    if plan.undisturbed > arguments.days * DAY:
        problem = f"the work takes {plan.undisturbed / DAY:.1f} days when nothing is lost"
        raise InvalidSettings("--days", problem, "Rehearse more days, or less work")
    if workers.start > (most := max(market.peak for market in markets)):
        facts.notes.append(f"no market ever has the {workers.start} machines that are asked for: at most {most}")
    own = Sizes(plan.job.minimum, plan.job.maximum)
    others = candidates(own, workers.maximum, most, fixed=plan.policy.mode is RecoveryMode.FIXED)
    progress = _Progress((1 + len(others)) * len(markets) * arguments.runs)

    def simulated(sizes: Sizes) -> list[Run]:
        sized = plan.with_sizes(sizes.minimum, sizes.wanted)
        limit = arguments.days * DAY
        return rehearse(sized, markets, tariff, runs=arguments.runs, limit=limit, done=progress.step)

    runs = simulated(own)
    tried = {sizes: figures(simulated(sizes), arguments.days * DAY) for sizes in others}
    progress.end()
    title = f"{facts.found.dag_id}.{facts.found.task_id}" if facts.found else "a task"
    return Rehearsal(
        title=title,
        plan=plan,
        workers=workers,
        price=price,
        tariff=tariff,
        days=arguments.days,
        notes=tuple(facts.notes),
        runs=tuple(runs),
        alternatives=tuple(better(figures(runs, arguments.days * DAY), tried)),
        tried=len(tried),
    )


def _facts(arguments: Namespace) -> _Facts:
    """Settings by the options, then the task, then the defaults. Raises InvalidSettings for what nobody says."""
    if (arguments.file is None) != (arguments.task is None):
        raise InvalidSettings("--task", "a DAG file and a task belong together", "Write DAG.py --task ID, or neither")
    given = {name: getattr(arguments, name, None) for name in _SETTINGS}
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.file is None:
        return _Facts({**_DEFAULTS, **options}, None)
    from elastic_training.console.command.task_settings import settings_in

    found = settings_in(arguments.file, arguments.task, arguments.dag)
    settings = {**found.known, **options}
    if arguments.notice is not None:
        settings["notices"] = "given"
    if missing := [name for name in _SETTINGS if name not in settings]:
        why = "; ".join(found.unknown[name] for name in missing)
        names = ("notice" if name == "notices" else name.replace("_", "-") for name in missing)
        remedy = f"Write {' '.join(f'--{name} …' for name in names)}"
        raise InvalidSettings("settings", f"not known before the task runs: {why}", remedy)
    facts = _Facts(settings, found)
    facts.notes += [f"left out: {each}" for each in found.left_out]
    return facts


def _workers(settings: Mapping[str, Any]) -> WorkersSpec:
    least, start, most = (settings.get(name) for name in ("min", "start", "max"))
    start = start or least or most
    if start is None:
        raise InvalidSettings("--start", "the number of workers is not known", "Write --min, --start, --max")
    # An option that moves one of them moves those that it leaves behind, but for the task's own.
    return WorkersSpec(least or 1, start, max(most or start, start))


def _plan(arguments: Namespace, facts: _Facts, workers: WorkersSpec, price: Price, costs: Costs) -> Plan:
    settings = facts.settings
    every = settings["checkpoint_every"]
    if "checkpoint_every" not in dict(arguments.cost):
        costs = replace(costs, checkpoint_every=every or NEVER)
    speed, steps = _work(arguments, facts, workers)
    job = Job(
        minimum=workers.minimum,
        maximum=workers.start,
        fixed=workers.start,
        step_work=speed.step_work,
        scaling=speed.scaling,
        max_wait=settings["max_wait"],
        start_timeout=settings["start_timeout"],
        reset_limit=settings["reset_limit"],
        steps=steps,
        durable=every > 0,
    )
    restarts = facts.found is not None and facts.found.restarts
    policy = Policy(costs, RecoveryMode(settings["mode"]), in_place=not restarts)
    facts.notes.append(f"assumed (--cost): {_texts(costs, every > 0)}")
    return Plan(job, policy, _notices(arguments.notice, settings["notices"], price))


def _texts(costs: Costs, durable: bool) -> str:
    names = [name for name in Costs.__dataclass_fields__ if durable or not name.startswith("checkpoint")]
    return ", ".join(f"{name} {getattr(costs, name):.3g} s" for name in names)


def _notices(given: float | None, service: str, price: Price) -> Notices:
    cloud = price.cloud if service == "auto" else service.partition("-")[0]
    seconds = CLOUD_NOTICES.get(cloud, 0.0) if given is None else given
    return Notices(1.0, seconds) if seconds else Notices(0.0, silent=True)


def _work(arguments: Namespace, facts: _Facts, workers: WorkersSpec) -> tuple[Speed, int]:
    """What steps take, and how many there are; says where that is from."""
    from_runs = None
    if facts.found is not None and (arguments.step_seconds is None or not (arguments.steps or arguments.node_hours)):
        from elastic_training.console.command.measured import measured_by

        from_runs = measured_by(facts.found)
    if arguments.step_seconds is not None:
        speed = speed_of(arguments.step_seconds, workers.start, Scaling(arguments.efficiency or 1.0))
        source = "given"
    elif from_runs and from_runs.rates:
        speed = fitted(from_runs.rates, arguments.efficiency)
        rates = ", ".join(f"{rate:.3g} steps/s with {size}" for size, rate in sorted(from_runs.rates.items()))
        source = f"measured by {printable(from_runs.rated, 80)} and earlier runs: {rates}"
    else:
        speed, source = (
            speed_of(1.0, workers.start, Scaling(arguments.efficiency or 1.0)),
            "assumed: write --step-seconds",
        )
    efficiency = f"{speed.scaling.efficiency:.2f} of the throughput at each doubling"
    seconds = speed.step_seconds(workers.start)
    facts.notes.append(f"a step takes {seconds:.3g} s with {workers.start} workers ({source}), {efficiency}")
    if arguments.steps:
        return speed, arguments.steps
    if arguments.node_hours:
        return speed, max(1, math.ceil(arguments.node_hours * HOUR / speed.step_work))
    if from_runs and from_runs.steps:
        facts.notes.append(f"as many steps as {printable(from_runs.succeeded, 80)} had")
        return speed, from_runs.steps
    raise InvalidSettings("--steps", "how much is to be trained is not known", "Write --steps N or --node-hours H")


def _trace(word: str) -> Trace:
    return read_trace(SHIPPED_TRACES / f"{word}.csv" if word in shipped() else Path(word))


def _price(arguments: Namespace, facts: _Facts) -> tuple[Price, Tariff]:
    """Price of the machine, by the price book that is named first. Raises InvalidSettings."""
    name = arguments.prices
    if name is None and facts.found is not None:
        from elastic_training.cost.price_book import named_book

        name = named_book(facts.found.price_book)
    book = read_prices(EXAMPLE_BOOK if not name or name == EXAMPLE else Path(name))
    wanted = arguments.market or (facts.found.machine if facts.found else None)
    if not wanted:
        raise InvalidSettings("--market", "the machine type is not known", f"Choose from {', '.join(book)}")
    price = _named(book, wanted)
    note = f"{price.name}: ${price.spot:g} spot, ${price.on_demand:g} on demand an hour"
    facts.notes.append(f"{note} (price book {printable(name or EXAMPLE)}, {price.region}, {price.date})")
    return price, Tariff(price.on_demand, price.spot)


def _named(book: Mapping[str, Price], wanted: str) -> Price:
    """The price of ``cloud/type``, of a type, or of the only type that begins so."""
    tests: Sequence[Callable[[Price], bool]] = (
        lambda each: wanted in (each.name, each.instance),
        lambda each: each.name.startswith(wanted) or each.instance.startswith(wanted),
    )
    for test in tests:
        found = [each for each in book.values() if test(each)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(each.name for each in found[:10])
            raise InvalidSettings("--market", f"{printable(wanted, 80)} may be {names}", "Write the whole name")
    remedy = f"Choose from {', '.join(list(book)[:10])}, or add it to a price book"
    raise InvalidSettings("--market", f"{printable(wanted, 80)} is not in the price book", remedy)


def _markets(
    arguments: Namespace, facts: _Facts, traces: list[Trace], price: Price, tariff: Tariff, workers: WorkersSpec
) -> tuple[list[Trace], Tariff]:
    """The markets' newest days, and the prices of those that have none."""
    found = [newest(trace, arguments.days * DAY) for trace in traces]
    if arguments.ec2:
        if price.cloud != "aws":
            raise InvalidSettings("--ec2", f"{price.name} is not a machine of AWS", "Write --market of an EC2 type")
        end = datetime.now(UTC)
        begin = end - timedelta(days=arguments.days)
        changes = fetch_changes(arguments.ec2, [price.instance], begin, end)
        machines = 2 * max(workers.maximum, workers.start)
        found += ec2_markets(changes, begin, end, machines=machines, ceiling=price.on_demand)
        tariff = replace(tariff, spot=mean_prices(changes, begin, end).get(price.instance, tariff.spot))
        facts.notes.append(
            f"EC2's prices of {printable(arguments.ec2, 40)}, ${tariff.spot:.4f} spot in the mean: EC2 does not tell "
            "when machines were taken, so those of its zones go only while the price is above on demand"
        )
    if not found:
        found = [newest(_trace(name), arguments.days * DAY) for name in shipped()]
        names = ", ".join(trace.name for trace in found)
        facts.notes.append(f"markets: {names} are made up, and none was recorded: write --trace FILE for your own")
    return found, tariff


class _Progress:
    """Runs that are done, for people who wait at a terminal."""

    def __init__(self, whole: int) -> None:
        self._done, self._whole, self._shown = 0, whole, sys.stderr.isatty()

    def step(self) -> None:
        self._done += 1
        if self._shown:
            sys.stderr.write(f"\r{self._done} of {self._whole} runs ")

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
