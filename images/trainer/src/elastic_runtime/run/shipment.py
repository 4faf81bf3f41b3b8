"""Files that travel with a run to its workers: how they are packed, and how that is read again.

A :class:`~elastic_runtime.run.spec.Shipment` holds base64 of zlib of a JSON object: name to content, each byte as the
character of that code. Neither side believes the other: names are plain relative paths, and all is bounded before it is
unpacked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.printable import printable
from elastic_runtime.run.spec import MAX_SHIPPED, SHIP_LESS, Shipment

MAX_UNPACKED = 2 * 1024 * 1024
"""Bytes of all files, as JSON with their names."""
MAX_DEPTH = 10
"""Parts of a name."""
_PART = re.compile(r"[A-Za-z0-9_][-+.A-Za-z0-9_]{0,99}")


def check_names(names: Collection[str]) -> None:
    """Relative paths, with ``/`` between their parts, of which none is hidden; at most :data:`MAX_SHIPPED`.

    Raises:
        InvalidSettings: they cannot be shipped.
    """
    if not 0 < len(names) <= MAX_SHIPPED:
        raise InvalidSettings("scripts", f"there are {len(names)} files, not 1 to {MAX_SHIPPED}", SHIP_LESS)
    for name in names:
        parts = name.split("/")
        if len(parts) > MAX_DEPTH or not all(map(_PART.fullmatch, parts)):
            problem = f"{printable(name, 120)!r} is not a name that can be shipped"
            remedy = f"Use up to {MAX_DEPTH} parts of up to 100 letters, digits, '_', '-', '+', '.', the first no '.'"
            raise InvalidSettings("scripts", problem, remedy)
        for end in range(1, len(parts)):
            if (folder := "/".join(parts[:end])) in names:
                raise InvalidSettings("scripts", f"{folder!r} is a file and a folder", "Ship one of the two")


def pack(files: Mapping[str, bytes]) -> Shipment:
    """Files by name, to be shipped.

    Raises:
        InvalidSettings: a name cannot be shipped, or they are too many or too large.
    """
    check_names(files)
    texts = {name: content.decode("latin-1") for name, content in files.items()}
    whole = json.dumps(texts, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    if len(whole) > MAX_UNPACKED:
        raise InvalidSettings("scripts", f"together they are more than {MAX_UNPACKED // 1024**2} MiB", SHIP_LESS)
    return with_content(Shipment(hashlib.sha256(whole).hexdigest(), len(files)), zlib.compress(whole, 9))


def content(shipment: Shipment) -> bytes:
    """The compressed files. Raises InvalidDocument."""
    try:
        return base64.b64decode(shipment.packed, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidDocument("the shipped files are not base64") from None


def with_content(slip: Shipment, compressed: bytes) -> Shipment:
    """With the files, as :func:`content` gives them. Raises InvalidSettings when they are too large."""
    return replace(slip, packed=base64.b64encode(compressed).decode())


def unpack(shipment: Shipment) -> dict[str, bytes]:
    """The files by name.

    Raises:
        InvalidDocument: it is not what :func:`pack` makes, or not of that digest.
    """
    whole = _inflated(content(shipment))
    if hashlib.sha256(whole).hexdigest() != shipment.digest:
        raise InvalidDocument("the shipped files are not those of their digest")
    texts = parse_json(whole)
    if not isinstance(texts, dict) or len(texts) != shipment.files:
        raise InvalidDocument(f"the shipped files are not {shipment.files} files by name")
    try:
        check_names(texts)
        return {name: text.encode("latin-1") for name, text in texts.items()}
    except InvalidSettings as error:
        raise InvalidDocument(str(error)) from None
    except (AttributeError, UnicodeEncodeError):
        raise InvalidDocument("a shipped file does not consist of bytes") from None


def _inflated(compressed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        whole = inflater.decompress(compressed, MAX_UNPACKED + 1)
    except zlib.error:
        raise InvalidDocument("the shipped files are not compressed by zlib") from None
    if len(whole) > MAX_UNPACKED or not inflater.eof or inflater.unused_data:
        raise InvalidDocument(f"the shipped files are cut off, or more than {MAX_UNPACKED} bytes")
    return whole
