"""Rank processes through a real zygote: how they start, what they write, how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from elastic_runtime.agent.ranks import Ranks
from elastic_runtime.clock import utc_now
from elastic_runtime.rank_link import RANK_FD, HandoverWanted
from elastic_runtime.wire import AgentMessage, Output, RankExited, RankSaid, RankStarted, Ready

SOON = 20.0
ODD = "\N{REPLACEMENT CHARACTER}"
T = TypeVar("T")
LIGHT = "from elastic_runtime.agent import zygote; zygote.WARM_IMPORTS = ('json',); zygote.main()"
"""A warm process that is warm at once."""


def warm_process(script: str = LIGHT) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(theirs.fileno()), "1", str(os.getpid())], pass_fds=[theirs.fileno()]
        )
    process.returncode = 0  # reaped by pid
    return ours, process.pid


@dataclass(eq=False)
class Worker:
    """The ranks of one worker, and what they told."""

    warm: bool
    messages: list[AgentMessage] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ranks: Ranks = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = Ranks(self._hear, os.environ, warm=False)

    async def __aenter__(self) -> Worker:
        self.ranks.start(warm_process() if self.warm else None)
        await self.until(lambda: bool(self.of(Ready)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ranks.close()

    def _hear(self, message: AgentMessage) -> None:
        self.messages.append(message)
        self.changed.set()

    def of(self, kind: type[T]) -> list[T]:
        return [each for each in self.messages if isinstance(each, kind)]

    def code(self, rank_id: str) -> int | None:
        return next((each.code for each in self.of(RankExited) if each.rank_id == rank_id), None)

    def lines(self, rank_id: str, stream: str) -> list[str]:
        found = [each for each in self.of(Output) if (each.rank_id, each.stream) == (rank_id, stream)]
        return [line for each in found for line in each.lines]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def run(self, rank_id: str, command: Sequence[str]) -> int | None:
        self.ranks.start_rank(rank_id, command, {}, None)
        await self.until(lambda: self.code(rank_id) is not None)
        return self.code(rank_id)

    async def start(self, rank_id: str, command: Sequence[str]) -> int:
        """Until it has said ``ready``. Returns its pid."""
        self.ranks.start_rank(rank_id, command, {}, None)
        await self.until(lambda: "ready" in self.lines(rank_id, "stdout") and rank_id in self.pids())
        return self.pids()[rank_id]

    def pids(self) -> dict[str, int]:
        return {each.rank_id: each.pid for each in self.of(RankStarted)}


def with_worker(warm: bool, test: Callable[[Worker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Worker(warm) as worker:
            await test(worker)

    asyncio.run(run())


def gone(pid: int) -> None:
    """Wait until that process has ended; its parent may not have waited for it yet."""
    try:
        process = psutil.Process(pid)
        psutil.wait_procs([process], timeout=0)
        for _ in range(int(SOON / 0.01)):
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            psutil.wait_procs([process], timeout=0.01)
    except psutil.NoSuchProcess:
        return
    raise AssertionError(f"{process} is still there")


SCRIPT = """
import os, sys
print(__name__, sys.argv, sys.path[0] == os.path.dirname(os.path.abspath(__file__)), os.environ["COLOUR"])
import beside
"""
MODULE = """
import os, sys
print(__name__, __package__, sys.argv[1:], os.path.basename(sys.argv[0]), os.path.samefile(sys.path[0], os.getcwd()))
"""
LATE = """
import atexit, threading, sys
word = "late"
def say(): print(word)
atexit.register(say)
def wait(): gate.wait(); print("thread", word)
gate = threading.Event()
threading.Thread(target=wait).start()
threading.Timer(0.05, gate.set).start()
"""
MAIN = """
import pickle, sys
class Thing: pass
print(type(pickle.loads(pickle.dumps(Thing()))) is Thing, sys.modules["__main__"].Thing is Thing)
"""


@dataclass(frozen=True)
class Case:
    command: tuple[str, ...]
    code: int
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()
    """The last lines."""


def code(text: str) -> tuple[str, ...]:
    return "python", "-c", text


CASES: Mapping[str, Case] = {
    "script": Case(("python", "train.py", "--a", "b"), 0, ("__main__ ['train.py', '--a', 'b'] True red", "beside")),
    "unbuffered script": Case(("python3", "-u", "train.py"), 0, ("__main__ ['train.py'] True red", "beside")),
    "own interpreter": Case((sys.executable, "train.py"), 0, ("__main__ ['train.py'] True red", "beside")),
    "module": Case(("python", "-m", "package.module", "-x"), 0, ("__main__ package ['-x'] module.py True",)),
    "code": Case((*code("import sys; print(sys.argv, __name__)"), "-v"), 0, ("['-c', '-v'] __main__",)),
    "classes of the script": Case(("python", "main.py"), 0, ("True True",)),
    "not Python": Case(("sh", "-c", "echo out; echo err >&2; exit 3"), 3, ("out",), ("err",)),
    "exit 0": Case(code("import sys; sys.exit(0)"), 0),
    "exit without a code": Case(code("import sys; sys.exit()"), 0),
    "exit 3": Case(code("import sys; sys.exit(3)"), 3),
    "exit with a text": Case(code("import sys; sys.exit('no data')"), 1, (), ("no data",)),
    "exception": Case(code("raise ValueError('bad batch')"), 1, (), ("ValueError: bad batch",)),
    "SIGKILL": Case(code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), -signal.SIGKILL),
    "SIGTERM": Case(code("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"), -signal.SIGTERM),
    "abort": Case(code("import os; os.abort()"), -signal.SIGABRT),
    "threads and exit functions": Case(("python", "late.py"), 0, ("thread late", "late")),
    "no newline at the end": Case(code("print('a'); print('b', end='')"), 0, ("a", "b")),
    "empty lines": Case(code("print('\\n\\nx')"), 0, ("", "", "x")),
    "progress bar": Case(code("print('1%\\r50%\\r100%\\r'); print('dos\\r')"), 0, ("100%", "dos")),
    "not UTF-8": Case(
        code("import os; os.write(1, b'caf\\xe9 \\xff\\n')"),
        0,
        (f"caf{ODD} {ODD}",),
    ),
    "UTF-8": Case(code("print('\\u00e9t\\u00e9')"), 0, ("été",)),
    "output right before its death": Case(
        code("import os; os.write(1, b'x' * 300 + b'\\n'); os.abort()"), -6, ("x" * 300,)
    ),
}


@pytest.fixture(scope="module", params=["warm", "cold"])
def all_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """All cases, started at once in one worker."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("print(__name__)\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "module.py").write_text(MODULE)
    (folder / "late.py").write_text(LATE)
    (folder / "main.py").write_text(MAIN)

    async def run() -> Worker:
        async with Worker(request.param == "warm") as worker:
            for name, case in CASES.items():
                worker.ranks.start_rank(name, case.command, {"COLOUR": "red"}, str(folder))
            await worker.until(lambda: len(worker.of(RankExited)) == len(CASES))
            return worker

    return asyncio.run(run())


