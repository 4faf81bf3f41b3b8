"""Strangers who connect to ranks of torch.distributed: they receive nothing, and take nobody's place."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from elastic_runtime.engines.gloo_sockets import open_sockets
from elastic_runtime.engines.torch import peers
from elastic_runtime.engines.torch.channel import StoreTimeout, WorldLost
from elastic_runtime.engines.torch.peers import PROVE, PlaceTaken
from elastic_runtime.net.descriptors import raise_descriptor_limit
from tests.local.conftest import Start, start
from tests.paced import CONDITION_TIMEOUT, Script, until

__all__ = ["start"]
pytestmark = pytest.mark.timeout(240)
ROUNDS = 8
PAIRS = 5
"""Gloo's numbers of pairs, that a stranger guesses."""
GROUPS = """
    import base64, json, logging, sys
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    from elastic_runtime.engines.torch.messages import excess
    from elastic_runtime.engines.torch.peers import prove_peers

    class Narrow(dist.Store):
        "Takes no more than the one of a world does."

        def __init__(self, store):
            super().__init__()
            self.store = store

        def set(self, key, value):
            if too_much := excess((key,), base64.b64encode(value).decode()):
                raise ValueError(too_much)
            self.store.set(key, value)

        def get(self, key):
            return self.store.get(key)

        def wait(self, keys, timeout=timedelta(seconds=5)):
            self.store.wait(keys, timeout)

        def check(self, keys):
            return self.store.check(keys)

        def add(self, key, value):
            return self.store.add(key, value)

        def has_extended_api(self):
            return False

    logging.basicConfig()
    prove_peers()
    folder, rank = sys.argv[1], int(sys.argv[2])
    files = dist.FileStore(folder + "/store", 3)
    files.set_timeout(timedelta(seconds=5))  # Who has failed tells the others through the launcher, else.
    store = Narrow(files)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        number, seconds = line.split()
        limit = timedelta(seconds=float(seconds))
        distributed_c10d._world.group_count = 0
        prefixed = dist.PrefixStore(number, store)
        try:
            dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=3, timeout=limit)
            weights = torch.full((1000,), float(rank + 1))
            dist.all_reduce(weights)
            said = {"sum": weights.unique().tolist()}
            dist.barrier()
        except (RuntimeError, TimeoutError) as error:
            said = {"error": str(error)}
        if dist.is_initialized():
            dist.destroy_process_group()
        print(json.dumps(said), flush=True)
"""

THREADS = """
    import threading

    import torch.distributed as dist
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    from elastic_runtime.engines.torch.peers import prove_peers

    begun, over, make = threading.Event(), threading.Event(), ProcessGroupGloo.__init__

    def made_slowly(*arguments):
        begun.set()
        over.wait()
        make(*arguments)

    ProcessGroupGloo.__init__ = made_slowly
    prove_peers()
    store = dist.HashStore()
    first = threading.Thread(target=ProcessGroupGloo, args=(dist.PrefixStore("first", store), 0, 1))
    first.start()
    begun.wait()
    try:
        ProcessGroupGloo(dist.PrefixStore("second", store), 0, 1)
    except RuntimeError as error:
        print(error)
    over.set()
    first.join()
    ProcessGroupGloo(dist.PrefixStore("third", store), 0, 1)
    print("made")
"""

MESH = """
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    from elastic_runtime.engines.torch import peers

    peers.prove_peers()
    split, proved = peers._Proofs.split, []

    def noted(*arguments):
        proved.append(split(*arguments))
        return proved[-1]

    peers._Proofs.split = noted
    cpu = torch.device("cpu")
    torch.accelerator.is_available, torch.accelerator.current_accelerator = lambda: True, lambda *_: cpu
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = distributed_c10d._get_default_group()
    world.bound_device_id = torch.device("cpu", 0)
    backend = "gloo", world._get_backend(cpu).options
    mesh = dist.init_device_mesh("cpu", (1, 1), backend_override={0: backend, 1: backend})
    print([mesh.get_group(dimension).group_name for dimension in (0, 1)] == [group.group_name for group in proved])
"""

UNPRIVILEGED = """
    import os

    import torch.distributed as dist
    from torch.distributed.distributed_c10d import ProcessGroupGloo

    from elastic_runtime.engines.torch.peers import prove_peers

    prove_peers()
    if os.getuid() == 0:
        os.setuid(65534)
    group = ProcessGroupGloo(dist.HashStore(), 0, 1)
    print("made", flush=True)
    input()
    print(len(os.listdir("/proc/self/fd")), flush=True)
    input()
"""


