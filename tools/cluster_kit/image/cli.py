"""The command line of ``tools/image``."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster_kit.archive import Archive
from cluster_kit.debian.places import cache_folder
from cluster_kit.errors import ClusterError
from cluster_kit.image.builders import build_archive, choose_builder
from cluster_kit.image.inputs import ROOT, Inputs
from cluster_kit.image.pip_settings import PipSettings
from cluster_kit.shell import Progress

ARCHIVE = ROOT / "build" / "trainer-image.tar"
BILL = ".cdx.json"
"""Ending of the bill of materials beside an archive."""
BILL_IN_IMAGE = "usr/share/doc/elastic-training/trainer.cdx.json"
_KEPT = 2
"""Archives in the cache; each is most of a gigabyte."""
DESCRIPTION = """\
Build the trainer's image and leave it in build/trainer-image.tar (a docker-archive), and beside it its bill of
materials, build/trainer-image.cdx.json (CycloneDX). The image's name goes to stdout.

With Docker if an engine answers, else with buildah (as root; installed from Debian's packages if it is not there).
Nothing is done when nothing has changed, also in another clone of the repository: layers and archives are kept in
~/.cache/elastic-training/image. Remove that folder to start from a new base, with its security updates.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Build if need be; returns the exit status: 3 when this machine offers no way to build an image."""
    arguments = _parser().parse_args(words)
    try:
        pip = PipSettings.read()
        inputs = Inputs.collect(dict(arguments.build_arg), arguments.tag, pip)
        _provide(inputs, pip, Progress("image"))
    except ClusterError as error:
        print(f"image: {error}", file=sys.stderr)
        return error.exit_status
    print(inputs.tag)
    return 0


def _provide(inputs: Inputs, pip: PipSettings, progress: Progress) -> None:
    cache = cache_folder() / "image"
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another tools/image")
            fcntl.flock(lock, fcntl.LOCK_EX)
        archive = archives / f"{inputs.digest()}.tar"
        if not archive.exists():
            _build(inputs, pip, archive, cache, progress)
        os.utime(archive)
        for old in sorted(archives.glob("*.tar"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink()
            old.with_suffix(BILL).unlink(missing_ok=True)
        _link(archive, ARCHIVE)
        _link(archive.with_suffix(BILL), ARCHIVE.with_suffix(BILL))
    progress.say(f"{inputs.tag} is in {ARCHIVE.relative_to(ROOT)}, {ARCHIVE.stat().st_size / 1e6:.0f} MB")


def _build(inputs: Inputs, pip: PipSettings, archive: Path, cache: Path, progress: Progress) -> None:
    builder = choose_builder(cache, progress)
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainer-image-") as name:
        context, secrets = Path(name, "context"), Path(name, "secrets")
        context.mkdir()
        secrets.mkdir()
        inputs.lay_out(context)
        build_archive(builder, inputs, context, pip.write(secrets), unfinished)
    archive.with_suffix(BILL).write_bytes(Archive.read(unfinished).in_image(BILL_IN_IMAGE))
    unfinished.rename(archive)


def _link(archive: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(archive)
    except OSError:  # another file system
        shutil.copyfile(archive, target)


def _argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/image", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--build-arg",
        type=_argument,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of images/trainer/Dockerfile: FAMILY, BASE, BUILD_BASE, TORCH, TORCH_INDEX, UNLOCKED_TORCH, …",
    )
    parser.add_argument("--tag", help="name of the image; default: localhost/elastic-training/trainer:VERSION")
    return parser