class TestAsOfThemselves:
    """A rank behaves as its command would in a shell, whether it was forked warm or executed cold."""

    @pytest.mark.parametrize("name", CASES)
    def test_a_command(self, all_run: Worker, name: str) -> None:
        case = CASES[name]
        errors = all_run.lines(name, "stderr")
        assert all_run.lines(name, "stdout") == list(case.stdout), errors
        assert errors[len(errors) - len(case.stderr) :] == list(case.stderr)
        assert all_run.code(name) == case.code

    def test_tells_of_each_once_and_of_the_end_last(self, all_run: Worker) -> None:
        order: dict[str, list[str]] = defaultdict(list)
        for message in all_run.messages:
            if not isinstance(message, Ready):
                order[message.rank_id].append(message.type)  # type: ignore[union-attr]  # none but those of ranks
        for told in order.values():
            assert (told.count("rank_started"), told.count("rank_exited")) == (1, 1)
            assert told[-1] == "rank_exited"

    def test_says_whether_it_is_warm(self, all_run: Worker) -> None:
        assert all_run.of(Ready) == [Ready(all_run.warm, "")]


STUBBORN = code("import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)")
WILLING = code("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('ready'); time.sleep(600)")
FAMILY = ("sh", "-c", "sleep 600 & echo $!; echo ready; wait")


