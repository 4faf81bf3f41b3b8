"""Run a Python command in this process as the interpreter runs it: as the module ``__main__``, which stays.

:mod:`runpy` puts the module that was ``__main__`` before back at the end of the script. Threads and exit functions run
later, and what they pickle has classes of ``__main__``.
"""

from __future__ import annotations

import builtins
import io
import os
import pkgutil
import runpy
import sys
from importlib.machinery import BuiltinImporter, SourceFileLoader
from types import CodeType, ModuleType

from elastic_runtime.agent.command import Entry, PythonCommand


def run_as_main(python: PythonCommand) -> None:
    """Run it, with its ``sys.argv`` and its folder in place of the first one in ``sys.path``."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.argv = [python.target, *python.arguments]
    if multiprocessing := sys.modules.get("multiprocessing.process"):
        # The folder in which its new interpreters look for the script; it was imported in that of the warm process.
        vars(multiprocessing)["ORIGINAL_DIR"] = os.getcwd()
    match python.entry:
        case Entry.SCRIPT:
            _run_script(python.target, main)
        case Entry.MODULE:
            sys.path[0] = os.getcwd()
            sys.argv[0] = "-m"
            _run_module(python.target, main)
        case Entry.CODE:
            sys.path[0] = ""
            sys.argv[0] = "-c"
            main.__loader__ = BuiltinImporter
            exec(_compile(python.target, "<string>"), main.__dict__)  # noqa: S102 - the user's own


def _run_script(name: str, main: ModuleType) -> None:
    path = os.path.join(os.getcwd(), name)  # As the interpreter makes it, so that it outlives a change of the folder.
    if pkgutil.get_importer(path) is not None:  # A folder or an archive, whose module __main__ is run.
        sys.path[0] = path
        _, spec, code = runpy._get_main_module_details()  # type: ignore[attr-defined]
        runpy._run_code(code, main.__dict__, None, "__main__", spec)  # type: ignore[attr-defined]
        return
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)  # Of a .pyc file.
    if code is None:
        with io.open_code(path) as file:
            code = _compile(file.read(), path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(code, main.__dict__)  # noqa: S102 - the user's own


def _run_module(name: str, main: ModuleType) -> None:
    _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]
    sys.argv[0] = spec.origin
    runpy._run_code(code, main.__dict__, None, "__main__", spec)  # type: ignore[attr-defined]


def _compile(source: str | bytes, name: str) -> CodeType:
    """Compile without the ``__future__`` imports of this module."""
    return compile(source, name, "exec", dont_inherit=True)
