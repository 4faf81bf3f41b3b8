"""What the trainer's image is made from: if none of it has changed, neither has the image."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster_kit.image.pip_settings import PipSettings

ROOT = Path(__file__).resolve().parents[3]
TRAINER = Path("images", "trainer")
DOCKERFILE = TRAINER / "Dockerfile"
WHEELS = TRAINER / "wheels"
_SOURCES = TRAINER / "src"
_VERSION_FILE = _SOURCES / "elastic_runtime" / "__init__.py"
_LOCKS = (
    "cuda-build", "horovod", "horovod-tensorflow", "image", "image-build", "image-tensorflow", "torch", "torch-cpu",
)  # fmt: skip
_FILES = (*(Path("requirements", f"{name}.txt") for name in _LOCKS), TRAINER)
_LEFT_OUT = {"__pycache__", "wheels"}
_TORCH = re.compile(r"^ARG TORCH=torch==(\S+)$", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of one build."""

    arguments: Mapping[str, str]
    """Build arguments of the Dockerfile, where they differ from its own."""
    wheels: tuple[Path, ...]
    """Laid into the context, for pip to find."""
    tag: str
    """The image's name."""

    @classmethod
    def collect(cls, arguments: Mapping[str, str], tag: str | None, pip: PipSettings) -> Inputs:
        """Those of this repository and machine.

        Args:
            arguments: what the user wants otherwise than the Dockerfile says.
            tag: the image's name; by default of the runtime's version, the family unless that is torch, and ``cuda``
                where Horovod is built with operations of GPUs. It begins
                with ``localhost/``, so that no node ever asks a registry for it.
            pip: where pip finds wheels here. A CPU build of torch that lies there is used, unless the user names
                another torch or another base.
        """
        wheels: tuple[Path, ...] = ()
        family = arguments.get("FAMILY", "torch")
        if not {"TORCH", "TORCH_INDEX", "BASE"} & set(arguments) and family != "tensorflow":
            version = _found(_TORCH, ROOT / DOCKERFILE)
            wheels = pip.wheels(f"torch-{version}-cp311-*linux*_{os.uname().machine}.whl")
        if wheels:
            arguments = {**arguments, "TORCH_INDEX": ""}
        version = _found(_VERSION, ROOT / _VERSION_FILE)
        version += "" if family == "torch" else f"-{family}"
        version += "-cuda" if arguments.get("HOROVOD_GPU_OPERATIONS") else ""
        return cls(arguments, wheels, tag or f"localhost/elastic-training/trainer:{version}")

    def digest(self) -> str:
        """Of all of it."""
        return self._digest(self._files())

    def environment_digest(self) -> str:
        """Of all but the runtime's sources: everything in the image that takes long to make."""
        return self._digest(
            path for path in self._files() if path == _VERSION_FILE or not path.is_relative_to(_SOURCES)
        )

    def _digest(self, files: Iterable[Path]) -> str:
        wheels = [(path.name, path.stat().st_size) for path in self.wheels]
        sums = hashlib.sha256(json.dumps([sorted(self.arguments.items()), wheels, self.tag]).encode())
        for path in files:
            content = hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
            sums.update(f"{path} {(ROOT / path).stat().st_mode & 0o111} {content}\n".encode())
        return sums.hexdigest()

    def lay_out(self, folder: Path) -> None:
        """Make the build's context: only what is named in here."""
        for path in self._files():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, folder / path)
        (folder / WHEELS).mkdir()
        for wheel in self.wheels:
            shutil.copy2(wheel, folder / WHEELS)

    def _files(self) -> Iterator[Path]:
        for start in _FILES:
            inside = sorted((ROOT / start).rglob("*")) if (ROOT / start).is_dir() else [ROOT / start]
            relative = (path.relative_to(ROOT) for path in inside if path.is_file())
            yield from (path for path in relative if not _LEFT_OUT & set(path.parts))


def _found(pattern: re.Pattern[str], path: Path) -> str:
    match = pattern.search(path.read_text())
    assert match is not None, f"{path} has no line {pattern.pattern}"
    return match[1]
