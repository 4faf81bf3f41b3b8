"""Rank processes through a real zygote: how they are stopped, die and talk.

What they run: test_ranks_commands. What they leave: test_rank_leftovers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from elastic_runtime.agent.rank_links import MAX_LINKS
from elastic_runtime.clock import utc_now
from elastic_runtime.protocol.rank_link import Handover, RankLink
from elastic_runtime.protocol.rank_sockets import RANK_FD, RANK_SOCKET, short_path
from elastic_runtime.protocol.wire import RankExited, RankSaid, RankState, Ready
from elastic_runtime.run.jobs import NOTICE_TO_ALL
from elastic_runtime.script.stacks import SIGNAL as STACK_SIGNAL
from elastic_runtime.world import WORLD
from tests.unit.runtime.worker_bench import LOADER, SOON, Worker, code, gone, with_worker

BENCH = "tests.unit.runtime.worker_bench"


def stop(pid: int) -> None:
    """Stop that process, until the kernel says so."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        pass


STUBBORN = code("import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)")
WILLING = code("import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('ready'); time.sleep(600)")
PARENT = code("""
import os, signal, subprocess, sys, time
def heed(*_):
    child.communicate(b"go on")
    print("the child has worked on" if child.returncode == 0 else "the child was signalled, too")
    sys.exit(0)
child = subprocess.Popen(["sh", "-c", "read -r word; exit 0"], stdin=subprocess.PIPE)
signal.signal(signal.SIGUSR1, heed)
print(child.pid)
print("ready")
time.sleep(600)
""")
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

    def test_one_whose_process_is_stopped_has_no_grace(self) -> None:
        async def test(worker: Worker) -> None:
            stop(await worker.start("a", WILLING))
            await asyncio.wait_for(worker.ranks.stop_rank("a", grace=10 * SOON), SOON)
            await worker.until(lambda: worker.code("a") == -signal.SIGKILL)

        with_worker(True, test)

    def test_takes_the_processes_that_a_rank_has_started_along(self) -> None:
        async def test(worker: Worker) -> None:
            await worker.start("a", FAMILY)
            child = int(worker.lines("a", "stdout")[0])
            await worker.ranks.stop_rank("a", grace=SOON)
            await worker.until(lambda: worker.code("a") == -signal.SIGTERM)
            await asyncio.to_thread(gone, child)

        with_worker(False, test)

    def test_an_interruption_leaves_the_processes_that_a_rank_works_with(self) -> None:
        async def test(worker: Worker) -> None:
            await worker.start("a", PARENT)
            child = int(worker.lines("a", "stdout")[0])
            await worker.ranks.stop_rank("a", SOON, signal.SIGUSR1)
            await worker.until(lambda: worker.code("a") == 0)
            assert not worker.of(RankExited)[0].by_itself
            assert worker.lines("a", "stdout")[-1] == "the child has worked on"
            await asyncio.to_thread(gone, child)

        with_worker(True, test)

    def test_of_a_rank_that_is_over_does_nothing(self) -> None:
        async def test(worker: Worker) -> None:
            assert await worker.run("a", code("pass")) == 0
            assert worker.of(RankExited)[0].by_itself
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

    @pytest.mark.parametrize("warm", [True, False])
    def test_where_all_processes_get_the_notice_a_rank_trains_on_and_ends_when_told(
        self, monkeypatch: pytest.MonkeyPatch, warm: bool
    ) -> None:
        monkeypatch.setenv(NOTICE_TO_ALL, "1")
        told = "import signal, time; signal.raise_signal(signal.SIGTERM); print('ready', flush=True); time.sleep(600)"

        async def test(worker: Worker) -> None:
            pid = await worker.start("a", code(told))
            os.kill(pid, signal.SIGTERM)
            await worker.ranks.stop_rank("a", grace=SOON)
            await worker.until(lambda: worker.code("a") == -signal.SIGTERM)

        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As what nohup has started inherits it.
        try:
            with_worker(warm, test)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_and_processes_that_a_rank_has_forked_end_by_sigterm_as_multiprocessing_wants(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(NOTICE_TO_ALL, "1")
        pool = (
            "import multiprocessing\n"
            "pool = multiprocessing.get_context('fork').Pool(2)\n"
            "assert pool.map(abs, [-1, 2]) == [1, 2]\n"
            "pool.terminate(); pool.join()"
        )

        async def test(worker: Worker) -> None:
            assert await worker.run("a", code(pool)) == 0

        with_worker(True, test)

    def test_closing_ends_everything(self) -> None:
        async def run() -> None:
            async with Worker(True) as worker:
                pids = [await worker.start(name, STUBBORN) for name in "ab"]
            assert {name: worker.code(name) for name in "ab"} == {"a": -9, "b": -9}
            for pid in pids:
                assert not psutil.pid_exists(pid)

        asyncio.run(run())

    def test_waits_for_the_last_words_of_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(worker: Worker) -> None:
            begun, go_on = asyncio.Event(), asyncio.Event()
            for name in "ab":
                await worker.start(name, WILLING)
            links = worker.ranks._ranks["b"].links
            close = links.close

            async def heard() -> None:
                begun.set()
                await go_on.wait()
                await close()

            monkeypatch.setattr(links, "close", heard)
            stopping = asyncio.create_task(worker.ranks.stop())
            await begun.wait()
            await worker.until(lambda: worker.code("a") is not None)
            await asyncio.sleep(0)
            was_done = stopping.done()
            go_on.set()
            await stopping
            assert not was_done
            assert worker.code("b") is not None

        with_worker(True, test)


CHILD = """
import time
from elastic_runtime.protocol.rank_link import Progress, shared_link
link = shared_link()
assert not link.connected
link.connect()
link.send(Progress(3))
while not link.leaving:
    link.hear()
    time.sleep(0.01)
link.send(Progress(4))
"""
WITHOUT_DESCRIPTORS = code(f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {CHILD!r}]))")
MANY = code("""
import os, socket
from elastic_runtime.protocol.rank_sockets import RANK_SOCKET, short_path
path = os.environ[RANK_SOCKET]
connections = []
with short_path(path) as short:
    for _ in range(40):
        connections.append(socket.socket(socket.AF_UNIX))
        connections[-1].connect(short)
connections[-1].recv(1)
def is_let_in(each):
    each.setblocking(False)
    try:
        return each.recv(1) != b""
    except BlockingIOError:
        return True
print(oct(os.stat(os.path.dirname(path)).st_mode), sum(map(is_let_in, connections)))
""")