class TestStop:
    def test_a_rank_has_its_grace(self) -> None:
        async def test(worker: Worker) -> None:
            await worker.start("a", WILLING)
            await worker.ranks.stop_rank("a", grace=SOON)
            await worker.until(lambda: worker.code("a") == 5)

        with_worker(True, test)

    def test_one_that_does_not_listen_is_killed(self) -> None:
        async def test(worker: Worker) -> None:
            pid = await worker.start("a", STUBBORN)
            await worker.ranks.stop_rank("a", grace=0.05)
            await worker.until(lambda: worker.code("a") == -signal.SIGKILL)
            assert not psutil.pid_exists(pid)

        with_worker(True, test)

    def test_takes_the_processes_that_a_rank_has_started_along(self) -> None:
        async def test(worker: Worker) -> None:
            await worker.start("a", FAMILY)
            child = int(worker.lines("a", "stdout")[0])
            await worker.ranks.stop_rank("a", grace=SOON)
            await worker.until(lambda: worker.code("a") == -signal.SIGTERM)
            await asyncio.to_thread(gone, child)

        with_worker(False, test)

    def test_of_a_rank_that_is_over_does_nothing(self) -> None:
        async def test(worker: Worker) -> None:
            assert await worker.run("a", code("pass")) == 0
            await worker.ranks.stop_rank("a", grace=SOON)
            await worker.ranks.stop_rank("never", grace=SOON)

        with_worker(True, test)

    def test_of_a_rank_that_has_hardly_begun_is_heard(self) -> None:
        """The zygote ignores SIGTERM, and a child inherits that."""

        async def test(worker: Worker) -> None:
            names = [str(number) for number in range(10)]
            for name in names:
                worker.ranks.start_rank(name, ("sleep", "600"), {}, None)
                worker.ranks.signal(name, signal.SIGTERM)
            await worker.until(lambda: len(worker.of(RankExited)) == len(names))
            assert {worker.code(name) for name in names} == {-signal.SIGTERM}

        with_worker(False, test)

    def test_closing_ends_everything(self) -> None:
        async def run() -> None:
            async with Worker(True) as worker:
                pids = [await worker.start(name, STUBBORN) for name in "ab"]
            assert {name: worker.code(name) for name in "ab"} == {"a": -9, "b": -9}
            for pid in pids:
                assert not psutil.pid_exists(pid)

        asyncio.run(run())


class TestDeath:
    def test_of_the_zygote_ends_its_ranks(self) -> None:
        async def test(worker: Worker) -> None:
            pids = [await worker.start("a", STUBBORN), await worker.start("b", WILLING)]
            os.kill(worker.ranks.pids[0], signal.SIGKILL)
            await worker.until(lambda: (worker.code("a"), worker.code("b")) == (-9, -9))
            for pid in pids:
                await asyncio.to_thread(gone, pid)
            assert await worker.run("c", code("pass")) == -signal.SIGKILL

        with_worker(True, test)

    def test_of_the_agent_ends_the_zygote(self) -> None:
        agent = """if True:
            import asyncio, os
            from elastic_runtime.agent.zygote_client import ZygoteClient
            async def main():
                ready = asyncio.Event()
                client = ZygoteClient(lambda message: ready.set(), ready.set)
                client.execute(os.environ, warm=False)
                await ready.wait()
                print(client.pid, flush=True)
                await asyncio.sleep(600)
            asyncio.run(main())"""
        with subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            zygote = int(process.stdout.readline())
            process.kill()
        gone(zygote)


