"""What two parts of one deployment say to each other has a version, and no other one is read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.checkpoint.manifest import Manifest, decode_manifest, encode_manifest
from elastic_runtime.documents import from_plain, to_plain
from elastic_runtime.errors import InvalidDocument
from elastic_runtime.net.framing import decode_line
from elastic_runtime.protocol.wire import Hello, Welcome, decode, encode
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Event, EventKind, Phase, Status, WorkerState, WorkerStatus

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SPEC = RunSpec("run", "uid", ("true",))
STATUS = Status(
    *("run", "uid", Phase.RUNNING, "2 ranks train", NOON),
    workers=(WorkerStatus("w", "n", WorkerState.TRAINING, NOON, 1),),
    events=(Event(NOON, EventKind.STARTED, "world 1"),),
)
HELLO = decode_line(encode(Hello("w", "n", 7, 1, "lo", token="a-token")))
MANIFEST = json.loads(encode_manifest(Manifest(1, NOON, 1, ())).partition(b"\n")[0])


def read_manifest(plain: Any) -> Manifest:
    text = json.dumps(plain, separators=(",", ":")).encode()
    return decode_manifest(text + b"\n" + sha256(text).hexdigest().encode())


@pytest.mark.parametrize(
    ("read", "plain", "spoilt"),
    [
        pytest.param(lambda plain: from_plain(RunSpec, plain), to_plain(SPEC), "command", id="spec"),
        pytest.param(lambda plain: from_plain(Status, plain), to_plain(STATUS), "phase", id="status"),
        pytest.param(decode, HELLO, "slots", id="hello"),
        pytest.param(read_manifest, MANIFEST, "parts", id="manifest"),
    ],
)
@pytest.mark.parametrize("found", [0, 2, 10**40])
def test_another_version_is_refused_with_both_and_the_remedy(read: Any, plain: Any, spoilt: str, found: int) -> None:
    read(plain)
    told = f"its version is {str(found)[:19]}"
    for other in (plain | {"version": found}, plain | {"version": found, spoilt: "of another kind"}):
        with pytest.raises(InvalidDocument) as refused:
            read(other)
        assert told in str(refused.value)
        assert "and version 1 is read here: have one release of elastic-runtime and of the provider" in str(
            refused.value
        )
        assert "of another kind" not in str(refused.value)
        assert "a-token" not in str(refused.value)


def test_so_is_one_within_another_document_and_in_a_large_one() -> None:
    welcome = decode_line(encode(Welcome(SPEC)))
    welcome["spec"]["version"] = 2
    many = [to_plain(Event(NOON, EventKind.STARTED, "world"))] * 2000
    for read, plain in (
        (decode, welcome),
        (lambda plain: from_plain(Status, plain), to_plain(STATUS) | {"events": many}),
    ):
        with pytest.raises(InvalidDocument, match="its version is 2, and version 1 is read here"):
            read(plain | {"version": 2})


@given(found=st.none() | st.text() | st.floats() | st.booleans() | st.lists(st.integers()))
def test_what_is_no_version_is_a_wrong_field(found: object) -> None:
    with pytest.raises(InvalidDocument, match=r"@ \$\.version$"):
        from_plain(RunSpec, to_plain(SPEC) | {"version": found})


@pytest.mark.parametrize("kind", ["of tomorrow", 3, None, ["started"]])
@pytest.mark.parametrize("where", ["phase", "failure", "events", "workers"])
def test_a_status_with_an_unknown_member_is_refused_with_its_place(where: str, kind: object) -> None:
    plain = to_plain(STATUS)
    if where in ("events", "workers"):
        field = {"events": "kind", "workers": "state"}[where]
        plain[where][0][field] = kind
    else:
        plain[where] = [kind] if kind is None else kind
    with pytest.raises(InvalidDocument, match=rf"@ \$\.{where}"):
        from_plain(Status, plain)
