"""Make the virtual environments that everything else in this repository runs in.

========================  ======================================================================
``.venv``                 Airflow, the provider and the runtime (editable), linters; no torch
``.venv-trainer``         torch, Horovod and the runtime (editable), as in the trainer's image
``.venv-tensorflow``      the same with TensorFlow instead, or with both: only when it is asked for
``.venv-frameworks``      ``.venv-trainer`` with Accelerate, DeepSpeed, Lightning, Megatron-Core …: the same
``.venv-scripts``         ``.venv-trainer`` with Accelerate, Datasets, Lightning, torchvision, Transformers: the same
``.venv-ray``             Ray, beside what ``.venv-trainer`` has: the same
``.venv-torchft``         torch and TorchFT, a peer of the benchmarks: the same
``.venv-site``            Sphinx for the documentation's site, twine: the same
``.venv-manifests``       what checks the manifests of runs: the same
``.venv-spark``           pyspark, for the tests in Spark: the same
========================  ======================================================================

``python tools/environments.py [FAMILY]``: ``torch`` (the default), ``tensorflow``, ``both``, ``frameworks`` or
``scripts``, or instead ``torchft``, ``ray``, ``site``, ``manifests`` or ``spark``; ``.venv`` each time.

Does nothing, quickly, when an environment is already as its requirements say. Only the standard library is used here:
this runs before anything is installed. Called by ``tools/setup``, which finds the interpreter.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "setup"
LOCKS = ROOT / "requirements"
"""Of each package the version and the digests of its files, without which nothing is installed: tools/locks.py."""
AIRFLOW = ROOT / ".venv"
UV = AIRFLOW / "bin" / "uv"
BUILD_HOROVOD = ROOT / "images" / "trainer" / "build-horovod.sh"
TORCH = "2.13.0"
HOROVOD = "0.28.1"
HOROVOD_PATCH = BUILD_HOROVOD.parent / "patches" / f"horovod-{HOROVOD}.patch"
PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Trainer:
    """An environment of a trainer."""

    environment: Path
    lock: Path
    """All but torch, which has wheels of its own for machines without a GPU, and Horovod, which is built."""
    frameworks: tuple[str, ...]
    """That Horovod is built for."""


_TENSORFLOW = ROOT / ".venv-tensorflow"
TRAINERS = {
    "torch": Trainer(ROOT / ".venv-trainer", LOCKS / "trainer.txt", ("torch",)),
    "tensorflow": Trainer(_TENSORFLOW, LOCKS / "trainer-tensorflow.txt", ("tensorflow",)),
    "both": Trainer(_TENSORFLOW, LOCKS / "trainer-tensorflow.txt", ("torch", "tensorflow")),
    "frameworks": Trainer(ROOT / ".venv-frameworks", LOCKS / "trainer-frameworks.txt", ("torch",)),
    "scripts": Trainer(ROOT / ".venv-scripts", LOCKS / "trainer-scripts.txt", ("torch",)),
}
"""By family."""
TOOLS = {
    "torchft": "TorchFT",
    "ray": "Ray",
    "site": "Sphinx, twine",
    "manifests": "kubernetes-validate, checkov",
    "spark": "pyspark",
}
"""Of the environments ``.venv-NAME`` that have nothing but the lock of that name, and TorchFT its torch."""


class StepFailed(Exception):
    """A command did not succeed; the end of its output has been shown."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Says what is going on, with the seconds since the start."""

    started: float

    def say(self, text: str) -> None:
        """Print one line at once."""
        print(f"setup {time.monotonic() - self.started:5.0f} s  {text}", flush=True)

    def step(self, title: str, command: Sequence[str | Path]) -> None:
        """Run a command, its output to a log; every :data:`PROGRESS_SECONDS` say how far it is.

        Raises:
            StepFailed: it ended with another status than 0.
        """
        self.say(title)
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{title.partition(':')[0].lstrip('.')}-{hashlib.sha256(title.encode()).hexdigest()[:8]}.log"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            while process.returncode is None:
                try:
                    process.wait(PROGRESS_SECONDS)
                except subprocess.TimeoutExpired:
                    self.say(f"    {_how_far(log)[:90]}")
        if process.returncode:
            print(_last_lines(log, 30), file=sys.stderr)
            raise StepFailed(f"{title}: status {process.returncode}; the whole output is in {log}")


def _how_far(log: Path) -> str:
    """The newest line with make's percentage, else the newest line."""
    lines = _last_lines(log, 200).splitlines() or [""]
    return next((line for line in reversed(lines) if "%]" in line), lines[-1]).strip()


