from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic_runtime.kubernetes import transport as transports
from elastic_runtime.kubernetes.connect import open_transport
from elastic_runtime.kubernetes.transport import Request, Transport
from elastic_runtime.net import certificates


class SlowServer:
    """Takes a request, and then does nothing at all for a moment: no answer, and no goodbye of TLS."""

    def __init__(self, folder: Path) -> None:
        self.asked = threading.Event()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._folder = folder
        self.port = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    async def _serve(self) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._folder / "launcher.crt", self._folder / "launcher.key")
        self._loop = asyncio.get_running_loop()
        async with await asyncio.start_server(self._silent, "127.0.0.1", ssl=tls) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await self._ended.wait()

    async def _silent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        time.sleep(0.02)  # noqa: ASYNC251 - the whole loop is to stand
        await reader.read()
        writer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SlowServer]:
    certificates.create(tmp_path / "tls", ["127.0.0.1"])
    running = SlowServer(tmp_path / "tls")
    yield running
    running.close()


def opened(port: int) -> Transport:
    unset = dict.fromkeys(("ssl_ca_cert", "cert_file", "key_file", "tls_server_name", "proxy", "proxy_headers"))
    settings = SimpleNamespace(
        host=f"https://127.0.0.1:{port}", verify_ssl=False, refresh_api_key_hook=None, auth_settings=dict, **unset
    )
    return open_transport(settings, "test")


def test_a_request_that_was_cut_off_leaves_no_connection_to_a_loop_that_ends(server: SlowServer) -> None:
    async def run() -> None:
        transport = opened(server.port)
        request = asyncio.create_task(transport.ask(Request("look", "GET", "/api")))
        await asyncio.to_thread(server.asked.wait)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await transport.close()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [str(each.message) for each in seen if each.category is ResourceWarning] == []


def test_a_transport_of_which_nothing_was_cut_off_closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "FAREWELL", 3600.0)

    async def run() -> None:
        async with asyncio.timeout(30):
            await opened(1).close()

    asyncio.run(run())