class Ranks:
    """Three processes that make one group after another."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        script = textwrap.dedent(GROUPS)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", script, str(folder), str(rank)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(3)
        ]
        for process in self.processes:
            stack.callback(process.kill)
        assert self.said() == ["ready"] * 3

    def begin(self, number: int, *ranks: int, seconds: float = 2.0) -> None:
        """Begin a group, in which each wait takes at most so long."""
        for rank in ranks:
            stdin = self.processes[rank].stdin
            assert stdin is not None
            stdin.write(f"{number} {seconds}\n")
            stdin.flush()

    def wait_for_the_last(self, number: int, seconds: float = 2.0) -> set[tuple[str, int]]:
        """Begin a group but for its last rank; where the others listen for that."""
        before = self.listening()  # Of groups that came to nothing.
        self.begin(number, 0, 1, seconds=seconds)
        return until(
            lambda: new if len(new := self.listening() - before) == 2 else None, "two ranks listen", CONDITION_TIMEOUT
        )

    def said(self) -> list[Any]:
        """By all, of the group that they have begun."""
        found = []
        for process in self.processes:
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline() or '{"error": "the process is gone"}'))
        return found

    def listening(self) -> set[tuple[str, int]]:
        """Where they can be connected to."""
        return {
            (each.laddr.ip, each.laddr.port)
            for process in self.processes
            for each in psutil.Process(process.pid).net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }

    def errors(self) -> str:
        """All that they have written, once they have ended."""
        return "".join(process.communicate(timeout=CONDITION_TIMEOUT)[1] for process in self.processes)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with contextlib.ExitStack() as stack:
        yield Ranks(tmp_path, stack)


def claim(address: tuple[str, int], stack: contextlib.ExitStack) -> list[socket.socket]:
    """Come in the place of every rank that is awaited there."""
    claimed = []
    for pair in range(PAIRS):
        stranger = stack.enter_context(socket.create_connection(address, timeout=CONDITION_TIMEOUT))
        stranger.sendall(struct.pack("=q", pair))
        claimed.append(stranger)
    return claimed


def received(stranger: socket.socket) -> bytes:
    """All that was ever sent to it."""
    stranger.settimeout(CONDITION_TIMEOUT)
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := stranger.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_who_takes_the_place_of_a_rank_gets_nothing_and_changes_nothing(ranks: Ranks) -> None:
    """Which of two ranks waits for the other is decided by their ports, at random: in most rounds one does."""
    taken = 0
    for number in range(ROUNDS):
        with contextlib.ExitStack() as stack:
            places = ranks.wait_for_the_last(number)
            strangers = [each for place in places for each in claim(place, stack)]
            ranks.begin(number, 2)
            said = ranks.said()
            got = [received(stranger) for stranger in strangers]
        taken += any("in the place of" in each.get("error", "") for each in said)
        assert got == [b""] * len(strangers), said
        sums = [each["sum"] for each in said if "sum" in each]
        assert sums in ([], [[6.0]] * 3), said
    errors = ranks.errors()
    assert [process.returncode for process in ranks.processes] == [0, 0, 0], errors
    assert "strangers were connected to this rank" in errors
    assert taken, "no stranger was ever in time"


@pytest.mark.parametrize("count", [200, 1700])
def test_idle_strangers_do_not_keep_a_group_from_forming_and_are_sent_away(ranks: Ranks, count: int) -> None:
    """However many: a rank says nothing of them to the others, whose store takes small words alone."""
    raise_descriptor_limit()
    with contextlib.ExitStack() as stack:
        places = ranks.wait_for_the_last(0, seconds=CONDITION_TIMEOUT)
        strangers = [
            stack.enter_context(socket.create_connection(place, timeout=CONDITION_TIMEOUT))
            for place in places
            for _ in range(count)
        ]
        ranks.begin(0, 2, seconds=CONDITION_TIMEOUT)
        assert ranks.said() == [{"sum": [6.0]}] * 3
        assert {received(stranger) for stranger in strangers} == {b""}


@pytest.mark.parametrize("start", ["torch"], indirect=True)
def test_once_a_world_stands_nobody_gets_in(start: Start) -> None:
    run = start(Script("parallel.py", holds=(5,)), (2, 2, 2))
    run.at(5)
    run.trains(2)
    pids = [run.rank_pid(0), run.rank_pid(1)]
    places = [
        (each.laddr.ip, each.laddr.port)
        for pid in pids
        for each in psutil.Process(pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert len(places) == 4  # Of each rank: for a group of the script, and for one of this package.
    for place in places:
        with pytest.raises(TimeoutError):
            socket.create_connection(place, timeout=0.5)

    run.go_on()
    run.succeed()

    assert PROVE not in run.log()


def ended(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of Python."""
    command, env = [sys.executable, *arguments], {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=CONDITION_TIMEOUT)


def test_groups_that_two_threads_make_at_once_are_refused() -> None:
    """Each would take the other's connections for a stranger's."""
    process = ended("-c", textwrap.dedent(THREADS))
    assert process.returncode == 0, process.stderr
    said = process.stdout.splitlines()
    assert "make one after the other" in said[0]
    assert said[1] == "made"


