"""Files of the DAG's folder that are shipped to the workers: which are meant, and what is in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path, PurePosixPath

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.shipment import MAX_UNPACKED, check_names
from elastic_runtime.run.spec import SHIP_LESS
from elastic_training.settings.templating import is_template

MOST_SEEN = 5000
"""Files and folders that are looked at."""
_EXAMPLE = 'Write paths below the DAG\'s folder, as in ["train.py", "lib/"]'


def check_scripts(scripts: object, roots: Sequence[Path]) -> None:
    """Check scripts as far as they are known at parse. No file is read.

    Args:
        scripts: None, or a list of files and folders.
        roots: folders in which they are looked for, in this order; empty: not known yet.

    Raises:
        InvalidSettings: they cannot be shipped, or are not there.
    """
    if scripts is None or is_template(scripts):
        return
    if isinstance(scripts, str) or not isinstance(scripts, Sequence):
        raise InvalidSettings("scripts", f"a {type(scripts).__name__} is not a list of paths", _EXAMPLE)
    known = [script for script in scripts if not is_template(script)]
    for script in known:
        _relative(script)
    if roots and known:
        _found(known, roots)


def read_scripts(scripts: object, roots: Sequence[Path]) -> dict[str, bytes]:
    """The files, by the name that they have on the workers: their path below the root that they were found in.

    What is hidden, and what Python has compiled, is passed over in folders; links are refused, so that what is shipped
    lies in the folder.

    Args:
        scripts: rendered.
        roots: folders in which they are looked for, in this order.

    Raises:
        InvalidSettings: they cannot be shipped, or are not there.
    """
    check_scripts(scripts, ())
    assert isinstance(scripts, Sequence)
    files, room = {}, MAX_UNPACKED
    for name, path in _found(scripts, roots).items():
        files[name] = _read(path, room)
        room -= len(files[name])
    return files


def _relative(script: object) -> PurePosixPath:
    if not isinstance(script, str | PathLike):
        raise InvalidSettings("scripts", f"a {type(script).__name__} is not a path", _EXAMPLE)
    path = PurePosixPath(os.fspath(script))
    if not str(script) or path.is_absolute() or ".." in path.parts:
        raise InvalidSettings("scripts", f"{str(script)!r} is not below the DAG's folder", _EXAMPLE)
    return path


def _found(scripts: Sequence[object], roots: Sequence[Path]) -> dict[str, Path]:
    """Every file by its name. Raises InvalidSettings, also when they are too many or too large."""
    found: dict[str, Path] = {}
    seen = size = 0
    for script in scripts:
        path = _relative(script)
        root = next((root for root in roots if os.path.lexists(root / path)), None)
        if root is None:
            places = " or ".join(map(str, roots)) or "any folder: the task has no DAG"
            raise InvalidSettings("scripts", f"{path} is not in {places}", _EXAMPLE)
        empty = True
        for entry in _below(root, path):
            seen += 1
            if stat.S_ISREG(entry.lstat().st_mode):
                size += entry.lstat().st_size
                found[entry.relative_to(root).as_posix()] = entry
                empty = False
            if seen > MOST_SEEN or size > MAX_UNPACKED:
                large = f"more than {MOST_SEEN} entries" if seen > MOST_SEEN else f"more than {MAX_UNPACKED} bytes"
                raise InvalidSettings("scripts", f"with {path} they are {large}", SHIP_LESS)
        if empty:
            raise InvalidSettings("scripts", f"{root / path} has no files to ship", _EXAMPLE)
    check_names(found)
    return found


def _below(root: Path, path: PurePosixPath) -> Iterator[Path]:
    """What was named, and all in it. Raises InvalidSettings for what is neither a file nor a folder."""
    place = root
    for part in path.parts:  # Those above it, too: a folder that is a link leads elsewhere.
        place /= part
        _check_kind(place)
    left = [place]
    while left:
        place = left.pop()
        yield place
        if stat.S_ISDIR(place.lstat().st_mode):
            inner = [each for each in islice(place.iterdir(), MOST_SEEN + 1) if not _passed_over(each.name)]
            for each in inner:
                _check_kind(each)
            left += sorted(inner, reverse=True)


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__" or name.endswith(".pyc")


def _check_kind(path: Path) -> None:
    mode = path.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
        raise InvalidSettings("scripts", f"{path} is {kind}", "Put the file itself into the DAG's folder")


def _read(path: Path, room: int) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            content = stream.read(room + 1)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise InvalidSettings("scripts", problem, "Give Airflow's worker the right to, or leave it out") from error
    if len(content) > room:
        raise InvalidSettings("scripts", f"together they are more than {MAX_UNPACKED} bytes", SHIP_LESS)
    return content
