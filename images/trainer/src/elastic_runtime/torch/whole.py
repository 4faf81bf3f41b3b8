"""Whether a checkpoint of a restarted script is whole. It reads names, sizes and ends of files, not what is in them.

A process that ends half way leaves a draft, which has another name. Torn ones come from machines that lose what was not
on their disks, from file systems that do not rename at once, and from scripts that write in place.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SIZES = "sizes.json"
"""File of a folder of checkpoints: name of each, with the bytes of each of its files."""
_NO_FSYNC = frozenset((errno.EINVAL, errno.ENOTSUP))
"""Errors of file systems that have none, of folders or at all."""
_ARCHIVES = frozenset((".pt", ".pth", ".bin", ".ckpt"))
_HEADER_LENGTH = 8
"""Bytes at the beginning of a safetensors file, which say how long its header is."""
_LONGEST_HEADER = 100_000_000
"""Bytes, as the format allows."""
_LONGEST_SIZES = 64 << 20
"""Bytes of :data:`SIZES`; some 100 for each file."""
_WRONG = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What files make of their readers that somebody else has written."""


def flush(path: Path) -> None:
    """Have a file, or all of a folder, on the disk. Raises OSError."""
    for each in (path, *path.rglob("*")):
        if not (each.is_file() or each.is_dir()):
            continue
        handle = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise
        finally:
            os.close(handle)


def record(written: Path, folder: Path, name: str) -> None:
    """Keep the sizes of what was written and is to be called that; those of checkpoints that are gone are dropped."""
    sizes = {other: of for other, of in _recorded(folder).items() if (folder / other).exists()}
    sizes[name] = {str(path.relative_to(written)): path.stat().st_size for path in _files(written)}
    draft = folder / f".{SIZES}"
    draft.write_text(json.dumps(sizes))
    flush(draft)
    draft.replace(folder / SIZES)


def difference(path: Path) -> str | None:
    """Describe what is missing of a checkpoint. None: nothing, as far as its sizes were recorded."""
    sizes = _recorded(path.parent).get(path.name)
    for name, size in sizes.items() if isinstance(sizes, dict) else ():
        file = path / name  # For a checkpoint of one file the name is ".".
        try:
            found = file.stat().st_size
        except (OSError, ValueError):
            return f"{file.name} is missing"
        if found != size:
            return f"{file.name} has {found} bytes, not {size}"
    return None


def damage(folder: Path) -> str | None:
    """Which file ends too early, in words, of the formats that torch and safetensors write; None: none does."""
    for file in sorted(_files(folder)):
        try:
            is_short = _is_short(file)
        except _WRONG:
            is_short = True
        if is_short:
            return f"{file.name} ends too early"
    return None


def _is_short(file: Path) -> bool:
    if file.suffix in _ARCHIVES:
        with file.open("rb") as stream:
            is_archive = stream.read(2) in (b"PK", b"P", b"")  # Others are of torch's format before 1.6.
        return is_archive and not zipfile.is_zipfile(file)
    if file.suffix == ".safetensors":
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_HEADER_LENGTH), "little")
            if length > min(size, _LONGEST_HEADER):
                return True
            header = json.loads(stream.read(length))
        ends = [of["data_offsets"][1] for name, of in header.items() if name != "__metadata__"]
        return size != _HEADER_LENGTH + length + max(ends, default=0)
    return False


def _files(path: Path) -> Iterator[Path]:
    return (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else iter((path,))


def _recorded(folder: Path) -> Mapping[str, Any]:
    try:
        with (folder / SIZES).open("rb") as stream:
            sizes = json.loads(stream.read(_LONGEST_SIZES))
    except (OSError, ValueError, RecursionError):  # Then what the formats say of themselves has to do.
        return {}
    return sizes if isinstance(sizes, dict) else {}
