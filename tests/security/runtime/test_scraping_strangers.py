"""Strangers at the port for Prometheus: silence, noise, floods and guesses keep nobody out who knows the token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", exc_type=ImportError)

from tests.unit.runtime.test_scraping import TOKEN, get, in_loop, scraping


@in_loop
async def test_silent_connections_do_not_keep_a_scraper_out(tmp_path: Path) -> None:
    async with scraping(tmp_path) as port:
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        status, _ = await asyncio.to_thread(get, port)
        assert status == 200
        # The oldest were sent away for those that came later.
        assert await asyncio.wait_for(_end(strangers[0][0]), 5) == b""
        for _, writer in strangers:
            writer.transport.abort()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00" + b"\x00" * 600 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer " + b"\xff" * 50 + b"\r\n\r\n",
        f"GET /metrics HTTP/1.1\r\nAuthorization: Basic {TOKEN}\r\n\r\n".encode(),
        f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nAuthorization: Bearer x\r\n\r\n".encode(),
        f"POST /metrics HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode(),
    ],
)
@in_loop
async def test_nonsense_is_told_no_figure(tmp_path: Path, request_bytes: bytes) -> None:
    async with scraping(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        answer = await asyncio.wait_for(_end(reader), 10)
        assert b"elastic_training" not in answer
        assert b"200 OK" not in answer
        writer.transport.abort()
        assert (await asyncio.to_thread(get, port))[0] == 200


@in_loop
async def test_guesses_are_slowed_down_and_the_one_who_knows_is_not(tmp_path: Path) -> None:
    async with scraping(tmp_path) as port:
        guess = b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer guess-guess-guess\r\n\r\n"
        loop = asyncio.get_running_loop()
        begin, answered = loop.time(), 0
        while loop.time() - begin < 1.0:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(guess)
            answered += b"401" in await _end(reader)
            writer.transport.abort()
        assert answered <= 10 + 10 * (loop.time() - begin) + 1
        assert (await asyncio.to_thread(get, port))[0] == 200


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except OSError:
        return b""
