"""Check of the local runs' interpreter, before a run is created and by the test button of a connection."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Mapping

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import RunSpec

NEEDED = "elastic-runtime[torch], [horovod] or [tensorflow]"
"""Packages that the interpreter of local runs needs."""
ALWAYS, FRAMEWORKS, HOROVOD = ("elastic_runtime", "psutil", "cryptography"), ("torch", "tensorflow"), "horovod"
"""Packages that every run needs, frameworks of which one is enough, and what all but torch's own engines need."""
_EXTRAS = {"horovod": HOROVOD, "horovodrun": HOROVOD, "torch": "torch", "torchrun": "torch"}
"""By engine: the package that it needs, which is the name of the extra that has it, too."""
SETTING = "[elastic_training] local_python"
_ANSWER_TIMEOUT = 30.0
"""Seconds for its answer, on a busy machine."""
_PRIVATE = ("AIRFLOW", "_AIRFLOW")
_LOOK = "import importlib.util as u, json, sys; print(json.dumps([m for m in sys.argv[1:] if u.find_spec(m)]))"


def launcher_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Airflow's environment without Airflow: its variables hold connections, secrets and the database's address."""
    return {name: value for name, value in environ.items() if not name.upper().startswith(_PRIVATE)}


def modules_of(python: str, names: Collection[str], max_wait: float = _ANSWER_TIMEOUT) -> list[str]:
    """Those of the modules that this interpreter finds, without importing them. Blocks.

    Args:
        python: the interpreter.
        names: of top-level modules.
        max_wait: seconds for its answer.

    Raises:
        ClusterUnavailable: it does not answer in time, as on a machine that is overloaded.
        InvalidSettings: it is no Python that runs.
    """
    try:
        done = subprocess.run(
            [python, "-P", "-c", _LOOK, *names],
            capture_output=True,
            text=True,
            timeout=max_wait,
            check=True,
            env=launcher_environment(os.environ),
            cwd="/",
        )
        found = json.loads(done.stdout)
        return [name for name in names if name in found]
    except subprocess.TimeoutExpired:
        raise ClusterUnavailable(f"{python} has not answered in {max_wait:g} s") from None
    except (OSError, subprocess.SubprocessError, TypeError, ValueError) as error:
        problem, remedy = f"{python} cannot be started: {printable(error)}", f"Name an interpreter with {NEEDED}"
        raise InvalidSettings(SETTING, problem, remedy) from None


def check_python(python: str, spec: RunSpec) -> None:
    """Whether it can run this run, as far as that can be told without importing anything. Blocks.

    Raises:
        ClusterUnavailable: it does not answer in time.
        InvalidSettings: it cannot; with the packages that are missing.
    """
    needed = [*ALWAYS, *_of_engine(spec.engine), *_of_observing(spec)]
    found = modules_of(python, [*needed, *FRAMEWORKS])
    lacking = [name for name in needed if name not in found]
    if HOROVOD in needed and not set(FRAMEWORKS) & set(found):
        lacking.append(" or ".join(FRAMEWORKS))
    if lacking:
        extra = _EXTRAS.get(spec.engine)
        remedy = f"Install {f'elastic-runtime[{extra}]' if extra else NEEDED}"
        further = ", ".join(name for name in _of_observing(spec) if name in lacking)
        remedy = f"{remedy} and {further}" if further else remedy
        problem = f"{python} has no {', '.join(lacking)}"
        raise InvalidSettings(SETTING, problem, f"{remedy} there, or name another interpreter")


def _of_engine(engine: str) -> tuple[str, ...]:
    """Nothing of another distribution's, which knows that itself."""
    return (_EXTRAS[engine],) if engine in _EXTRAS else ()


def _of_observing(spec: RunSpec) -> tuple[str, ...]:
    tensorboard = ("tensorboardX",) if spec.observe.tensorboard else ()
    return (*tensorboard, "prometheus_client") if spec.observe.prometheus is not None else tensorboard