class TestJoining:
    """By a process that a rank has started, which has not inherited the rank's descriptors."""

    @pytest.mark.parametrize("warm", [True, False])
    def test_it_has_the_ranks_line_to_the_agent(self, *, warm: bool) -> None:
        async def test(worker: Worker) -> None:
            worker.ranks.start_rank("a", WITHOUT_DESCRIPTORS, {}, None)
            await worker.until(lambda: bool(worker.of(RankSaid)))
            worker.ranks.tell(Handover("b", utc_now()))
            await worker.until(lambda: worker.code("a") is not None)
            assert worker.code("a") == 0
            assert [each.message["step"] for each in worker.of(RankSaid)] == [3, 4]

        with_worker(warm, test)

    def test_is_for_this_user_alone_and_for_a_few_at_a_time(self) -> None:
        async def test(worker: Worker) -> None:
            assert await worker.run("a", MANY) == 0
            assert worker.lines("a", "stdout") == [f"0o40700 {MAX_LINKS - 1}"]

        with_worker(True, test)

    def test_after_the_rank_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(ConnectionError, match="cannot take part in the run: no agent"):
            RankLink(None).connect({RANK_SOCKET: str(tmp_path / "link-0")})

    def test_is_where_no_path_is_too_long(self, tmp_path: Path) -> None:
        folder = tmp_path / ("long" * 40)
        folder.mkdir()
        with short_path(folder / "link-0") as short, socket.socket(socket.AF_UNIX) as listening:
            listening.bind(short)
            listening.listen()
            link = RankLink(None)
            link.connect({RANK_SOCKET: str(folder / "link-0")})
            assert link.connected
            link.close()


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

    def test_of_the_zygote_ends_what_its_ranks_have_started(self) -> None:
        async def test(worker: Worker) -> None:
            await worker.start("a", LOADER)
            await worker.start("b", FAMILY)
            started = [*worker.lines("a", "stdout")[:2], worker.lines("b", "stdout")[0]]
            os.kill(worker.ranks.pids[0], signal.SIGKILL)
            await worker.until(lambda: (worker.code("a"), worker.code("b")) == (-9, -9))
            for pid in started:
                await asyncio.to_thread(gone, int(pid))

        with_worker(True, test)

    def test_of_what_ends_them_is_mended(self) -> None:
        async def test(worker: Worker) -> None:
            before = await worker.start("a", FAMILY)
            zygote = psutil.Process(worker.ranks.pids[0])
            (keeper,) = [child for child in zygote.children() if child.pid != before]
            keeper.kill()
            await asyncio.to_thread(keeper.wait, SOON)  # Its parent has, too, and starts another before anything else.
            await worker.start("b", FAMILY)
            started = [int(worker.lines(name, "stdout")[0]) for name in "ab"]
            zygote.kill()
            for pid in started:
                await asyncio.to_thread(gone, pid)

        with_worker(True, test)

    def test_of_the_agent_ends_the_zygote_and_what_its_ranks_have_started(self) -> None:
        agent = """if True:
            import asyncio, os, socket
            from elastic_runtime.agent.zygote import ZygoteClient
            async def main():
                ready = asyncio.Event()
                client = ZygoteClient(lambda message: ready.set(), ready.set)
                client.execute(os.environ, preload=None)
                await ready.wait()
                print(client.pid, flush=True)
                ours, theirs = socket.socketpair()
                client.start("a", ["sh", "-c", "sleep 600 & echo $!; wait"], {}, None, (1, 2, theirs.fileno()))
                await asyncio.sleep(600)
            asyncio.run(main())"""
        with subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            zygote, job = int(process.stdout.readline()), int(process.stdout.readline())
            process.kill()
        gone(zygote)
        gone(job)


