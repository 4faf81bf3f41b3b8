"""The locks: every package in one version, with the digests of its files, made from what the project says it needs.

``python tools/locks.py`` (``make requirements``) makes those anew that are stale, with uv, and keeps the versions
that still fit; with ``--upgrade`` all of them, in the newest versions. ``--check`` (``make lint``) only says which are
stale: each carries a digest of what it was made from. ``requirements/torch-cpu.txt`` is kept by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv" / "bin" / "uv"
_OPTIONS = ("--python-version=3.11", "--generate-hashes", "--no-emit-index-url")
_COMMAND = "make requirements"
_MADE_FROM = "# Made from inputs with the SHA-256 "


@dataclass(frozen=True, slots=True)
class Lock:
    """One file of pinned requirements. Paths are relative to the repository's root."""

    path: str
    inputs: tuple[str, ...]
    """Files ``*.in``, and ``pyproject.toml`` of which the dependencies count."""
    extras: tuple[str, ...] = ()
    """Of the ``pyproject.toml``."""
    options: tuple[str, ...] = ()
    """More, of ``uv pip compile``."""
    agrees_with: str | None = None
    """A lock that was made before: what stands in both has the same version."""
    through: tuple[str, tuple[str, ...]] | None = None
    """A ``pyproject.toml`` of this repository that the inputs name, and with which extras."""

    def wanted(self, root: Path) -> str:
        """A digest of all that decides what stands in the lock, comments apart, but for what PyPI has."""
        files = [(path, self.extras) for path in self.inputs] + ([self.through] if self.through else [])
        said = [sorted(line for path, extras in files for line in _lines(root / path, extras)), self.options]
        if self.agrees_with:
            said.append(sorted(re.findall(r"^[^#\s]\S*==\S+", (root / self.agrees_with).read_text(), re.MULTILINE)))
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    def stale(self, root: Path) -> bool:
        """Whether it was made from something else than what is wanted today, or is not there."""
        path = root / self.path
        return not path.is_file() or f"{_MADE_FROM}{self.wanted(root)}\n" not in path.read_text()

    def make(self, root: Path, *, upgrade: bool) -> None:
        """Have uv write it. Raises CalledProcessError; uv has said why."""
        constraint = ("--constraint", self.agrees_with) if self.agrees_with else ()
        extras = [f"--extra={extra}" for extra in self.extras]
        command = [UV, "pip", "compile", "--quiet", *_OPTIONS, *self.options, *extras, *constraint, *self.inputs]
        upgrading = ["--upgrade"] if upgrade else []
        naming = [f"--custom-compile-command={_COMMAND}", f"--output-file={self.path}"]
        subprocess.run([*command, *upgrading, *naming], cwd=root, check=True)
        path = root / self.path
        path.write_text(f"{_MADE_FROM}{self.wanted(root)}\n{path.read_text()}")


def _lines(path: Path, extras: Sequence[str]) -> Iterator[str]:
    """What a file says that is needed, without comments."""
    if path.suffix == ".toml":
        project = tomllib.loads(path.read_text())["project"]
        yield f"python {project['requires-python']}"
        yield from project["dependencies"]
        for extra in extras:
            yield from project["optional-dependencies"][extra]
        return
    for line in path.read_text().splitlines():
        requirement = re.sub(r"(^|\s+)#.*", "", line).strip()
        if requirement.startswith("-r "):
            yield from _lines(path.parent / requirement.removeprefix("-r "), extras)
        elif requirement:
            yield requirement


_RUNTIME = "images/trainer/pyproject.toml"
_IN_THE_IMAGE = ("certificates", "kubernetes", "s3", "prometheus", "tensorboard")
_ANY_PYTHON = ("--universal",)
"""The image's Python is its base's."""
_TRAINER = "requirements/trainer.txt"
_TENSORFLOW = "requirements/trainer-tensorflow.txt"
"""numpy and protobuf are older ones than torch takes."""
LOCKS = (
    Lock("requirements/uv.txt", ("requirements/uv.in",)),
    Lock(
        "requirements/airflow.txt",
        ("provider/pyproject.toml", "requirements/airflow.in"),
        options=("--no-emit-package=elastic-runtime",),
        through=(_RUNTIME, ("certificates", "kubernetes")),
    ),
    Lock(_TRAINER, (_RUNTIME, "requirements/trainer.in"), (*_IN_THE_IMAGE, "gcs", "azure")),
    Lock(
        "requirements/trainer-frameworks.txt",
        (_RUNTIME, "requirements/trainer.in", "requirements/frameworks.in"),
        _IN_THE_IMAGE,
        ("--excludes=requirements/no-torch.in",),
        _TRAINER,
    ),
    Lock(
        "requirements/trainer-scripts.txt",
        (_RUNTIME, "requirements/trainer.in", "requirements/scripts.in"),
        _IN_THE_IMAGE,
        ("--excludes=requirements/no-torch.in",),
        "requirements/trainer-frameworks.txt",
    ),
    Lock("requirements/horovod.txt", ("requirements/horovod.in",), (), _ANY_PYTHON, _TRAINER),
    Lock("requirements/torch.txt", ("requirements/torch.in",), (), _ANY_PYTHON, _TRAINER),
    Lock("requirements/image.txt", (_RUNTIME, "requirements/image.in"), _IN_THE_IMAGE, _ANY_PYTHON, _TRAINER),
    Lock(_TENSORFLOW, (_RUNTIME, "requirements/trainer.in", "requirements/tensorflow.in"), _IN_THE_IMAGE),
    Lock(
        "requirements/horovod-tensorflow.txt",
        ("requirements/horovod.in", "requirements/tensorflow.in"),
        (),
        _ANY_PYTHON,
        _TENSORFLOW,
    ),
    Lock(
        "requirements/image-tensorflow.txt",
        (_RUNTIME, "requirements/image.in", "requirements/tensorflow.in"),
        _IN_THE_IMAGE,
        _ANY_PYTHON,
        _TENSORFLOW,
    ),
    Lock("requirements/image-build.txt", ("requirements/image-build.in",), (), _ANY_PYTHON),
    Lock("requirements/cuda-build.txt", ("requirements/cuda-build.in",), (), _ANY_PYTHON, "requirements/torch.txt"),
    Lock(
        "requirements/torchft.txt",
        ("requirements/torchft.in",),
        options=("--excludes=requirements/no-torch.in",),
        agrees_with=_TRAINER,
    ),
    Lock("requirements/ray.txt", ("requirements/ray.in",)),
    Lock("requirements/site.txt", ("requirements/site.in",)),
    Lock("requirements/manifests.txt", ("requirements/manifests.in",)),
    Lock("requirements/spark.txt", ("requirements/spark.in",)),
)


def main() -> int:
    """Make the locks, or check them; 1 when one is stale."""
    parser = argparse.ArgumentParser(description="Make the locks in requirements/ that are stale.")
    parser.add_argument("--check", action="store_true", help="only say which are stale, and fail if any is")
    parser.add_argument("--upgrade", action="store_true", help="make all of them, in the newest versions")
    arguments = parser.parse_args()
    if arguments.check:
        stale = [lock for lock in LOCKS if lock.stale(ROOT)]
        for lock in stale:
            problem = f"is stale: it was not made from what {', '.join(lock.inputs)} say now"
            print(f"{lock.path} {problem}. Run: {_COMMAND}", file=sys.stderr)
        return 1 if stale else 0
    for lock in LOCKS:
        if arguments.upgrade or lock.stale(ROOT):
            print(f"making {lock.path}", flush=True)
            lock.make(ROOT, upgrade=arguments.upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
