"""A Python function as a training script: what travels, and that it runs there as it would here."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.protocol.rank_link import SCRIPTS
from elastic_runtime.script.function import ARGUMENTS, FUNCTION, PICKLE
from elastic_training.decorators.functions import (
    Serializer,
    check_function,
    command_of,
    serializer_of,
    shipped_function,
)
from tests.unit.provider import shipped_functions as functions

FACTOR = 3


def doubled(number: int) -> int:
    return FACTOR * number


def run(tmp_path: Path, function: Any, *args: Any, serializer: Serializer = Serializer.SOURCE, **kwargs: Any) -> None:
    """As a rank that starts cold."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    for name, content in shipped_function(function, args, kwargs, serializer).items():
        (folder / name).write_bytes(content)
    command = [sys.executable, *command_of(serializer)[1:]]
    runtime = str(Path(__file__).parents[3] / "images/trainer/src")
    environment = {SCRIPTS: str(folder), "PYTHONPATH": runtime}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_source_is_run_with_the_arguments(tmp_path: Path) -> None:
    result = tmp_path / "result"
    run(tmp_path, functions.writes, str(result), 1, "two", rate=0.25, name={"a": [None, True]})
    assert json.loads(result.read_text()) == [0.25, [1, "two"], {"name": {"a": [None, True]}}, "\n  as it is\n"]


def test_one_that_is_indented_is_run_too_and_its_texts_stay(tmp_path: Path) -> None:
    if True:
        # fmt: off
        def train(path):
            from pathlib import Path
            Path(path).write_text("""
a line that begins at the margin
            """)
        # fmt: on

    run(tmp_path, train, str(tmp_path / "result"))
    assert (tmp_path / "result").read_text() == "\na line that begins at the margin\n            "


def test_one_that_has_its_own_names_for_what_the_module_has_is_run() -> None:
    check_function(functions.has_its_own_names, Serializer.SOURCE)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (functions.uses_the_module, "uses RATE, json, math of the module"),
        (functions.uses_it_within, "uses RATE of the module"),
        (functions.has_a_default_of_the_module, "uses RATE of the module"),
        (functions.closure(), "uses seen of the module"),
        (lambda: 1, "a lambda"),
        (print, "no function at all"),
        (eval("lambda: 1"), "a lambda"),
    ],
)
def test_what_cannot_run_there_is_refused_with_both_remedies(function: Any, problem: str) -> None:
    with pytest.raises(InvalidSettings, match=f"{problem}.*cloudpickle"):
        check_function(function, Serializer.SOURCE)


def test_one_without_a_source_is_refused() -> None:
    made: dict[str, Any] = {}
    exec("def train(): pass", made)
    with pytest.raises(InvalidSettings, match="source of train cannot be had"):
        check_function(made["train"], Serializer.SOURCE)


@pytest.mark.parametrize("serializer", list(Serializer))
def test_an_async_one_is_refused(serializer: Serializer) -> None:
    with pytest.raises(InvalidSettings, match="async"):
        check_function(functions.waits, serializer)


@pytest.mark.parametrize(
    ("value", "at"),
    [
        ({1, 2}, r"op_kwargs\['rate'\]"),
        ({"a": [1, object()]}, r"op_kwargs\['rate'\]\['a'\]\[1\]"),
        ({1: 2}, r"op_kwargs\['rate'\]"),
        (b"bytes", r"op_kwargs\['rate'\]"),
        (float("nan"), r"op_kwargs\['rate'\]"),
    ],
)
def test_arguments_that_are_not_json_are_refused_by_their_place(value: Any, at: str) -> None:
    with pytest.raises(InvalidSettings, match=f"{at}: .*is not JSON.*cloudpickle"):
        shipped_function(functions.writes, ["path"], {"rate": value}, Serializer.SOURCE)


def test_a_context_key_that_nobody_gives_is_missed() -> None:
    def train(ti, rate):
        return rate

    with pytest.raises(InvalidSettings, match=r"'ti'.*no context of Airflow"):
        shipped_function(train, [], {"rate": 1}, Serializer.SOURCE)


def test_a_serializer_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="'source', 'cloudpickle'"):
        serializer_of("dill")


class TestCloudpickle:
    def test_takes_along_what_it_uses_and_whatever_arguments(self, tmp_path: Path) -> None:
        result = tmp_path / "result"

        def train(path: Path, names: set[str]) -> None:
            path.write_text(json.dumps([FACTOR, sorted(names), doubled(2)]))

        run(tmp_path, train, result, {"b", "a"}, serializer=Serializer.CLOUDPICKLE)
        assert json.loads(result.read_text()) == [3, ["a", "b"], 6]

    def test_outputs_of_mapped_tasks_travel_as_lists(self) -> None:
        class Lazy(list[int]):
            """As Airflow's."""

        Lazy.__module__ = "airflow.sdk.execution_time.lazy_sequence"
        files = shipped_function(functions.writes, ["path", Lazy([1, 2])], {"name": Lazy([3])}, Serializer.CLOUDPICKLE)
        _, args, kwargs = pickle.loads(files[PICKLE])
        assert (args, kwargs) == (("path", [1, 2]), {"name": [3]})
        assert b"airflow.sdk" not in files[PICKLE]

    def test_another_python_says_so_before_it_reads_it(self, tmp_path: Path) -> None:
        files = shipped_function(functions.writes, ["path"], {}, Serializer.CLOUDPICKLE)
        assert json.loads(files[ARGUMENTS]) == {"python": "{}.{}".format(*sys.version_info)}
        for name, content in {**files, ARGUMENTS: b'{"python": "3.8"}', PICKLE: b"never read"}.items():
            (tmp_path / name).write_bytes(content)
        command = [sys.executable, *command_of(Serializer.CLOUDPICKLE)[1:]]
        environment = {SCRIPTS: str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3] / "images/trainer/src")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "pickled by Python 3.8" in done.stderr) == (1, True)

    def test_what_cannot_be_pickled_is_refused(self) -> None:
        import threading

        with pytest.raises(InvalidSettings, match="cannot be pickled"):
            shipped_function(functions.writes, ["path", threading.Lock()], {}, Serializer.CLOUDPICKLE)


def test_without_cloudpickle_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidSettings, match=r"\[cloudpickle\]"):
        shipped_function(functions.writes, ["path"], {}, Serializer.CLOUDPICKLE)


def test_the_names_of_its_files_say_what_they_are() -> None:
    assert command_of(Serializer.SOURCE) == ["python", FUNCTION]
