"""Verifies the receipt of a run, and replays its steps, in the interpreter of local runs: it has numpy, and torch."""

from __future__ import annotations

import os
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable

from elastic_runtime.checkpoint.store import validate_store_uri
from elastic_runtime.documents import to_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_training.clusters.local_python import SETTING, launcher_environment
from elastic_training.clusters.registry import local_settings
from elastic_training.console.command.exit_status import DONE, REFUSED


def verify(run: str, spec_of: Callable[[], RunSpec]) -> int:
    """Verify what lies at a URI of checkpoints, or beside those of a run. Return the exit status; blocks.

    Raises:
        InvalidSettings: it is no store, or the run has none.
    """
    if "://" in run:
        validate_store_uri(run, "RUN")
        return _audit("verify", run)
    spec = spec_of()
    if spec.checkpoint is None:
        raise InvalidSettings("RUN", f"{run} has no checkpoint store, so it has no receipt", "Set checkpoint_uri")
    return _audit("verify", spec.checkpoint.uri)


def replay(spec: RunSpec, arguments: Namespace) -> int:
    """Train some steps of a run again, on this machine. Return the exit status; blocks."""
    with tempfile.NamedTemporaryFile("w", prefix="elastic-replay-", suffix=".json") as file:  # Of mode 0600.
        file.write(to_json(spec))
        file.flush()
        options = {name: getattr(arguments, name) for name in ("step", "workers", "within", "timeout")}
        return _audit("replay", file.name, *(f"--{name}={value}" for name, value in options.items()))


def _audit(*words: str) -> int:
    _, python = local_settings()
    command = [python, "-P", "-m", "elastic_runtime.audit", *words]
    try:
        done = subprocess.run(command, env=launcher_environment(os.environ), check=False)
    except OSError as error:
        raise InvalidSettings(SETTING, f"{python} cannot be started: {error.strerror}", "Name an interpreter") from None
    return DONE if done.returncode == 0 else REFUSED
