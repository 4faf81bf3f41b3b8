"""Settings of how a training survives: lost workers and failed ranks, durable checkpoints, restarted scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from elastic_runtime.agent.command import is_own_interpreter, parse_arguments
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.kubernetes.quantities import bytes_of, quantity_of
from elastic_runtime.run.spec import (
    LEAST_FACTOR,
    LEAST_GROWTH,
    MOST_FACTOR,
    MOST_GROWTH,
    MOST_MEMORY,
    CheckpointSpec,
    NoticeService,
    RecoveryMode,
    RecoverySpec,
    RestartSpec,
    Stragglers,
    Timing,
)
from elastic_training.kubernetes_syntax import quantity
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import (
    BoolOrTemplate,
    Duration,
    IntOrTemplate,
    member_of,
    parse_bool,
    real_number,
    seconds_of,
    settings_of,
    whole_number,
)


@dataclass(frozen=True, slots=True)
class Recovery(Settings):
    """Settings for lost workers and failed ranks. Bare numbers are seconds."""

    mode: str = RecoveryMode.ELASTIC.value
    """``elastic``: train with whatever is there, from ``workers.min``. ``fixed``: only at exactly the wanted size."""
    max_wait: Duration = timedelta(minutes=30)
    """Longest time with too few workers before the run fails."""
    start_timeout: Duration = timedelta(minutes=10)
    """Longest time from the launcher's start to the first training."""
    max_pause: Duration = timedelta(days=7)
    """Longest pause before the run fails, without another try; 0: no limit."""
    reset_limit: IntOrTemplate | None = None
    """Most resets forced by lost workers or failed ranks; resizes do not count. None: no limit."""
    rank_failures: IntOrTemplate = 10
    """Most ranks that may end by themselves with an error, over the whole run."""
    lease: Duration = timedelta(hours=6)
    """A run that nobody in Airflow has waited for, for so long, ends itself; 0: never."""
    unwatched: Duration = timedelta(minutes=15)
    """The same for a run that no trigger has begun to watch since its task created or adopted it. Longer than any
    triggerer of yours may be away or full; of no effect where ``lease`` is 0."""
    notices: str = NoticeService.AUTO.value
    """Which metadata service announces that a machine will be taken, beside SIGTERM: ``aws``, ``aws-rebalance``
    (recommendations to rebalance count too), ``gcp``, ``azure``, ``alibaba``, ``none``; ``auto``: on Kubernetes the one
    that is found, on this machine none."""
    standstill: Duration | None = None
    """Longest time without a commit, while ranks with a state train, before the rank at fault is replaced. None: ten
    minutes, or 20 times the longest recent time between two commits if that is more; 0: no limit."""
    stragglers: str = Stragglers.REPORT.value
    """What is done about a worker that holds the others back: ``off``, ``report`` it, or ``replace`` it, twice an hour
    at most, and not below ``workers.min``."""
    factor: float | str | Any = 1.5
    """A worker holds the others back if its own work takes so many times as long as theirs: 1.1 to 100."""
    window: Duration = timedelta(minutes=5)
    """For so long: five seconds to a day."""
    compare: BoolOrTemplate = True
    """Whether a rank is replaced that has not begun the same collectives and steps as the others by a commit."""
    grow_memory: float | str | Any | None = None
    """Times its memory limit that a worker comes back with after it ran out of memory: 1.1 to 10. Needs ``up_to``, and
    a limit in the workers' pods. None: the limit stays. In pods only."""
    up_to: str | int | None = None
    """Largest memory limit, such as ``"64Gi"``. If a worker with this limit runs out of memory, the run fails."""

    def __post_init__(self) -> None:
        self.known_spec()
        self.known().timing()

    def known_spec(self) -> RecoverySpec:
        """As far as it is known at parse. Raises InvalidSettings."""
        return self.known(grow_memory=LEAST_GROWTH, up_to=MOST_MEMORY).spec()

    @all_known()
    def spec(self) -> RecoverySpec:
        """For the launcher. Raises InvalidSettings."""
        limit, still, factor, most = self.reset_limit, self.standstill, self.grow_memory, self.up_to
        return RecoverySpec(
            mode=member_of("recovery.mode", self.mode, RecoveryMode),
            max_wait=seconds_of("recovery.max_wait", self.max_wait),
            start_timeout=seconds_of("recovery.start_timeout", self.start_timeout),
            max_pause=seconds_of("recovery.max_pause", self.max_pause, zero=True),
            reset_limit=None if limit is None else whole_number("recovery.reset_limit", limit, least=0),
            rank_failures=whole_number("recovery.rank_failures", self.rank_failures, least=0),
            notices=member_of("recovery.notices", self.notices, NoticeService),
            standstill=None if still is None else seconds_of("recovery.standstill", still, zero=True),
            stragglers=member_of("recovery.stragglers", self.stragglers, Stragglers),
            factor=real_number("recovery.factor", self.factor, least=LEAST_FACTOR, most=MOST_FACTOR),
            window=seconds_of("recovery.window", self.window),
            compare=parse_bool("recovery.compare", self.compare),
            grow_memory=None
            if factor is None
            else real_number("recovery.grow_memory", factor, least=LEAST_GROWTH, most=MOST_GROWTH),
            up_to=None if most is None else bytes_of(quantity("recovery.up_to", most)),
        )

    @all_known()
    def timing(self) -> Timing:
        """For the launcher. Raises InvalidSettings."""
        return Timing(
            lease=seconds_of("recovery.lease", self.lease, zero=True),
            unwatched=seconds_of("recovery.unwatched", self.unwatched),
        )


