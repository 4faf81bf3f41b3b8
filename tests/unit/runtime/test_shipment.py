"""Files that travel with a run: what is packed is what is unpacked, and what cannot travel is refused at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.net.framing import MAX_LINE
from elastic_runtime.protocol.wire import Welcome, encode
from elastic_runtime.run.shipment import MAX_UNPACKED, content, pack, unpack, with_content
from elastic_runtime.run.spec import MAX_PACKED, MAX_SHIPPED, RunSpec

PARTS = st.from_regex(r"[A-Za-z0-9_][-+.A-Za-z0-9_]{0,20}", fullmatch=True)
NAMES = st.lists(PARTS.map("d{}".format), max_size=3).flatmap(
    lambda folders: PARTS.map(lambda name: "/".join([*folders, f"f{name}"]))
)


@given(files=st.dictionaries(NAMES, st.binary(max_size=300), min_size=1, max_size=20))
def test_what_is_packed_is_what_is_unpacked_also_through_the_spec(files: dict[str, bytes]) -> None:
    spec = RunSpec("run", "uid", ("python", "train.py"), scripts=pack(files))
    read = from_json(RunSpec, to_json(spec))
    assert read == spec
    assert read.scripts is not None
    assert unpack(read.scripts) == files


@given(files=st.dictionaries(NAMES, st.binary(max_size=50), min_size=1, max_size=5))
def test_the_same_files_have_the_same_digest_in_whatever_order(files: dict[str, bytes]) -> None:
    assert pack(dict(reversed(files.items()))) == pack(files)


def test_one_byte_makes_another_digest() -> None:
    assert pack({"a.py": b"1"}).digest != pack({"a.py": b"2"}).digest != pack({"b.py": b"2"}).digest


def test_the_files_may_be_kept_beside_the_document() -> None:
    shipment = pack({"train.py": b"pass", "lib/help.py": bytes(range(256))})
    slip = from_json(type(shipment), to_json(shipment.slip()))
    assert slip == replace(shipment, packed="")
    assert with_content(slip, content(shipment)) == shipment


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "there are 0 files"),
        ({f"{number}.py": b"" for number in range(MAX_SHIPPED + 1)}, f"there are {MAX_SHIPPED + 1} files"),
        ({"/etc/passwd": b""}, "is not a name"),
        ({"../train.py": b""}, "is not a name"),
        ({"lib//train.py": b""}, "is not a name"),
        ({"lib/": b""}, "is not a name"),
        ({".env": b""}, "is not a name"),
        ({"lib/.git": b""}, "is not a name"),
        ({"my train.py": b""}, "is not a name"),
        ({"a\nb": b""}, "is not a name"),
        ({"a\n": b""}, "is not a name"),
        ({"/".join("a" * 11): b""}, "is not a name"),
        ({"a" * 102: b""}, "is not a name"),
        ({"lib": b"", "lib/train.py": b""}, "is a file and a folder"),
        ({"large": b"a" * MAX_UNPACKED}, "more than 2 MiB"),
    ],
)
def test_what_cannot_travel_is_refused(files: dict[str, bytes], problem: str) -> None:
    with pytest.raises(InvalidSettings, match=problem) as caught:
        pack(files)
    assert caught.value.field == "scripts"


def test_what_is_too_large_compressed_is_refused_with_the_remedy_and_the_largest_fits_a_line() -> None:
    import random

    noise = random.Random(1).randbytes(MAX_PACKED)
    with pytest.raises(InvalidSettings, match=r"256 KiB.*run's documents.*image"):
        pack({"noise": noise})
    largest = pack({"noise": noise[: MAX_PACKED * 3 // 4]})
    assert len(encode(Welcome(RunSpec("run", "uid", ("a",), scripts=largest)))) < MAX_LINE / 4


@pytest.mark.parametrize(
    "change", [{"digest": "5" * 63}, {"digest": "G" * 64}, {"files": 0}, {"files": 501}, {"packed": "A" * 400_000}]
)
def test_a_document_with_another_kind_of_shipment_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings, match="scripts"):
        replace(pack({"a": b""}), **change)
