"""Docker if an engine answers, else buildah, which needs none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from cluster_kit.errors import ClusterError, NoWay
from cluster_kit.image.base import SUITE, make_base
from cluster_kit.image.inputs import DOCKERFILE, Inputs
from cluster_kit.shell import Progress, run, succeeds

_OFFICIAL_BASE = f"debian:{SUITE}-slim"
_OWN_BASE = f"localhost/elastic-training/base:{SUITE}"
_ENVIRONMENT = "localhost/elastic-training/environment"
_PULL_SECONDS = 120.0
_SAVE_SECONDS = 600.0
_KEPT_ENVIRONMENTS = 2
"""In the cache. Another one costs a minute, or six if Horovod has to be compiled for it."""
_NUMBER_IN_LOG = 11
"""Digits of an image's number as buildah prints it."""


class Builder(Protocol):
    """What Docker and buildah have in common."""

    def has(self, image: str) -> bool:
        """Whether there is an image of this name."""

    def build(self, context: Path, image: str, options: Sequence[str]) -> None:
        """Build an image from a context that is laid out.

        Args:
            context: folder with the Dockerfile and what it copies.
            image: the name that it gets.
            options: beyond those that every build has; both tools know them.
        """

    def save(self, image: str, archive: Path) -> None:
        """Write an image as a docker-archive."""

    def default_base(self) -> str | None:
        """A base image instead of the Dockerfile's, where that cannot be had."""

    def tidy(self, environment: str) -> None:
        """Remove what no build of today needs; ``environment`` is in use."""


def build_archive(builder: Builder, inputs: Inputs, context: Path, secrets: Mapping[str, Path], archive: Path) -> None:
    """Make the image in two steps, so that new sources alone take seconds: what they need, then the sources."""
    environment = f"{_ENVIRONMENT}:{inputs.environment_digest()[:16]}"
    if not builder.has(environment):
        base = None if "BASE" in inputs.arguments else builder.default_base()
        arguments = {**inputs.arguments, **({"BASE": base} if base else {})}
        options = [
            "--target=environment",
            *(f"--secret=id={name},src={path}" for name, path in secrets.items()),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        ]
        builder.build(context, environment, options)
    builder.build(context, inputs.tag, [f"--build-arg=ENVIRONMENT={environment}"])
    builder.save(inputs.tag, archive)
    builder.tidy(environment)


def choose_builder(cache: Path, progress: Progress) -> Builder:
    """What works on this machine.

    Raises:
        NoWay: nothing does.
    """
    if succeeds("docker", "info"):
        return Docker(cache, progress)
    debian_root = os.geteuid() == 0 and shutil.which("apt-get") is not None
    missing = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]
    if missing and debian_root:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        log = cache / "log" / "apt.log"
        progress.step("apt-get update", ["apt-get", "update", "-q"], log, environment=environment)
        install = ["apt-get", "install", "-yq", "--no-install-recommends", *missing]
        progress.step(f"apt-get install {' '.join(missing)}", install, log, environment=environment)
    elif os.geteuid() != 0 or "buildah" in missing:
        raise NoWay(
            "no way to build an image here: no Docker engine answers, and buildah wants to be run as root (Debian: "
            "apt-get install buildah debootstrap)"
        )
    return Buildah(cache, progress)


@dataclass(frozen=True, slots=True)
class Docker(Builder):
    """Build with a Docker engine."""

    cache: Path
    progress: Progress

    @override
    def has(self, image: str) -> bool:
        return succeeds("docker", "image", "inspect", image)

    def build(self, context: Path, image: str, options: Sequence[str]) -> None:
        """With BuildKit, for the secrets."""
        command = ["docker", "build", f"--file={context / DOCKERFILE}", f"--tag={image}", *options, str(context)]
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        self.progress.step(f"docker build {image}", command, self.cache / "log" / "build.log", environment=environment)

    @override
    def save(self, image: str, archive: Path) -> None:
        run("docker", "save", f"--output={archive}", image, seconds=_SAVE_SECONDS)

    def default_base(self) -> str | None:
        """The Dockerfile's own."""
        return None

    def tidy(self, environment: str) -> None:
        """Docker keeps its own house (``docker system prune``)."""


@dataclass(frozen=True, slots=True)
class Buildah(Builder):
    """Build with buildah. Layers and images are in the cache, apart from the user's other images."""

    cache: Path
    progress: Progress

    @override
    def has(self, image: str) -> bool:
        return succeeds(*self._buildah(), "inspect", "--type=image", image)

    def build(self, context: Path, image: str, options: Sequence[str]) -> None:
        """With chroot instead of containers, and this machine's network: works inside a container, too."""
        how = ("--layers", "--isolation=chroot", "--network=host")
        command = [*self._buildah(), "bud", *how, f"--file={context / DOCKERFILE}", f"--tag={image}", *options]
        self.progress.step(f"buildah bud {image}", [*command, str(context)], self._log(image))

    @override
    def save(self, image: str, archive: Path) -> None:
        self.progress.say("writing the archive")
        run(*self._buildah(), "push", "--quiet", image, f"docker-archive:{archive}:{image}", seconds=_SAVE_SECONDS)

    def default_base(self) -> str | None:
        """The name of Debian's own image if it is there or can be pulled, else of one made here."""
        for name in (_OFFICIAL_BASE, _OWN_BASE):
            if self.has(name):
                return name
        if succeeds(*self._buildah(), "pull", "--quiet", _OFFICIAL_BASE, seconds=_PULL_SECONDS):
            return _OFFICIAL_BASE
        if not shutil.which("debootstrap"):
            raise ClusterError(f"{_OFFICIAL_BASE} cannot be pulled, and there is no debootstrap to make a base with")
        self.progress.say(f"{_OFFICIAL_BASE} cannot be pulled; a base is made here")
        archive = self.cache / "base.tar"
        make_base(archive, self.cache / "log" / "debootstrap.log", self.progress)
        container = run(*self._buildah(), "from", "scratch").strip()
        run(*self._buildah(), "add", "--quiet", container, archive, "/")
        run(*self._buildah(), "commit", "--quiet", "--rm", container, _OWN_BASE)
        archive.unlink()
        return _OWN_BASE

    def tidy(self, environment: str) -> None:
        """Keep the newest environments and the steps that led to them, which their logs name."""
        self._log(environment).touch()
        logs = sorted((self.cache / "log").glob("environment-*.log"), key=_age)
        for log in logs[_KEPT_ENVIRONMENTS:]:
            succeeds(*self._buildah(), "rmi", f"{_ENVIRONMENT}:{log.stem.removeprefix('environment-')}")
            log.unlink()
        steps = " ".join(log.read_text(errors="replace") for log in logs[:_KEPT_ENVIRONMENTS])
        # Those without a name of which no other was made. With each go those that only it was made of.
        listed = run(*self._buildah(), "images", "--all", "--quiet", "--no-trunc", "--filter=dangling=true")
        for image in set(listed.split()):
            number = image.removeprefix("sha256:")
            if number[:_NUMBER_IN_LOG] not in steps:
                succeeds(*self._buildah(), "rmi", number)

    def _log(self, image: str) -> Path:
        return self.cache / "log" / f"{image.rpartition('/')[2].replace(':', '-')}.log"

    def _buildah(self) -> tuple[str, ...]:
        return ("buildah", f"--root={self.cache / 'containers'}", "--runroot=/run/elastic-training-image")


def _age(path: Path) -> float:
    return -path.stat().st_mtime