def check_growth(recovery: RecoverySpec, resources: Mapping[str, Mapping[str, Any]] | None) -> None:
    """Check that workers with these resources of Kubernetes can get more memory, if they are to. A template may.

    Raises:
        InvalidSettings: they have no limit, or the largest one already.
    """
    limits = (resources or {}).get("limits") or {}
    if recovery.up_to is None or is_template(limits):
        return
    limit = limits.get("memory")
    if limit is None:
        remedy = 'Write pods=Pods(worker=PodShape(resources={"limits": {"memory": "8Gi"}})), or leave grow_memory out'
        raise InvalidSettings("recovery.grow_memory", "the workers' pods have no memory limit that could grow", remedy)
    if not is_template(limit) and bytes_of(str(limit)) >= recovery.up_to:
        problem = f"{quantity_of(recovery.up_to)} is not more than the workers' memory limit, which is {limit}"
        raise InvalidSettings("recovery.up_to", problem, "Write more, or leave grow_memory and up_to out")


@dataclass(frozen=True, slots=True)
class Checkpoints(Settings):
    """How often durable checkpoints are written. Bare numbers are seconds."""

    every: Duration = timedelta(minutes=1)
    """Between two of them; one more is written on a reclaim notice and on the last commit."""
    keep: IntOrTemplate = 2
    """How many complete ones stay. At least 1."""

    def __post_init__(self) -> None:
        self.known().spec("", 0, "")

    @all_known()
    def spec(self, uri: str, fence: int, owner: str) -> CheckpointSpec:
        """For the launcher. Raises InvalidSettings."""
        return CheckpointSpec(
            uri=uri,
            every=seconds_of("checkpoints.every", self.every),
            keep=whole_number("checkpoints.keep", self.keep, least=1),
            fence=fence,
            owner=owner,
        )


@dataclass(frozen=True, slots=True)
class Restart(Settings):
    """Settings of scripts for torchrun or horovodrun: each change of the workers ends all ranks and starts the script.

    Bare numbers are seconds.
    """

    signal: str = "SIGTERM"
    """Upon which the script writes its checkpoint and ends: also ``SIGINT``, ``SIGHUP``, ``SIGUSR1``, ``SIGUSR2``."""
    grace: Duration = 25.0
    """Time that it has, before it is killed: at most ten minutes. Machines that are taken earlier do not wait."""

    def __post_init__(self) -> None:
        self.known().spec()

    @all_known()
    def spec(self) -> RestartSpec:
        """For the launcher. Raises InvalidSettings."""
        return RestartSpec(self.signal, seconds_of("restart.grace", self.grace, zero=True))


def restart_of(value: object) -> Restart:
    """Settings, or the same as a mapping. Raises InvalidSettings."""
    return settings_of(Restart, "restart", value, 'Restart(signal="SIGUSR1", grace=25)')


def check_restartable(command: object, *, warm: bool) -> None:
    """Raises InvalidSettings for a command whose ranks would not find each other."""
    remedy = 'Write the script that torchrun or horovodrun is given, as in ["python", "train.py"], with warm=True'
    if not warm:
        raise InvalidSettings("restart", "with warm=False, its ranks have no rendezvous", remedy)
    if not isinstance(command, Sequence) or not command or is_template(command[0]):
        return
    program = str(command[0])
    name = PurePath(program).name
    # Whether a path is that of the image's own Python is known there alone.
    if not (is_own_interpreter(program) or (name != program and name.startswith("python"))):
        problem = f"{program!r} is not Python, in whose warm process its ranks are given a rendezvous"
        raise InvalidSettings("command", problem, remedy)
    words = ["template" if is_template(word) else str(word) for word in command[1:]]
    if parse_arguments(words) is None:
        option = next((word for word in words if word != "-u"), "")
        if option in ("", "-", "-c", "-m"):
            raise InvalidSettings("command", "Python is given no script in it", remedy)
        problem = (
            f"with Python's option {option!r} ranks are not forked from the warm process, which gives them a rendezvous"
        )
        remedy = 'Set the variable for it ("python --help-env"), as in environment={"PYTHONWARNINGS": "ignore"}'
        raise InvalidSettings("command", problem, remedy)
