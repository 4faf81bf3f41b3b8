"""Ranks that are lost while Gloo connects: the others leave that world at once, and meet in the next."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from elastic_runtime.run.spec import RecoverySpec, Timing
from elastic_runtime.run.status import EventKind
from tests.local.conftest import Start
from tests.paced import Script

WAITING = """
    import os, tempfile, threading, time
    from datetime import timedelta

    from torch.distributed import FileStore, ProcessGroupGloo, Store

    from elastic_runtime.engines.gloo_sockets import GlooSockets


    class Lost(Exception):
        pass


    class Publishing(Store):
        def __init__(self, store):
            super().__init__()
            self.store, self.told = store, threading.Event()

        def set(self, key, value):
            self.store.set(key, value)
            self.told.set()

        def get(self, key):
            raise Lost


    def lose(store):
        try:
            ProcessGroupGloo(store, 1, 2, timedelta(seconds=30))
        except Exception:  # Lost, or what Gloo makes of it.
            pass


    for _ in range(8):  # Which of two ranks waits for the other to connect is decided by their ports, at random.
        store, sockets = FileStore(tempfile.mktemp(), 2), GlooSockets(listening=False)
        lost = Publishing(store)
        peer = threading.Thread(target=lose, args=(lost,))
        peer.start()
        peer.join()

        def connect():
            with sockets.connecting(2):
                try:
                    ProcessGroupGloo(store, 0, 2, timedelta(seconds=30))
                    print("left, since who came in place of the other has gone")
                except RuntimeError as error:
                    print("left", error)

        rank = threading.Thread(target=connect)
        rank.start()
        since = time.monotonic()
        while rank.is_alive():
            sockets.cut()
            rank.join(0.1)
            if time.monotonic() - since > 20:
                print("waits on", flush=True)
                os._exit(1)
"""


@pytest.mark.timeout(240)
def test_gloo_waits_no_longer_for_who_has_told_its_address_and_is_lost() -> None:
    command = [sys.executable, "-c", textwrap.dedent(WAITING)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "waits on" not in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("left") == 8, done.stdout + done.stderr


@pytest.mark.timeout(240)
@pytest.mark.parametrize("start", ["torch"], indirect=True)
@pytest.mark.parametrize("before", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_world_whose_rank_is_lost_while_it_connects_is_left_and_the_next_is_met(start: Start, before: int) -> None:
    timing, recovery = Timing(forming=60.0, stop_grace=1.0), RecoverySpec(backoff=0.1)
    script = Script("publishing.py", doors={"worker-1": "kill"}, holds=(5,))
    run = start(script, (before, 2, 2), timing=timing, recovery=recovery)
    if before == 1:
        run.at(5)
        run.resize(2)
    run.at("worker-1")
    run.trains(2)

    run.go_on()
    run.succeed()

    assert run.events(EventKind.SUSPENDED, EventKind.LOST) == []
    assert "in time" not in run.log()