def test_what_a_device_mesh_splits_off_is_proved() -> None:
    """Where ranks are bound to devices. With one rank: Gloo's own split of more hangs, once in 25 (torch 2.13)."""
    said = ended("-c", textwrap.dedent(MESH), GLOO_SOCKET_IFNAME="lo")
    assert said.stdout == "True\n", said.stderr


def test_a_group_that_connects_without_gloo_has_nothing_to_prove() -> None:
    """As NCCL's: no connection of Gloo's, and none that is missing."""

    class Group:
        _device_types = (torch.device("cuda"),)
        group_name = "mesh"

        def size(self) -> int:
            return 2

        def _get_backend(self, _device: torch.device) -> object:
            return object()

    group = Group()
    assert peers._Proofs(pytest.fail).split(dist.HashStore(), lambda: group) is group


def test_where_a_process_is_in_one_world_alone_a_place_that_is_taken_ends_it() -> None:
    """Whatever kind of group it was: the run begins again, and the script is not blamed."""
    script = """
        from elastic_runtime.engines.torch.peers import PlaceTaken, _Proofs
        from elastic_runtime.engines.torchrun import rank

        with _Proofs(rank._abort)._alone():
            raise PlaceTaken("a stranger")
    """
    said = ended("-c", textwrap.dedent(script))
    assert said.returncode == -signal.SIGABRT
    assert "Traceback" not in said.stderr
    assert "a stranger" in said.stderr


def test_without_privileges_a_group_is_made_also_where_the_system_allows_no_packet_filter() -> None:
    """As for the user of a pod. Gloo keeps the descriptor of each that resets, unless it accepts nobody."""
    script, pipe = [sys.executable, "-c", textwrap.dedent(UNPRIVILEGED)], subprocess.PIPE
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(script, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        said = rank.stdout.readline()
        assert said == "made\n", rank.communicate()[1]
        [place] = [each.laddr for each in psutil.Process(rank.pid).net_connections("tcp") if each.status == "LISTEN"]
        before = psutil.Process(rank.pid).num_fds()
        for _ in range(200):
            with contextlib.suppress(TimeoutError), socket.create_connection(place, timeout=0.05) as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rank.stdin.write("\n")
        rank.stdin.flush()
        assert int(rank.stdout.readline()) <= before + 5
        rank.communicate("\n")
        assert rank.returncode == 0


class TestGone:
    """A stranger leaves when it likes, also between two looks at its connection."""

    @pytest.fixture
    def listening(self) -> Iterator[socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as made:
            yield made

    def test_one_that_has_reset_its_connection_is_no_error(self, listening: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stranger = socket.create_connection(listening.getsockname(), timeout=CONDITION_TIMEOUT)
            accepted = stack.enter_context(listening.accept()[0])
            stranger.sendall(struct.pack("=q", 0))
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stranger.close()
            opened = open_sockets()
            assert peers._ends(accepted.fileno(), opened[accepted.fileno()]) is None
            assert not peers._end_strangers(opened, {listening.getsockname()[1]}, set())

    def test_a_descriptor_that_is_closed_or_another_s_by_now_is_left_alone(self, listening: socket.socket) -> None:
        with socket.create_connection(listening.getsockname(), timeout=CONDITION_TIMEOUT) as stranger:
            accepted, _ = listening.accept()
            opened = open_sockets()
            descriptor = accepted.fileno()
            accepted.close()
            found = {descriptor: opened[descriptor], 1 << 20: "socket:[1]"}
            assert peers._listening(found) == {}
            assert not peers._end_strangers(found, {listening.getsockname()[1]}, set())
            with listening.dup() as other:
                assert other.fileno() == descriptor
                assert peers._listening(found) == {}
                peers._set_filters(found, admit=False)
                socket.create_connection(listening.getsockname(), timeout=CONDITION_TIMEOUT).close()
            assert stranger.recv(1) == b""

    def test_what_fails_in_a_proof_is_a_place_that_was_taken(self) -> None:
        for error in (OSError(9, "Bad file descriptor"), ValueError("too much"), StoreTimeout("no answer")):
            with pytest.raises(PlaceTaken, match="cannot prove"), peers._proving(0):
                raise error
        with pytest.raises(WorldLost), peers._proving(0):
            raise WorldLost("a rank of the world is lost")

    def test_what_gloo_makes_of_a_reset_is_none_of_the_script_s_errors(self) -> None:
        with pytest.raises(PlaceTaken), peers._connecting():
            raise RuntimeError("Gloo connectFullMesh failed with [pair.cc:144] Connection reset by peer")
        with pytest.raises(RuntimeError, match="device") as error, peers._connecting():
            raise RuntimeError("[enforce fail at device.cc:208] ifa != nullptr. Unable to find address for: eth7")
        assert not isinstance(error.value, PlaceTaken)
