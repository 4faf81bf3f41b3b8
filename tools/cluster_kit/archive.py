"""What is in an image archive."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster_kit.errors import ClusterError

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    """One image of an archive."""

    names: tuple[str, ...]
    """With their tags."""
    config: str
    """Name of the file in the archive that holds its configuration."""
    layers: tuple[str, ...]
    """Names of the files in the archive, the base first."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A docker-archive, as ``docker save`` and ``buildah push docker-archive:`` write it."""

    path: Path
    digest: str
    """Differs when the images in it, or their names, differ."""
    images: tuple[Image, ...]

    @classmethod
    def read(cls, path: Path) -> Archive:
        """Look into the archive; takes no time, however large it is.

        Raises:
            ClusterError: there is no such archive.
        """
        with _opened(path) as tar:
            manifest = _member(tar, "manifest.json").read()
        images = tuple(
            Image(tuple(each["RepoTags"] or ()), each["Config"], tuple(each["Layers"])) for each in json.loads(manifest)
        )
        # The manifest names configurations and layers by their digests.
        return cls(path, hashlib.sha256(manifest).hexdigest(), images)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all images."""
        return tuple(name for image in self.images for name in image.names)

    def content(self, file: str) -> bytes:
        """Of a small file in it."""
        with _opened(self.path) as tar:
            return _member(tar, file).read()

    def in_image(self, path: str) -> bytes:
        """Of a small file in its first image, as the newest layer that has it says.

        Raises:
            ClusterError: no layer has it.
        """
        with _opened(self.path) as tar:
            for layer in reversed(self.images[0].layers):
                with tarfile.open(fileobj=_member(tar, layer)) as files:
                    if path in files.getnames():
                        return _member(files, path).read()
        raise ClusterError(f"there is no /{path} in the image in {self.path}")

    def extract(self, files: Sequence[str], target: Path) -> Iterator[tuple[str, str]]:
        """Copy files out, each under its sha256 into ``target``; yields the file's name in here and its sha256."""
        unfinished = target / "unfinished"
        with _opened(self.path) as tar:
            for file in files:
                source = _member(tar, file)
                with unfinished.open("w+b") as stream:
                    shutil.copyfileobj(source, stream, _CHUNK)
                    stream.seek(0)
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
                unfinished.rename(target / digest)
                yield file, digest


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path) as tar:
            yield tar
    except (OSError, KeyError, tarfile.TarError) as error:
        raise ClusterError(f"{path} is not a docker-archive: {error}") from error


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.extractfile(name)
    if member is None:
        raise KeyError(f"{name} is no file")
    return member


def write_tar(path: Path, files: dict[str, bytes], *, mode: int = 0o644) -> None:
    """Write an archive of small files."""
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
