"""Trains a script from a shell or a notebook: what ``elastic-training run`` does."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from uuid import uuid4

from elastic_runtime.clock import utc_now
from elastic_runtime.errors import ClusterUnavailable, ElasticError, InvalidSettings, RunNotFound
from elastic_runtime.run.pool import check_pool_name
from elastic_runtime.run.spec import RESTARTING, RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.cluster import Cluster
from elastic_training.clusters.location import LOCAL
from elastic_training.clusters.registry import cluster_called
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import close, run
from elastic_training.console.command.exit_status import DONE, REFUSED
from elastic_training.console.command.output import print_error, print_line
from elastic_training.console.command.showing import print_end
from elastic_training.console.command.training_options import POOL_VARIABLE
from elastic_training.following.follow import Ending, Follower
from elastic_training.identity.naming import run_name
from elastic_training.lifecycle.retention import Retention, configured, remove
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.operators.elastic_training import ElasticTrainingOperator, failure_block
from elastic_training.redaction.free_text import without_secrets
from elastic_training.redaction.values import masked
from elastic_training.settings.recovery import Recovery, Restart
from elastic_training.settings.training_pool import POOL
from elastic_training.settings.workers import Workers

LEASE = 600.0
"""Seconds after which a training ends whose command is gone without a word, as with its terminal's machine."""
_ENDING = 60.0
"""Seconds that a training has to end after Ctrl-C, before the command leaves it."""
_OWNER = "shell:"
"""Begin of the owner of a run that no task has."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def carry_out(arguments: Namespace) -> int:
    """Return the exit status. Raise ElasticError, or KeyboardInterrupt where nothing was begun."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        with _signals_as_ctrl_c():
            training = _Training.of(arguments)
            return training.start() if arguments.detach else training.train()
    finally:
        close()


@dataclass(frozen=True, slots=True)
class _Training:
    """One training of this command."""

    cluster: Cluster
    place: str
    spec: RunSpec
    owner: str

    @classmethod
    def of(cls, arguments: Namespace) -> _Training:
        task = task_of(arguments, Path.cwd(), os.environ)
        task.remember_secrets()
        name = run_name("shell", uuid4().hex, Path(arguments.script).stem)
        spec = task.spec(name)
        timing = replace(spec.timing, lease=0.0 if arguments.detach else LEASE)
        return cls(
            task.creating_cluster(), task.cluster, replace(spec, timing=timing), f"{_OWNER}{_person()}:{uuid4().hex}"
        )

    def start(self) -> int:
        """Create the run, and leave it."""
        self._create()
        print_line(self.spec.name)
        return DONE

    def train(self) -> int:
        """Create the run, and print its log until its end."""
        try:
            ref = self._create()
            print_line(f"run {ref.name}: {self.spec.workers.start} workers of {self.place} asked for; Ctrl-C ends it")
            return self._until_end(ref, run(self._follow(ref)))
        except (KeyboardInterrupt, OSError):  # OSError: nobody reads what it prints.
            self._cancel()
            raise

    def _create(self) -> RunRef:
        run(_sweep(configured()))
        return run(self.cluster.claim(self.spec, self.owner)).ref

    async def _follow(self, ref: RunRef) -> Status | None:
        """The final status; None: others have taken or removed it. Raises ElasticError."""
        followed = await Follower(self.cluster, ref, self.owner, _Terminal()).follow()
        if followed.ending is not Ending.FINISHED:
            print_error(f"run {ref.name} is out of this command's hands: {followed.detail}")
            return None
        return followed.status

    def _until_end(self, ref: RunRef, status: Status | None) -> int:
        if status is None:
            return REFUSED
        shown = without_secrets(status, masked)
        if first := shown.first_failure:
            block = failure_block(first, self.cluster.worker_log(ref.name, first.worker))
            for line in block.splitlines():
                print_error(line)
        print_end(ref.name, shown)
        return exit_status(status)

    def _cancel(self) -> None:
        """End what may have begun, and wait for that; a second Ctrl-C does not."""
        name = self.spec.name
        try:
            with suppress(OSError):
                print_error(f"ending run {name}; Ctrl-C again leaves it to end by itself")
            run(self._cancelled())
        except (KeyboardInterrupt, ElasticError, OSError, TimeoutError) as error:
            with suppress(OSError):
                print_error(f"run {name} may go on for {LEASE:.0f} s{f': {error}' if str(error) else ''}")

    async def _cancelled(self) -> None:
        with suppress(RunNotFound):
            ref = await self.cluster.find(self.spec.name)
            await self.cluster.cancel(ref, f"{_person()} has ended it with Ctrl-C", self.owner)
            async with asyncio.timeout(_ENDING):
                await self._follow(ref)


