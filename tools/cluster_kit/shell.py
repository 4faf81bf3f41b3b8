"""Run commands, wait for things, say how far we are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster_kit.errors import ClusterError

PROGRESS_SECONDS = 10.0


def newest_line(log: Path) -> str:
    """The newest line with make's percentage, else the newest line."""
    lines = log.read_text(errors="replace").strip().splitlines()[-200:] or [""]
    return next((line for line in reversed(lines) if "%]" in line), lines[-1]).strip()


def run(
    *command: str | Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str = "",
    stdin: Path = Path(os.devnull),
    seconds: float = 120.0,
) -> str:
    """Run a command to its end.

    Args:
        command: program and arguments.
        environment: instead of this process' own.
        folder: to run it in.
        text: its standard input.
        stdin: file to read that from, when there is no ``text``.
        seconds: after which it is killed.

    Returns:
        Its standard output.

    Raises:
        ClusterError: it is not there, ran too long, or ended with a status other than 0.
    """
    name = Path(command[0]).name
    try:
        with stdin.open("rb") as stream:
            source = {"input": text} if text else {"stdin": stream}
            done = subprocess.run(
                command,
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                **source,
            )
    except FileNotFoundError as error:
        raise ClusterError(f"{name} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{name} did not end within {seconds:.0f} s: {' '.join(map(str, command))}") from error
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise ClusterError(f"{' '.join(map(str, command))}: status {done.returncode}: {words}")
    return done.stdout


def succeeds(*command: str | Path, environment: Mapping[str, str] | None = None, seconds: float = 20.0) -> bool:
    """Whether a command is there and ends well in time."""
    try:
        run(*command, environment=environment, seconds=seconds)
    except ClusterError:
        return False
    return True


def wait_until(condition: Callable[[], bool], what: str, seconds: float, *, every: float = 0.2) -> None:
    """Return as soon as the condition holds.

    Raises:
        ClusterError: it does not after ``seconds``; the message names ``what`` was waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(every)


@dataclass(frozen=True, slots=True)
class Progress:
    """Lines on stderr with the seconds since the start."""

    title: str = "cluster"
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Print one line at once."""
        print(f"{self.title} {time.monotonic() - self.started:5.1f} s  {text}", file=sys.stderr, flush=True)

    def step(
        self,
        title: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        how_far: Callable[[Path], str] = newest_line,
    ) -> None:
        """Run a long command, its output to ``log``; every :data:`PROGRESS_SECONDS` say how far it is by that.

        Raises:
            ClusterError: it ended with another status than 0; the end of its output is shown.
        """
        self.say(title)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            said = ""
            try:
                while process.returncode is None:
                    try:
                        process.wait(PROGRESS_SECONDS)
                    except subprocess.TimeoutExpired:
                        before, said = said, how_far(log)[:90]
                        self.say(f"    {'still: ' if said == before else ''}{said}")
            finally:
                if process.returncode is None:  # ctrl-C, say: make's children, too
                    os.killpg(process.pid, signal.SIGTERM)
                    process.wait()
        if process.returncode:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            raise ClusterError(f"{title}: status {process.returncode}; the whole output is in {log}\n{end}")
