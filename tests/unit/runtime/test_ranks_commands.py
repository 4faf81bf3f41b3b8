"""Rank processes through a real zygote: a command runs as it would in a shell."""

from __future__ import annotations

import asyncio
import py_compile
import signal
import sys
import zipapp
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from elastic_runtime.protocol.messages import type_of
from elastic_runtime.protocol.wire import RankExited, Ready
from elastic_runtime.world import WORLD
from tests.unit.runtime.worker_bench import Worker, code, with_worker

ODD = "\N{REPLACEMENT CHARACTER}"
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
JOINED = """
import atexit, os, signal, sys, threading, time
atexit.register(print, "late")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
def ask():
    while threading.main_thread().is_alive():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
threading.Thread(target=ask).start()
"""
INTO_FILE = """
import atexit, sys
atexit.register(lambda: print("late", file=sys.__stdout__))
with open("/dev/null", "w") as file:
    sys.stdout = file
    print("step 1")
"""
OPEN_FILE = """
import os
out = open(os.dup(1), "w")
def write(): out.write("kept\\n")
write()
"""
FULL = "import sys; sys.{0} = open('/dev/full', 'w'); print(1, file=sys.{0})"
CLOSED_STDERR = "import atexit, sys; atexit.register(print, 'late'); sys.stderr{0}; {1}"
LATE_PICKLES = """
import atexit, pickle, threading
class Net: pass
def save(word): print(word, pickle.loads(pickle.dumps(Net())).__class__ is Net)
atexit.register(save, "exit function")
def wait():
    threading.main_thread().join()
    save("thread")
threading.Thread(target=wait).start()
"""
PICKLED_LATE = ("thread True", "exit function True")
NAMES = """
import os, sys
print(sorted(name for name in globals() if name.startswith("__") and name != "__annotations__"))
print(__name__, repr(__package__), __spec__ and __spec__.name, __loader__ is not None, type(__builtins__).__name__)
print("__file__" not in globals() or os.path.isabs(__file__))
print([os.path.relpath(sys.argv[0]), *sys.argv[1:]], os.path.relpath(sys.path[0] or "."))
"""
WITH_FILE = "['__builtins__', '__cached__', '__doc__', '__file__', '__loader__', '__name__', '__package__', '__spec__']"
FUTURE = "def f(batch: int): pass\nprint(f.__annotations__)"
HOOK = """
import atexit, os, sys
def hook(kind, error, trace): {}
atexit.register(print, "late")
sys.excepthook = hook
1 / 0
"""
HOOKED = "print(kind.__name__, error, trace.tb_frame.f_code.co_name, sys.last_value is error, sys.exc_info()[1])"
HOOK_FAILED = (
    *("Error in sys.excepthook:", "Traceback (most recent call last):", '  File "<string>", line 3, in hook'),
    *("KeyError: 'no such word'", ""),
    *("Original exception was:", "Traceback (most recent call last):", '  File "<string>", line 6, in <module>'),
    "ZeroDivisionError: division by zero",
)
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


