"""Debian as a base image, where none can be pulled: by debootstrap, cut down as debian:bookworm-slim is."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster_kit.shell import Progress, run

SUITE = "bookworm"
_SOURCES = f"""\
deb http://deb.debian.org/debian {SUITE} main
deb http://deb.debian.org/debian {SUITE}-updates main
deb http://deb.debian.org/debian-security {SUITE}-security main
"""
_NO_DOCUMENTS = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
_EMPTIED = (
    *("usr/share/groff", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
)
_THIS_MACHINE = ("etc/hostname", "etc/resolv.conf")


def make_base(archive: Path, log: Path, progress: Progress) -> None:
    """Write a tar of a minimal Debian's files.

    Args:
        archive: file to write; a folder of the same name with the ending ``.files`` is used meanwhile.
        log: debootstrap's output.
        progress: where to say how far it is.
    """
    files = archive.with_suffix(".files")
    shutil.rmtree(files, ignore_errors=True)
    command: list[str | Path] = ["debootstrap", "--force-check-gpg", "--variant=minbase", SUITE, files]
    progress.step(f"debootstrap {SUITE}, once: less than a minute", command, log)
    for folder in _EMPTIED:
        for path in (files / folder).glob("*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in (files / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()
    for name in _THIS_MACHINE:
        (files / name).unlink(missing_ok=True)
    (files / "etc/apt/sources.list").write_text(_SOURCES)
    (files / "etc/dpkg/dpkg.cfg.d/no-documents").write_text(_NO_DOCUMENTS)
    unfinished = archive.with_suffix(".unfinished")
    run("tar", f"--directory={files}", "--numeric-owner", "--create", f"--file={unfinished}", ".")
    shutil.rmtree(files)
    unfinished.rename(archive)
