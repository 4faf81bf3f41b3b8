"""Checkpoints as somebody writes them who may write to the store: every sum is right, and nothing else."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastic_runtime.checkpoint.checkpoints import Checkpoints, PartStream, StoredCheckpoint

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAME = "ckpt-f000000000001-s000000000002-t09999999999999-aaaaaaaa"
"""Of a newer checkpoint than those of :func:`write`."""
CONTENT = b"model of nobody"


def write(checkpoints: Checkpoints, step: int, content: bytes = b"model") -> StoredCheckpoint:
    """An honest one."""

    def model(stream: PartStream) -> None:
        stream.write(content)

    return checkpoints.write(step, NOON, {"model.pt": model})


def part(name: str = "model.pt", content: bytes = CONTENT, **changes: Any) -> dict[str, Any]:
    return {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest(), **changes}


def manifest(*parts: Any, **changes: Any) -> bytes:
    """Of step 2 and fence 1, whatever is not changed."""
    head = {"step": 2, "time": "2026-11-21T12:00:00.000Z", "fence": 1, "parts": list(parts)}
    return signed(json.dumps({**head, "handover": False, "version": 1, **changes}, separators=(",", ":")).encode())


def signed(text: bytes) -> bytes:
    """With the sum that makes a manifest of it."""
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode()


def lay(folder: Path, data: bytes, content: bytes | None = CONTENT) -> Path:
    """The folder of that checkpoint; without ``model.pt`` if there is no content."""
    here = folder / NAME
    here.mkdir(mode=0o700)
    (here / "manifest.json").write_bytes(data)
    if content is not None:
        (here / "model.pt").write_bytes(content)
    return here


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[str]]:
    """Its step, and why others were passed over. All parts are read."""
    reasons: list[str] = []

    def read(stored: StoredCheckpoint) -> None:
        for each in stored.manifest.parts:
            with stored.open_part(each.name) as stream:
                stream.read()

    found = checkpoints.newest(read, lambda uri, reason: reasons.append(reason))
    return (None if found is None else found[0].manifest.step), reasons