CASES: Mapping[str, Case] = {
    "script": Case(("python", "train.py", "--a", "b"), 0, ("__main__ ['train.py', '--a', 'b'] True red", "beside")),
    "unbuffered script": Case(("python3", "-u", "train.py"), 0, ("__main__ ['train.py'] True red", "beside")),
    "own interpreter": Case((sys.executable, "train.py"), 0, ("__main__ ['train.py'] True red", "beside")),
    "module": Case(("python", "-m", "package.module", "-x"), 0, ("__main__ package ['-x'] module.py True",)),
    "code": Case((*code("import sys; print(sys.argv, __name__)"), "-v"), 0, ("['-c', '-v'] __main__",)),
    "classes of the script": Case(("python", "main.py"), 0, ("True True",)),
    "late pickles of a script": Case(("python", "pickles.py"), 0, PICKLED_LATE),
    "late pickles of a module": Case(("python", "-m", "pickles"), 0, PICKLED_LATE),
    "late pickles of code": Case(code(LATE_PICKLES), 0, PICKLED_LATE),
    "late pickles of a folder": Case(("python", "folder"), 0, PICKLED_LATE),
    "names of a script": Case(
        ("python", "names/__main__.py"),
        0,
        (WITH_FILE, "__main__ None None True module", "True", "['names/__main__.py'] names"),
    ),
    "names of compiled code": Case(
        ("python", "compiled.pyc"), 0, (WITH_FILE, "__main__ None None True module", "True", "['compiled.pyc'] .")
    ),
    "names of a folder": Case(
        ("python", "names", "x"), 0, (WITH_FILE, "__main__ '' __main__ True module", "True", "['names', 'x'] names")
    ),
    "names of an archive": Case(
        ("python", "names.zip"), 0, (WITH_FILE, "__main__ '' __main__ True module", "True", "['names.zip'] names.zip")
    ),
    "names of a module": Case(
        ("python", "-m", "names"),
        0,
        (WITH_FILE, "__main__ 'names' names.__main__ True module", "True", "['names/__main__.py'] ."),
    ),
    "names of code": Case(
        code(NAMES),
        0,
        (
            "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']",
            "__main__ None None True module",
            "True",
            "['-c'] .",
        ),
    ),
    "annotations": Case(code(FUTURE), 0, ("{'batch': <class 'int'>}",)),
    "a script that cannot be compiled": Case(("python", "torn.py"), 1, (), ("SyntaxError: '(' was never closed",)),
    "not Python": Case(("sh", "-c", "echo out; echo err >&2; exit 3"), 3, ("out",), ("err",)),
    "exit 0": Case(code("import sys; sys.exit(0)"), 0),
    "exit without a code": Case(code("import sys; sys.exit()"), 0),
    "exit 3": Case(code("import sys; sys.exit(3)"), 3),
    "exit with a text": Case(code("import sys; sys.exit('no data')"), 1, (), ("no data",)),
    "exception": Case(code("raise ValueError('bad batch')"), 1, (), ("ValueError: bad batch",)),
    "hook": Case(code(HOOK.format(HOOKED)), 1, ("ZeroDivisionError division by zero <module> True None", "late")),
    "hook that ends the process": Case(code(HOOK.format("os._exit(13)")), 13),
    "hook that exits": Case(code(HOOK.format("sys.exit(14)")), 14, ("late",)),
    "hook that fails": Case(code(HOOK.format("raise KeyError('no such word')")), 1, ("late",), HOOK_FAILED),
    "hook that is missing": Case(
        code("import sys; del sys.excepthook; 1 / 0"),
        1,
        (),
        ("sys.excepthook is missing", *HOOK_FAILED[-3:-2], '  File "<string>", line 1, in <module>', HOOK_FAILED[-1]),
    ),
    "SIGKILL": Case(code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), -signal.SIGKILL),
    "SIGTERM": Case(code("import os, signal; os.kill(os.getpid(), signal.SIGTERM)"), -signal.SIGTERM),
    "abort": Case(code("import os; os.abort()"), -signal.SIGABRT),
    "threads and exit functions": Case(("python", "late.py"), 0, ("thread late", "late")),
    "handler that exits while threads are joined": Case(("python", "joined.py"), 0, ("late",), ("SystemExit: 5",)),
    "stdout in a file that is closed": Case(("python", "into_file.py"), 0, ("late",)),
    "a file that is never closed": Case(code(OPEN_FILE), 0, ("kept",)),
    "closed stdout": Case(code("import sys; sys.stdout.close()"), 0),
    "no stdout": Case(code("import sys; sys.stdout = None"), 0),
    "another stdout": Case(code("import io, sys; print('a', end=''); sys.stdout = io.StringIO()"), 0, ("a",)),
    "full stdout": Case(code(FULL.format("stdout")), 120, (), ("OSError: [Errno 28] No space left on device",)),
    "full stderr": Case(code(FULL.format("stderr")), 120),
    "closed stderr": Case(code(CLOSED_STDERR.format(".close()", "pass")), 0, ("late",)),
    "closed stderr, exit with a text": Case(code(CLOSED_STDERR.format(".close()", "sys.exit('no')")), 1, ("late",)),
    "closed stderr, exception": Case(code(CLOSED_STDERR.format(".close()", "1 / 0")), 1, ("late",)),
    "no stderr, exit with a text": Case(code(CLOSED_STDERR.format(" = None", "sys.exit('no')")), 1, ("late",), ("no",)),
    "no stderr, exception": Case(code(CLOSED_STDERR.format(" = None", "1 / 0")), 1, ("late",)),
    "exit with a number that is too large": Case(code("import sys; sys.exit(2**70)"), 255),
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
    (folder / "joined.py").write_text(JOINED)
    (folder / "into_file.py").write_text(INTO_FILE)
    (folder / "pickles.py").write_text(LATE_PICKLES)
    (folder / "folder").mkdir()
    (folder / "folder" / "__main__.py").write_text(LATE_PICKLES)
    (folder / "names").mkdir()
    (folder / "names" / "__main__.py").write_text(NAMES)
    zipapp.create_archive(folder / "names", folder / "names.zip")
    py_compile.compile(str(folder / "names" / "__main__.py"), str(folder / "compiled.pyc"))
    (folder / "torn.py").write_text("loss = (")
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
                order[message.rank_id].append(type_of(type(message)))  # type: ignore[union-attr]  # none but those of ranks
        for told in order.values():
            assert (told.count("rank_started"), told.count("rank_exited")) == (1, 1)
            assert told[-1] == "rank_exited"

    def test_says_whether_it_is_warm(self, all_run: Worker) -> None:
        assert all_run.of(Ready) == [Ready(all_run.warm, "")]


