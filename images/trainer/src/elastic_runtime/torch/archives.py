"""Read an archive of ``torch.save`` that somebody else may have written.

``torch.load(weights_only=True)`` runs no foreign code, but what it is told may take any amount of memory and time: a
deflated record grows a thousandfold, ``bytearray(10**12)`` is allowed, a tensor with a stride of 0 has 10**12 elements
in four bytes, and a set or an OrderedDict is made of each of them. So an archive is looked at first, with none of it
obeyed: its records must be stored as they are and be no larger than the archive, and the steps of its pickle may make
nothing but tensors that fit their storages and plain values, in the ways in which ``torch.save`` writes them.
"""

from __future__ import annotations

import math
import struct
import zipfile
from typing import IO

import torch
from torch import Tensor

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.printable import printable
from elastic_runtime.torch.recipes import check_recipe
from elastic_runtime.training.family import Tree

_DIRECTORY = 64 << 20
"""Bytes that the archive's directory may have; some 100 for each tensor."""
_RECIPE = 256 << 20
"""Bytes that the pickle in it may have; some 200 for each tensor."""
_DEEPEST = 64
"""Containers within each other."""
_LOCAL = struct.Struct("<26x2H")
"""Header of a record, APPNOTE.TXT 4.3.7: lengths of its name and of what is between that and the content."""
_END = struct.Struct("<4s4H2LH")
"""End of the directory, 4.3.16: signature, disks and counts, size and place of the directory, comment."""
_END64 = struct.Struct("<4sQ2H2L4Q")
"""4.3.14: signature, its own size, versions, disks, counts, size and place of the directory."""
_LOCATOR = struct.Struct("<4sLQL")
"""4.3.15: signature, disk, place of the record before, disks."""


def read_archive(stream: IO[bytes], size: int) -> Tree:
    """The tree in an archive, tensors in host memory.

    Args:
        stream: seekable, at its start.
        size: bytes that it has.

    Raises:
        InvalidDocument: it is not what ``torch.save`` writes of tensors and plain values, or pretends to hold more.
    """
    try:
        steps = _look(stream, size)
        stream.seek(0)
        tree = torch.load(stream, map_location="cpu", weights_only=True)
        _Measure(steps, size).take(tree, 0)
    except Exception as error:  # what was made to mislead a parser may raise anything, and means no more than torn
        raise InvalidDocument(f"not what torch.load(weights_only=True) takes: {printable(error)}") from error
    return tree


def _look(stream: IO[bytes], size: int) -> int:
    """Returns the steps of the pickle."""
    _check_end(stream, size)
    with zipfile.ZipFile(stream) as archive:
        records = sorted(archive.infolist(), key=lambda record: record.header_offset)
        end = 0
        for record in records:
            if not _is_plain(record):
                raise InvalidDocument("an archive whose records are not stored as they are")
            if record.header_offset < end:
                raise InvalidDocument("an archive whose records overlap")
            end = record.header_offset + record.file_size
        if end > size:
            raise InvalidDocument("an archive that pretends to hold more than it has bytes")
        recipes = [record for record in records if record.filename.rpartition("/")[2] == "data.pkl"]
        if len(recipes) != 1 or recipes[0].file_size > _RECIPE:
            raise InvalidDocument("an archive without one data.pkl of a sensible size")
    return check_recipe(_content(stream, recipes[0]))


def _is_plain(record: zipfile.ZipInfo) -> bool:
    # Of several size fields (the extra ones are 4.5.3), readers of archives may heed different ones.
    one_size = not record.extra or record.extra[:4] == struct.pack("<2H", 1, len(record.extra) - 4)
    return record.compress_type == zipfile.ZIP_STORED and record.file_size == record.compress_size and one_size


def _content(stream: IO[bytes], record: zipfile.ZipInfo) -> bytes:
    """Not by zipfile, which compares the CRCs that our archives do not have."""
    stream.seek(record.header_offset)
    name, extra = _LOCAL.unpack(stream.read(_LOCAL.size))
    stream.seek(name + extra, 1)
    return stream.read(record.file_size)


def _check_end(stream: IO[bytes], size: int) -> None:
    """Readers of archives search for the directory in different ways; torch.save puts it where all of them find it."""
    tail = _END64.size + _LOCATOR.size + _END.size
    if size < tail:
        raise InvalidDocument("too short for an archive")
    stream.seek(size - tail)
    data = stream.read(tail)
    mark64, _, _, _, _, _, _, _, length, place = _END64.unpack_from(data)
    locator, _, end64, _ = _LOCATOR.unpack_from(data, _END64.size)
    mark, _, _, _, _, short_length, short_place, comment = _END.unpack_from(data, _END64.size + _LOCATOR.size)
    if (mark, comment) != (b"PK\5\6", 0):
        raise InvalidDocument("not an archive")
    if locator == b"PK\6\7":
        is_at_end = mark64 == b"PK\6\6" and end64 == size - tail == place + length
    else:
        length, is_at_end = short_length, short_place + short_length == size - _END.size
    if not is_at_end or length > _DIRECTORY:
        raise InvalidDocument("an archive whose directory is not at its end, or too large")


class _Measure:
    """Of a tree that was read: what is shared in it counts each time, for it is copied as often.

    Args:
        values: how many there may be.
        size: bytes that the tensors may have.
    """

    def __init__(self, values: int, size: int) -> None:
        self._values, self._bytes = values, size

    def take(self, tree: Tree, depth: int) -> None:
        self._values -= 1
        if isinstance(tree, Tensor):
            self._bytes -= _bytes_of(tree)
        if self._values < 0 or self._bytes < 0 or depth > _DEEPEST:
            raise InvalidDocument("it unfolds to more than it holds")
        if isinstance(tree, dict):
            for key, value in tree.items():
                self.take(key, depth + 1)
                self.take(value, depth + 1)
        elif isinstance(tree, list | tuple | set) and not isinstance(tree, torch.Size):
            for value in tree:
                self.take(value, depth + 1)


def _bytes_of(tensor: Tensor) -> int:
    if tensor.is_meta:
        return 0
    if tensor.is_sparse:
        return _bytes_of(tensor._indices()) + _bytes_of(tensor._values())
    if tensor.layout != torch.strided:
        raise InvalidDocument(f"a tensor of layout {tensor.layout}")
    return math.prod(tensor.shape) * tensor.element_size()