class TestLink:
    def test_a_rank_is_heard_and_hears(self) -> None:
        rank = """if True:
            import select
            from elastic_runtime.protocol.rank_link import Progress, RankLink
            link = RankLink.from_environment()
            link.send(Progress(2))
            select.select([link._socket], [], [])
            link.hear()
            print([*link.leaving])"""

        async def test(worker: Worker) -> None:
            worker.ranks.start_rank("a", code(rank), {}, None)
            await worker.until(lambda: bool(worker.of(RankSaid)))
            worker.ranks.tell(Handover("worker-7", utc_now()))
            await worker.until(lambda: worker.code("a") is not None)
            assert worker.lines("a", "stdout") == ["['worker-7']"]

        with_worker(True, test)

    def test_a_rank_is_asked_where_it_stands_and_its_agent_whether_it_runs(self) -> None:
        rank = """if True:
            from elastic_runtime.protocol.rank_link import shared_link
            from elastic_runtime.script.standing import ledger
            shared_link().set_engine_callbacks(lambda _: None, lambda: None, lambda: None)
            ledger().commits(7)
            print("ready", flush=True)
            while True: pass"""

        async def test(worker: Worker) -> None:
            pids = [await worker.start(name, code(rank)) for name in ("a", "b")]
            stop(pids[1])
            worker.ranks.dump_stacks(ask=True)
            await worker.until(lambda: any(each.message["type"] == "standing" for each in worker.of(RankSaid)))
            assert worker.of(RankState) == [RankState("a", False), RankState("b", True)]
            [answer] = [each for each in worker.of(RankSaid) if each.message["type"] == "standing"]
            assert (answer.rank_id, answer.message["commits"], answer.message["step"]) == ("a", 1, 7)
            assert answer.message["waits"] is False

        with_worker(True, test)

    def test_a_quiet_question_leaves_nothing_in_the_log(self) -> None:
        async def test(worker: Worker) -> None:
            signals: asyncio.Queue[int] = asyncio.Queue()
            await worker.start("a", code("print('ready', flush=True); import time; time.sleep(60)"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(worker.ranks, "signal", lambda _rank, number: signals.put_nowait(number))
                patch.setattr("elastic_runtime.agent.ranks.STACKS_TIME", 0.0)
                worker.ranks.dump_stacks(ask=True, quiet=True)
                assert worker.of(RankState) == [RankState("a", False)]
                await asyncio.sleep(0.1)
                assert signals.empty()
                worker.ranks.dump_stacks()
                assert await asyncio.wait_for(signals.get(), SOON) == STACK_SIGNAL

        with_worker(True, test)

    def test_a_rank_that_answers_writes_its_stacks_itself_and_is_not_signalled(self) -> None:
        """Its handler of the signal may meet frames that another thread changes, which ends the process."""
        silent = """if True:
            import signal
            signal.signal(signal.SIGURG, lambda *_: print("signalled", flush=True))
            print("ready", flush=True)
            while True: signal.pause()"""
        answers = f"""if True:
            from elastic_runtime.protocol.rank_link import shared_link
            from elastic_runtime.script.standing import ledger
            shared_link().set_engine_callbacks(lambda _: None, lambda: None, lambda: None)
            ledger()
            {silent[silent.index("import signal") :]}"""

        async def test(worker: Worker) -> None:
            for name, rank in (("a", answers), ("b", silent)):
                await worker.start(name, code(rank))
            worker.ranks.dump_stacks()
            await worker.until(lambda: "signalled" in worker.lines("b", "stdout"))
            assert worker.lines("a", "stdout") == ["ready"]
            assert any("most recent call first" in line for line in worker.lines("a", "stderr"))

        with_worker(True, test)

    def test_what_a_rank_has_said_before_its_end_is_heard(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("elastic_runtime.agent.ranks._CHUNK", 1024)
        rank = """if True:
            import os, select
            from elastic_runtime.protocol.rank_link import Metrics, RankLink
            link = RankLink.from_environment()
            print("ready", flush=True)
            select.select([link._socket], [], [])
            for step in range(4):
                link.send(Metrics({"x" * 40_000: 1.0}, step))
            os.kill(os.getpid(), 9)"""

        async def test(worker: Worker) -> None:
            pid = await worker.start("a", code(rank))
            worker.ranks.tell(Handover("worker-7", utc_now()))
            gone(pid)  # Nothing is read meanwhile: its words, and its end, are all there at once.
            await worker.until(lambda: worker.code("a") is not None)
            assert [said.message["step"] for said in worker.of(RankSaid)] == [0, 1, 2, 3]

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


def test_a_progress_bar_is_told_before_its_line_ends() -> None:
    async def test(worker: Worker) -> None:
        draw = "sys.stderr.write(f'\\rstep {at}'); sys.stderr.flush()"
        bar = f"import sys, time\nfor at in range(50): {draw}\ntime.sleep(600)"
        worker.ranks.start_rank("a", code(bar), {}, None)
        await worker.until(lambda: worker.lines("a", "stderr")[-1:] == ["step 49"])
        assert len(worker.lines("a", "stderr")) < 10
        await worker.ranks.stop_rank("a", grace=SOON)

    with_worker(True, test)


def test_a_warm_process_that_lacks_an_import_runs_ranks_cold_and_says_why() -> None:
    async def run() -> Worker:
        async with Worker(True, ("no_such_module",)) as worker:
            assert await worker.run("a", code("import sys; print('elastic_runtime' in sys.modules)")) == 0
        return worker

    worker = asyncio.run(run())
    assert worker.of(Ready) == [Ready(False, "cannot import no_such_module: No module named 'no_such_module'")]
    assert worker.lines("a", "stdout") == ["False"]


@pytest.mark.parametrize(("warm", "said"), [(True, ["prepared", "True"]), (False, ["False"])])
def test_a_warm_rank_has_what_its_engine_preloads_and_its_world_is_prepared(warm: bool, said: list[str]) -> None:
    async def run() -> list[str]:
        async with Worker(warm, ("fractions",)) as worker:
            command, environment = code("import sys; print('fractions' in sys.modules)"), {WORLD: f"{BENCH}:WORLD"}
            assert await worker.run("a", command, **environment) == 0
            return worker.lines("a", "stdout")

    assert asyncio.run(run()) == said


def test_a_warm_rank_collects_garbage() -> None:
    """The process that it is forked from does not, while it imports."""

    async def test(worker: Worker) -> None:
        assert await worker.run("a", code("import gc; print(gc.isenabled(), gc.get_freeze_count() > 0)")) == 0
        assert worker.lines("a", "stdout") == ["True True"]

    with_worker(True, test)


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
