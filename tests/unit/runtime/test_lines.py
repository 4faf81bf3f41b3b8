from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.net.framing import LineSplitter

pieces = st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\n\n", b"a\nb"]), max_size=20)


@given(pieces=pieces, longest=st.integers(1, 16))
def test_nothing_is_lost_and_nothing_is_longer(pieces: list[bytes], longest: int) -> None:
    splitter, found = LineSplitter(longest), []
    for piece in pieces:
        found += splitter.feed(piece)
    found += splitter.end()
    assert b"".join(found) == b"".join(pieces).replace(b"\n", b"")
    assert all(len(line) <= longest for line in found)


@given(pieces=pieces)
def test_lines_are_those_of_the_whole(pieces: list[bytes]) -> None:
    splitter, found = LineSplitter(10_000), []
    for piece in pieces:
        found += splitter.feed(piece)
    *whole, rest = b"".join(pieces).split(b"\n")
    assert (found, splitter.end()) == (whole, [rest] if rest else [])


def test_an_endless_line_comes_in_parts_while_it_is_written() -> None:
    splitter = LineSplitter(4)
    assert splitter.feed(b"abcdefghij") == [b"abcd", b"efgh"]
    assert splitter.feed(b"\n") == [b"ij"]
