"""Who reaches a run's pods where no NetworkPolicy is enforced, as in the lab, gets nowhere and stops nothing."""

from __future__ import annotations

import json
import socket

import pytest

from elastic_runtime.run.runobjects import Part
from elastic_runtime.run.status import EventKind
from tests.kubernetes_namespace import Namespace
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import Place, PodRun
from tests.paced import Script, Undisturbed, sizes_of
from tests.strangers import strangers

pytestmark = pytest.mark.timeout(600)
CONNECTIONS = 600
LISTENING = """
import json
lines = [line.split() for name in ("tcp", "tcp6") for line in list(open(f"/proc/net/{name}"))[1:]]
print(json.dumps(sorted({int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"})))
"""


def listening(namespace: Namespace, run: PodRun, part: Part) -> list[tuple[str, int]]:
    """Addresses and ports of the pods of that part."""
    found = []
    for pod in run.pods(part):
        address = namespace.kubectl("get", pod, "--output=jsonpath={.status.podIP}")
        ports = json.loads(namespace.kubectl("exec", pod, "--", "python", "-c", LISTENING))
        found += [(address, port) for port in ports]
    return found


def answer(place: tuple[str, int], request: bytes) -> bytes:
    """The first bytes of it; empty: hung up, or nothing within seconds."""
    try:
        with socket.create_connection(place, timeout=5.0) as sock:
            sock.sendall(request)
            return sock.recv(64)
    except OSError:
        return b""


@pytest.mark.long
def test_a_crowd_of_strangers_changes_nothing(start: Start, place: Place, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20, 40)), (1, 2, 3))
    run.at(20)
    launcher = listening(place.namespace, run, Part.LAUNCHER)
    ranks = listening(place.namespace, run, Part.WORKER)
    assert len(launcher) >= 2, "for agents, and for ranks"

    for path in ("rank_and_size/x:0", "global/0", "worker_addresses/x:0"):
        for verb in ("GET", "PUT", "DELETE"):
            request = f"{verb} /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode()
            answers = {answer(each, request)[:12] for each in launcher}
            assert answers <= {b"", b"HTTP/1.1 403"}, f"{verb} /{path}"
            assert b"HTTP/1.1 403" in answers

    with strangers(CONNECTIONS, [*launcher, *ranks]) as seen:
        run.until(lambda: seen and seen[-1].made >= CONNECTIONS, "all have been there")
        run.resize(3)
        run.worlds(2, 3)
        run.go(20)
        run.at(40)
        run.resize(2)
        run.worlds(2, 3, 2)
        status = run.finish()

    assert sizes_of(status) == [2, 3, 2, 0]
    assert run.events(EventKind.LOST, EventKind.RANK_FAILED, EventKind.RESTARTED) == []
    assert set(run.ledger().steps().values()) == {1}
    undisturbed.assert_same(run)