def _last_lines(log: Path, count: int) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-count:])


def digest(*inputs: Path, words: Sequence[str] = ()) -> str:
    """What an environment is made from, as one value: when it differs, the environment is brought up to date."""
    sums = hashlib.sha256(f"{sys.version} {Path(sys.executable).resolve()} {ROOT} {' '.join(words)}".encode())
    for path in (Path(__file__), LOCKS / "uv.txt", *inputs):
        sums.update(path.read_bytes())
    return sums.hexdigest()


@contextmanager
def up_to_date(environment: Path, wanted: str) -> Iterator[bool]:
    """Whether the environment is as wanted; if not, the body makes it so, and that is noted when it succeeds."""
    stamp = environment / "setup-digest"
    if stamp.is_file() and stamp.read_text() == wanted:
        yield True
        return
    stamp.unlink(missing_ok=True)
    yield False
    stamp.write_text(wanted)


def make_airflow(progress: Progress) -> None:
    """Bring ``.venv`` up to date."""
    requirements = LOCKS / "airflow.txt"
    provider, runtime = ROOT / "provider", ROOT / "images" / "trainer"
    wanted = digest(requirements, provider / "pyproject.toml", runtime / "pyproject.toml")
    with up_to_date(AIRFLOW, wanted) as done:
        if done:
            return
        create(AIRFLOW, progress)
        progress.step(".venv: uv", [*pip(AIRFLOW), "--quiet", "-r", LOCKS / "uv.txt"])
        progress.step(".venv: Airflow, linters, test tools", locked_packages(AIRFLOW, requirements))
        progress.step(".venv: provider and runtime, editable", [*editable(AIRFLOW), "-e", runtime, "-e", provider])
        progress.step(".venv: compiled modules", compiled(AIRFLOW))


def make_trainer(trainer: Trainer, progress: Progress) -> None:
    """Bring a trainer's environment up to date; needs the uv of ``.venv``."""
    environment = trainer.environment
    name, python, runtime = environment.name, environment / "bin" / "python", ROOT / "images" / "trainer"
    torch_locks = (LOCKS / "torch.txt", LOCKS / "torch-cpu.txt") if "torch" in trainer.frameworks else ()
    inputs = (trainer.lock, *torch_locks, BUILD_HOROVOD, HOROVOD_PATCH, runtime / "pyproject.toml")
    with up_to_date(environment, digest(*inputs, words=trainer.frameworks)) as done:
        if done:
            return
        create(environment, progress)
        progress.step(f"{name}: test tools, what Horovod needs", locked_packages(environment, trainer.lock))
        if torch_locks:
            progress.step(f"{name}: torch {TORCH}", [*pip(environment), "--no-deps", "-r", torch_lock(python)])
        wheel = horovod_wheel(python, trainer.frameworks, progress)
        progress.step(f"{name}: Horovod {HOROVOD}", [*uv(environment), "--no-deps", "--reinstall", wheel])
        progress.step(f"{name}: runtime, editable", [*editable(environment), "-e", runtime])
        progress.step(f"{name}: compiled modules", compiled(environment))
        for framework in trainer.frameworks:
            works = f"import horovod.{framework} as hvd; hvd.init(); assert hvd.gloo_built() and hvd.size() == 1"
            progress.step(f"{name}: Horovod starts with {framework}", [python, "-c", f"{works}; hvd.shutdown()"])


def make_tools(name: str, progress: Progress) -> None:
    """Bring an environment of tools up to date; needs the uv of ``.venv``."""
    environment, lock = ROOT / f".venv-{name}", LOCKS / f"{name}.txt"
    torch_locks = (LOCKS / "torch.txt", LOCKS / "torch-cpu.txt") if name == "torchft" else ()
    with up_to_date(environment, digest(lock, *torch_locks)) as done:
        if done:
            return
        create(environment, progress)
        progress.step(f"{environment.name}: {TOOLS[name]}", locked_packages(environment, lock))
        if name == "ray":  # Its trainings have what those of this machine have.
            [packages] = environment.glob("lib/python3.*/site-packages")
            [trainer] = (ROOT / ".venv-trainer").glob("lib/python3.*/site-packages")
            (packages / "trainer.pth").write_text(f"import site; site.addsitedir({str(trainer)!r})\n")
            # Parts of a node have 15 s to start.
            progress.step(f"{environment.name}: compiled modules", compiled(environment))
        if torch_locks:
            found = torch_lock(environment / "bin" / "python")
            progress.step(f"{environment.name}: torch {TORCH}", [*pip(environment), "--no-deps", "-r", found])


