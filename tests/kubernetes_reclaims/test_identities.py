"""In pods: each worker proves which one it is, and one of them cannot take another's name."""

from __future__ import annotations

import pytest

from elastic_runtime.run.runobjects import IDENTITY_TOKEN, LAUNCHER_PORT, TLS_FOLDER, Part
from elastic_runtime.run.status import EventKind
from tests.kubernetes_namespace import Namespace
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import Place
from tests.paced import Script

pytestmark = pytest.mark.timeout(600)
CLAIM = f"""
import asyncio, sys
from pathlib import Path
from elastic_runtime.net.certificates import LAUNCHER, agent_context
from elastic_runtime.protocol.wire import Hello, encode

async def main(address, name, file):
    token = Path(file).read_text().strip() if file else ""
    context = agent_context(Path("{TLS_FOLDER}"))
    reader, writer = await asyncio.open_connection(address, {LAUNCHER_PORT}, ssl=context, server_hostname=LAUNCHER)
    writer.write(encode(Hello(name, "node", 1, 1, "eth0", "", token)))
    async with asyncio.timeout(30):
        print("welcome" if await reader.readline() else "refused")
    writer.transport.abort()

asyncio.run(main(*sys.argv[1:]))
"""


def claims_to_be(namespace: Namespace, pod: str, launcher: str, name: str, file: str) -> str:
    """What a program in that pod hears that has its certificate, and says that it is another worker."""
    container = ("--container=worker", "--", "python", "-c", CLAIM)
    return namespace.kubectl("exec", pod, *container, launcher, name, file).strip()


def test_a_worker_cannot_take_anothers_name(start: Start, place: Place) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 2, 2))
    run.at(20)
    [launcher] = run.pods(Part.LAUNCHER)
    one, other = run.pods(Part.WORKER)
    address = place.namespace.kubectl("get", launcher, "--output=jsonpath={.status.podIP}")
    name = other.removeprefix("pod/")
    for file in (IDENTITY_TOKEN, ""):
        assert claims_to_be(place.namespace, one, address, name, file) == "refused"
    log = place.namespace.kubectl("logs", launcher)
    [told] = [line for line in log.splitlines() if f"refusing an agent that calls itself {name}" in line]
    assert f"its token is of pod {one.removeprefix('pod/')}" in told
    assert "agents are known by the run's certificate alone" not in log, "launchers may read the API server's keys"
    run.go(20)
    run.finish()
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED) == []
