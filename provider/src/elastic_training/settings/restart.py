"""Restarting the ranks of scripts that are written for torchrun, as one writes it in a DAG file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from elastic_runtime.agent.command import is_own_interpreter, parse_arguments
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RestartSpec
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import Duration, seconds_of, settings_of


@dataclass(frozen=True, slots=True)
class Restart(Settings):
    """Settings of scripts for torchrun: each change of the workers ends all ranks and starts the script again.

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
    remedy = 'Write the script that torchrun is given, as in ["python", "train.py"], with warm=True'
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
