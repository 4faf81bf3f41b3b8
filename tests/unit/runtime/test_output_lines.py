"""Lines of a rank's output, and what of a progress bar is told."""

from __future__ import annotations

import pytest

from elastic_runtime.agent.ranks import EVERY, OutputLines


def lines_of(*pieces: bytes, longest: int = 100) -> list[bytes]:
    """All at one moment, and then the end."""
    lines = OutputLines(longest)
    return [line for piece in pieces for line in lines.feed(piece, 0.0)] + lines.end()


def test_lines_without_their_ends() -> None:
    assert lines_of(b"a\nb", b"c\n\nd") == [b"a", b"bc", b"", b"d"]


def test_a_long_line_comes_in_parts() -> None:
    assert lines_of(b"abcdefg\nh", longest=3) == [b"abc", b"def", b"g", b"h"]


@pytest.mark.parametrize("pieces", [(b"a\r\nb\r\n",), (b"a\r", b"\nb\r", b"\n"), (b"a", b"\r\n", b"b\r\n")])
def test_lines_that_end_as_on_windows(pieces: tuple[bytes, ...]) -> None:
    assert lines_of(*pieces) == [b"a", b"b"]


def test_of_a_burst_the_newest_frame_is_told() -> None:
    lines, told = OutputLines(100), []
    for number in range(1000):  # a hundred seconds
        told += lines.feed(b"\r%d %%" % number, number / 10)
    assert 100 / EVERY <= len(told) <= 100 / EVERY + 1
    assert told[:2] == [b"0 %", b"%d %%" % (10 * EVERY)]
    assert lines.tick(100.0 + EVERY) == [b"999 %"]
    assert lines.tick(200.0) == []
    assert lines.feed(b"\n", 200.0) == [], "it was told"


def test_it_says_until_when_to_wait() -> None:
    lines = OutputLines(100)
    assert lines.feed(b"no end", 0.0) == []
    assert lines.wait(0.0) is None
    assert lines.feed(b"\r1 %", 0.0) == [b"1 %"]
    assert lines.wait(0.0) is None
    assert lines.feed(b"\r2 %", 1.0) == []
    assert lines.wait(1.0) == EVERY - 1.0
    assert lines.wait(EVERY + 9) == 0.0


def test_the_last_frame_is_told_when_its_line_ends() -> None:
    lines = OutputLines(100)
    assert lines.feed(b"\r 1 %", 0.0) == [b" 1 %"]
    assert lines.feed(b"\r99 %\r100 %", 0.1) == []
    assert lines.feed(b"\nnext\n", 0.2) == [b"100 %", b"next"]
    assert lines.end() == []


def test_the_return_may_follow_the_frame() -> None:
    lines = OutputLines(100)
    assert lines.feed(b"1 %\r", 0.0) == [b"1 %"]
    assert lines.feed(b"2 %\r3 %\r", 9.0) == [b"3 %"]
    assert lines.feed(b"4 %\r", 9.1) == []
    assert lines.end() == [b"4 %"]


def test_a_bar_that_is_wiped_leaves_no_line() -> None:
    lines = OutputLines(100)
    assert lines.feed(b"\r99 %", 0.0) == [b"99 %"]
    assert lines.feed(b"\r     \r", 9.0) == []
    assert lines.feed(b"epoch 1\n", 9.1) == [b"epoch 1"]


def test_nested_bars_do_not_flood() -> None:
    lines, told = OutputLines(100), []
    for number in range(100):  # ten seconds
        told += lines.feed(b"\n\r%d %%\x1b[A" % number if number else b"\router\n\r0 %\x1b[A", number / 10)
    assert told[0] == b"outer"
    assert len(told) <= 2 + 10 / EVERY
    assert lines.tick(99.0) == [b"99 %"]


def test_a_bar_of_many_bytes_is_not_kept() -> None:
    lines = OutputLines(10)
    assert lines.feed(b"\r12345" * 1000, 0.0) == [b"12345"]
    assert lines.end() == []