class TestLink:
    def test_a_rank_is_heard_and_hears(self) -> None:
        rank = """if True:
            import select
            from elastic_runtime.rank_link import Joined, RankLink
            link = RankLink.from_environment()
            link.send(Joined(0, 2))
            select.select([link._socket], [], [])
            print([message.worker for message in link.poll()])"""

        async def test(worker: Worker) -> None:
            worker.ranks.start_rank("a", code(rank), {}, None)
            await worker.until(lambda: bool(worker.of(RankSaid)))
            worker.ranks.tell(HandoverWanted("worker-7", utc_now()))
            await worker.until(lambda: worker.code("a") is not None)
            assert worker.lines("a", "stdout") == ["['worker-7']"]

        with_worker(True, test)

    def test_one_that_talks_nonsense_trains_on(self) -> None:
        rank = f"import os; os.write(int(os.environ['{RANK_FD}']), b'nonsense\\n'); print('ready'); input()"

        async def test(worker: Worker) -> None:
            await worker.start("a", code(rank))
            await worker.ranks.stop_rank("a", grace=SOON)
            await worker.until(lambda: worker.code("a") is not None)
            assert not worker.of(RankSaid)

        with_worker(True, test)


def test_a_line_without_an_end_comes_in_pieces() -> None:
    async def test(worker: Worker) -> None:
        assert await worker.run("a", code("import os; os.write(1, b'x' * 200_000)")) == 0
        lines = worker.lines("a", "stdout")
        assert "".join(lines) == "x" * 200_000
        assert len(lines) > 1

    with_worker(True, test)


def test_a_process_that_a_rank_leaves_behind_does_not_hold_its_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_runtime.agent.ranks.OUTPUT_DRAIN", 0.05)

    async def test(worker: Worker) -> None:
        assert await worker.run("a", ("sh", "-c", "sleep 600 & echo $!")) == 0
        os.kill(int(worker.lines("a", "stdout")[0]), signal.SIGKILL)

    with_worker(False, test)


def test_a_warm_process_that_lacks_an_import_runs_ranks_cold_and_says_why() -> None:
    async def run() -> Worker:
        worker = Worker(True)
        worker.ranks.start(warm_process(LIGHT.replace("json", "no_such_module")))
        assert await worker.run("a", code("import sys; print('elastic_runtime' in sys.modules)")) == 0
        await worker.ranks.close()
        return worker

    worker = asyncio.run(run())
    assert worker.of(Ready) == [Ready(False, "cannot import no_such_module: No module named 'no_such_module'")]
    assert worker.lines("a", "stdout") == ["False"]


@pytest.mark.parametrize(
    ("command", "directory", "words"),
    [
        (("no-such-program",), None, "cannot start no-such-program in .: [Errno 2]"),
        (("true",), "/no/such/folder", "cannot start true in /no/such/folder: [Errno 2]"),
    ],
)
def test_what_cannot_be_started_says_so(command: tuple[str, ...], directory: str | None, words: str) -> None:
    async def test(worker: Worker) -> None:
        worker.ranks.start_rank("a", command, {}, directory)
        await worker.until(lambda: worker.code("a") is not None)
        assert worker.code("a") == 127
        assert worker.lines("a", "stderr")[0].startswith(words)

    with_worker(False, test)


def test_random_numbers_of_two_ranks_differ(tmp_path: Path) -> None:
    """They are forked from one process, and would inherit its state."""

    async def test(worker: Worker) -> None:
        for name in "ab":
            assert await worker.run(name, code("import random; print(random.random())")) == 0
        assert worker.lines("a", "stdout") != worker.lines("b", "stdout")

    with_worker(True, test)
