"""Price books that somebody else wrote: refused in one sentence, soon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.prices.book import LARGEST_BOOK, MOST_PRICES, parse_prices, read_prices


def book(spot: str = "1.0", name: str = "big") -> bytes:
    return (
        f'[aws."{name}"]\non_demand = 2.0\nspot = {spot}\nregion = "r"\ndate = 2026-11-21\nsource = "s"\n'
    ).encode()  # fmt: skip


@pytest.mark.parametrize(
    "price",
    [
        *("nan", "inf", "-inf", "0", "-0.0", "true", "1e999999999", "1e-999999999", "1e6", "1979-05-27"),
        *("9" * 4000, "9" * 10000, "0." + "3" * 100_000, "[1.0]", "{}"),
    ],
)
def test_a_price_that_is_none_is_refused(price: str) -> None:
    with pytest.raises(InvalidDocument, match=r"spot|cannot be read") as caught:
        parse_prices(book(price), "prices.toml")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xfe",
        b"a = " + b"[" * 100_000,
        b"aws = 7",
        b"[aws]\nbig = 7",
        book(name="x" * 5000),
        b"".join(book(name=f"i{number}") for number in range(MOST_PRICES + 1)),
    ],
)
def test_what_is_no_book_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_prices(raw, "prices.toml")
    assert len(str(caught.value)) < 1000


def test_a_name_cannot_write_a_line_of_the_log() -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse_prices(book("0", name="big\\n2026-01-01 INFO forged"), "prices.toml")
    assert "\n" not in str(caught.value)


def test_a_file_without_end_is_not_read_and_a_pipe_not_waited_for(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large.toml", tmp_path / "pipe.toml"
    large.write_bytes(b"#" * (LARGEST_BOOK + 1))
    os.mkfifo(pipe)
    for path in (large, pipe, tmp_path, Path("/dev/zero"), Path("a\0b"), Path("a\nforged")):
        with pytest.raises(InvalidDocument) as caught:
            read_prices(path)
        assert "\n" not in str(caught.value)