def task_of(arguments: Namespace, folder: Path, environ: Mapping[str, str]) -> ElasticTrainingOperator:
    """Return the task that would train the same in a DAG, whose checks are these.

    Args:
        arguments: of the command.
        folder: in which the ranks run.
        environ: of the command; names the pool, and variables that ranks get.

    Raises:
        InvalidSettings: with what is wrong.
    """
    script = folder / arguments.script
    if not script.is_file():
        raise InvalidSettings("SCRIPT", f"{script} is not a file", "Write the path of a Python file")
    pool = None if arguments.local else arguments.pool or environ.get(POOL_VARIABLE)
    settings: dict[str, Any] = {
        "task_id": "run",
        "command": ["python", str(script), *arguments.of_script],
        "workers": Workers(
            min=arguments.min, start=arguments.workers, max=arguments.max or arguments.workers, gpus=arguments.gpus
        ),
        "cluster": f"{POOL}{check_pool_name(pool)}" if pool else LOCAL,
        "working_directory": str(folder),
        "environment": dict(_variable(each, environ) for each in arguments.env),
        "checkpoint_uri": arguments.checkpoints or "",
        "priority_weight": arguments.priority,
        "recovery": Recovery() if arguments.wait is None else Recovery(start_timeout=arguments.wait),
    }
    if arguments.engine in RESTARTING:
        settings["restart"] = Restart()
    if arguments.engine.startswith("horovod"):
        return ElasticHorovodOperator(**settings)
    return ElasticTorchOperator(**settings)


def _variable(given: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not _VARIABLE.fullmatch(name):
        raise InvalidSettings("--env", f"{name!r} is not the name of a variable", "Write NAME=VALUE, or NAME")
    if not equals and name not in environ:
        raise InvalidSettings("--env", f"{name} is not set here", f"Write {name}=VALUE")
    return name, value if equals else environ[name]


def exit_status(status: Status) -> int:
    """Return the exit status for a run that is over: its script's, with 128 and the number of a signal."""
    if status.phase is Phase.SUCCEEDED:
        return DONE
    code = status.exit_code or 0
    return 128 - code if code < 0 else code or REFUSED


class _Terminal:
    """A follower's log: standard output. What it says of itself goes to standard error."""

    def log(self, _level: int, message: str, /, *args: object) -> None:
        for line in (message % args).split("\n"):
            print_line(line)

    def info(self, message: str, /, *args: object) -> None:
        print_error(message % args)

    warning = info


async def _sweep(retention: Retention) -> None:
    """Remove runs of this command, of anybody, that are over for longer than is kept; best effort."""
    if retention.age is None:
        return
    cluster, oldest = cluster_called(LOCAL), utc_now() - retention.age
    with suppress(ClusterUnavailable):
        for each in await cluster.list():
            ended = each.headline.finished or each.headline.updated
            if each.owner.startswith(_OWNER) and each.headline.phase.final and ended < oldest:
                with suppress(ElasticError):
                    await remove(cluster, each)


@contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """What ends a command ends its training: also SIGTERM, and the hang-up of its terminal."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "a user without a name"
