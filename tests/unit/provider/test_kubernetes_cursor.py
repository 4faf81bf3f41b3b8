"""Where a log was read up to: however it is cut, every line comes once."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidDocument
from elastic_training.clusters.kubernetes.watching.cursor import Cursor, Passing, Stamp, split
from elastic_training.clusters.types import LOG_START

EPOCH = 1_760_000_000
stamps = st.tuples(st.integers(EPOCH, EPOCH + 3), st.integers(0, 2))
"""Few, so that many lines share one."""


def written(stamp: Stamp, number: int) -> bytes:
    moment = datetime.fromtimestamp(stamp[0], UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{stamp[1]:09}Z line {number}".encode()


def from_the_server(log: list[bytes], since: str | None) -> list[bytes]:
    """As kubelets answer: whole seconds."""
    return log if since is None else [line for line in log if line.decode()[: len(since) - 1] + "Z" >= since]


def read(log: list[bytes], cursor: Cursor, most: int) -> tuple[list[str], Cursor]:
    passing, found = Passing(cursor), []
    for line in from_the_server(log, cursor.since):
        stamp, words = split(line)
        assert stamp is not None
        if len(found) < most and passing.new(stamp):
            found.append(words)
            cursor = cursor.after(stamp)
    return found, cursor


@given(st.lists(stamps, max_size=40).map(sorted), st.lists(st.integers(1, 10), min_size=40, max_size=40))
def test_streams_that_break_anywhere_give_every_line_once(times: list[Stamp], lengths: list[int]) -> None:
    log = [written(stamp, number) for number, stamp in enumerate(times)]
    cursor, found = Cursor("2026-01-01T00:00:00Z", "pod"), []
    for length in lengths:
        lines, cursor = read(log, Cursor.read(str(cursor)), length)
        found += lines
    assert found == [f"line {number}" for number in range(len(times))]


@pytest.mark.parametrize(
    ("line", "stamp", "words"),
    [
        (b"2026-03-01T12:00:00.000000001Z hello world", (1772366400, 1), "hello world"),
        (b"2026-03-01T13:00:00.5+01:00 hello", (1772366400, 500_000_000), "hello"),
        (b"2026-03-01T12:00:00Z ", (1772366400, 0), ""),
        (b"unable to retrieve container logs", None, "unable to retrieve container logs"),
        (b"2026-03-01T12:00:00Z \xff", (1772366400, 0), "�"),
    ],
)
def test_time_stamps_are_read_to_the_nanosecond(line: bytes, stamp: Stamp | None, words: str) -> None:
    assert split(line) == (stamp, words)


def test_the_beginning_is_the_one_of_all_clusters() -> None:
    assert str(Cursor()) == LOG_START
    assert Cursor.read(LOG_START) == Cursor()
    assert Cursor("2026-01-01T00:00:00Z", "pod").since is None


def test_another_pod_begins_at_its_beginning() -> None:
    cursor = Cursor("2026-01-01T00:00:00Z", "pod", (EPOCH, 1), 3)
    assert cursor.at("2026-01-01T00:00:00Z", "pod") is cursor
    assert cursor.at("2026-01-01T00:00:09Z", "other") == Cursor("2026-01-01T00:00:09Z", "other")


def test_a_cursor_of_another_cluster_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="not a place"):
        Cursor.read("4711")


@pytest.mark.parametrize(
    "text",
    ["a b 17951795262400.000000001 3", "a b 253402300800.000000000 1", f"a b {'1' * 5000}.000000001 3", "a b 1.1 1"],
)
def test_what_is_not_a_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidDocument):
        Cursor.read(text)


def test_the_last_second_of_all_is_a_place() -> None:
    assert Cursor.read("a b 253402300799.999999999 1").since == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("line", [b"2026-13-01T00:00:00Z words", b"2026-01-01T00:00:00+99:99 words"])
def test_what_only_looks_like_a_time_is_a_line_without(line: bytes) -> None:
    assert split(line) == (None, line.decode())
