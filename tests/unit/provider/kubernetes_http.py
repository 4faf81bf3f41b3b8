"""The API server in memory, over HTTP on loopback: for what has a loop, or a process, of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from elastic_training.clusters.kubernetes import connection
from tests.unit.provider.api_server import kubeconfig
from tests.unit.runtime.fake_kubernetes import NAMESPACE, Events, FakePlace


class KubernetesServer:
    """Serves one namespace from a thread of its own, until it is closed."""

    def __init__(self) -> None:
        self.place = FakePlace()
        self.logs: dict[str, bytes] = {}
        """Of pods, as ``timestamps=true`` gives them; all streams of them end."""
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._runner = self.run(self._begin())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """In its event loop: whatever the world does to :attr:`place`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        """Cuts all streams."""
        self.run(self.place.cut_watches())
        self.run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.address = site.name
        return runner

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/log"):
            return web.Response(body=self.logs[request.path.split("/")[-2]])
        query = list(request.query.items())
        body = await request.json() if request.can_read_body else None
        said = await self.place.call_api(request.path, request.method, query_params=query, body=body)
        if not isinstance(said.content._content, Events):
            return web.Response(status=said.status, body=await said.read())
        stream = web.StreamResponse()
        await stream.prepare(request)
        async for piece in said.content.iter_any():
            await stream.write(piece)
        return stream


@contextmanager
def kubernetes_server() -> Iterator[tuple[KubernetesServer, Mapping[str, str]]]:
    """A server, and the environment in which Airflow has the connection ``cloud`` to it."""
    server = KubernetesServer()
    extra = {"kube_config": json.dumps(kubeconfig(server.address)), "namespace": NAMESPACE}
    try:
        yield server, {"AIRFLOW_CONN_CLOUD": json.dumps({"conn_type": "kubernetes", "extra": extra})}
    finally:
        server.close()
        connection.forget()