SPAWNING = """
import multiprocessing, os, sys
import beside
def load(): print("loaded", __name__)
if __name__ == "__main__":
    os.chdir("/")
    for target in (load, beside.load):
        child = multiprocessing.get_context(sys.argv[1]).Process(target=target)
        child.start()
        child.join()
        assert child.exitcode == 0
"""
IMPORTED = (
    "import multiprocessing as m, beside as b; c = m.get_context('spawn').Process(target=b.load); c.start(); c.join()"
)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        (("python", "train.py", "spawn"), ["__mp_main__", "beside"]),
        (("python", "train.py", "forkserver"), ["__mp_main__", "beside"]),
        (("python", "-m", "train", "spawn"), ["__mp_main__", "beside"]),
        (code(IMPORTED), ["beside"]),
    ],
)
def test_workers_that_are_new_interpreters_find_the_script(
    warm: bool, command: tuple[str, ...], loaded: list[str], tmp_path: Path
) -> None:
    """The warm process has imported multiprocessing in another folder."""
    (tmp_path / "train.py").write_text(SPAWNING)
    (tmp_path / "beside.py").write_text("def load(): print('loaded', __name__)\n")

    async def run() -> None:
        async with Worker(warm, ("multiprocessing",)) as worker:
            worker.ranks.start_rank("a", command, {}, str(tmp_path))
            await worker.until(lambda: worker.code("a") is not None)
            assert worker.code("a") == 0, worker.lines("a", "stderr")
            assert worker.lines("a", "stdout") == [f"loaded {name}" for name in loaded], worker.lines("a", "stderr")

    asyncio.run(run())


@pytest.mark.parametrize("warm", [True, False])
def test_an_engine_of_the_process_around_is_none_of_theirs(warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORLD, "elastic_runtime.engines.torch.world:WORLD")

    async def test(worker: Worker) -> None:
        assert await worker.run("a", code(f"import os; print(os.environ.get({WORLD!r}))")) == 0
        assert worker.lines("a", "stdout") == ["None"], worker.lines("a", "stderr")

    with_worker(warm, test)