def create(environment: Path, progress: Progress) -> None:
    """Make an empty environment unless there is one of this very interpreter."""
    made_by = environment / "setup-python"
    if made_by.is_file() and made_by.read_text() == sys.executable:
        return
    progress.step(f"{environment.name}: empty environment", [sys.executable, "-m", "venv", "--clear", environment])
    made_by.write_text(sys.executable)


def uv(environment: Path) -> list[str | Path]:
    """The command that installs into an environment."""
    return [UV, "pip", "install", "--python", environment / "bin" / "python"]


def locked_packages(environment: Path, lock: Path) -> list[str | Path]:
    """The command that installs all of a lock into an environment."""
    # A lock is whole; torch, which some of them need, comes next.
    return [*uv(environment), "--no-deps", "--require-hashes", "-r", lock]


def pip(environment: Path) -> list[str | Path]:
    """The same with pip, whose own configuration says where packages are found."""
    return [environment / "bin" / "python", "-m", "pip", "install", "--require-hashes"]


def torch_lock(python: Path) -> Path:
    """The lock of the torch that pip finds: a CPU build if its configuration names a place for one, else PyPI's."""
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--ignore-installed",
        "--no-deps",
    ]
    told = subprocess.run([*command, "--report=-", f"torch=={TORCH}"], check=False, capture_output=True, text=True)
    if told.returncode:
        raise StepFailed(f"pip finds no torch {TORCH}: {told.stderr.strip()[-2000:]}")
    version = json.loads(told.stdout)["install"][0]["metadata"]["version"]
    return LOCKS / ("torch-cpu.txt" if version == f"{TORCH}+cpu" else "torch.txt")


def editable(environment: Path) -> list[str | Path]:
    """The command that installs this repository's own packages, everything they need being there already."""
    return [*uv(environment), "--no-deps", "--no-build-isolation"]


def compiled(environment: Path) -> list[str | Path]:
    """The command that compiles what is installed, as uv does not.

    Otherwise the first program that imports a module does it, and where ``PYTHONDONTWRITEBYTECODE`` is set, as it is in
    many containers, every program: seconds each, for one that imports Airflow or torch.
    """
    # Not `python -m compileall`: some modules are written for a later Python, and are no failure.
    program = "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2, workers=0)"
    return [environment / "bin" / "python", "-c", program]


def horovod_recipe() -> str:
    """Of what is built: another text when the script or the patch is another one."""
    return hashlib.sha256(BUILD_HOROVOD.read_bytes() + HOROVOD_PATCH.read_bytes()).hexdigest()[:12]


def horovod_wheel(python: Path, frameworks: Sequence[str], progress: Progress) -> Path:
    """Horovod's wheel for these frameworks, Python and platform: from the user's cache, or built into it.

    The cache is ``$XDG_CACHE_HOME/elastic-training/wheels`` (``~/.cache`` unless set).
    """
    program = (
        "import sys, sysconfig; from importlib.metadata import packages_distributions, version; "
        "names = packages_distributions(); "
        "print(*(f'{name}-{version(names[name][0])}' for name in sys.argv[1:]), sysconfig.get_platform())"
    )
    told = subprocess.run([python, "-c", program, *frameworks], check=True, capture_output=True, text=True)
    *versions, platform = told.stdout.split()
    key = f"horovod-{HOROVOD}-{'-'.join(versions)}-{sys.implementation.cache_tag}-{platform}-{horovod_recipe()}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "elastic-training" / "wheels" / key
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        if not any(folder.glob("*.whl")):
            title = f"{python.parent.parent.name}: build Horovod, one to four minutes"
            progress.step(title, [BUILD_HOROVOD, python, folder])
        return next(folder.glob("*.whl"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, so that two set-ups at once do not disturb each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Make ``.venv`` and the environment of a family, or of tools; 0 when they are ready."""
    parser = argparse.ArgumentParser(description="Make the virtual environments, or bring them up to date.")
    parser.add_argument(
        "family", nargs="?", choices=[*TRAINERS, *TOOLS], default="torch", help="of the trainer's environment"
    )
    family = parser.parse_args().family
    progress = Progress(time.monotonic())
    try:
        with locked(LOGS / "lock"):
            make_airflow(progress)
            if family in TOOLS:
                make_tools(family, progress)
                return 0
            trainer = TRAINERS[family]
            make_trainer(trainer, progress)
    except StepFailed as failure:
        print(f"setup failed: {failure}", file=sys.stderr)
        return 1
    holds = ", ".join((*trainer.frameworks, "Horovod"))
    progress.say(f"environments are ready: {AIRFLOW.name} (Airflow), {trainer.environment.name} ({holds})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
