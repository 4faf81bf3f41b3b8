"""A Python function as a training script: its source, or cloudpickle's bytes of it, and its arguments."""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import inspect
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from types import CodeType
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.script.function import ARGUMENTS, FUNCTION, PICKLE, python_version
from elastic_training.airflow.versions import ResolveMixin

_PICKLE_IT = 'or write serializer="cloudpickle"'
_SCRIPT = """{future}{source}

if __name__ == "__main__":
    from elastic_runtime.script.function import call

    call({name})
"""


class Serializer(StrEnum):
    """How a function is serialized for the workers."""

    SOURCE = "source"
    """Its text. It sees nothing of the module around it; its arguments are JSON."""
    CLOUDPICKLE = "cloudpickle"
    """With what it uses of the module around it, and whatever arguments; the same Python on both sides."""


def serializer_of(given: object) -> Serializer:
    """Return the serializer of that name. Raise InvalidSettings."""
    try:
        return Serializer(str(given))
    except ValueError:
        remedy = f"Write one of {', '.join(repr(each.value) for each in Serializer)}"
        raise InvalidSettings("serializer", f"{given!r} is not one of its values", remedy) from None


def command_of(serializer: Serializer) -> list[str]:
    """Return the command that each rank runs."""
    return (
        ["python", FUNCTION] if serializer is Serializer.SOURCE else ["python", "-m", "elastic_runtime.script.function"]
    )


def check_function(function: Callable[..., Any], serializer: Serializer) -> None:
    """Raises InvalidSettings when it cannot run on a worker."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidSettings(
            "python_callable", "it is async, or a generator", "Write a function that trains and returns"
        )
    if serializer is Serializer.SOURCE:
        _source(function)


def check_call(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> None:
    """Whether it can be called so. Airflow's own check passes over what it gives to functions in its worker.

    Raises:
        InvalidSettings: an argument is missing, or one too many.
    """
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        remedy = 'Workers know no context of Airflow: give what the function needs, as in train(day="{{ ds }}")'
        raise InvalidSettings("op_kwargs", str(error), remedy) from None


def check_arguments(args: Collection[Any], kwargs: Mapping[str, Any], serializer: Serializer) -> None:
    """Check the arguments that are known at parse. Raise InvalidSettings."""
    if serializer is Serializer.SOURCE:
        _plain(list(args), "op_args")
        _plain(dict(kwargs), "op_kwargs")


def shipped_function(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any], serializer: Serializer
) -> dict[str, bytes]:
    """The files to ship, by name.

    Args:
        function: to be called by each rank.
        args: positional ones, rendered.
        kwargs: by name, the same.
        serializer: how.

    Raises:
        InvalidSettings: the function, or an argument, cannot travel.
    """
    check_call(function, args, kwargs)
    if serializer is Serializer.CLOUDPICKLE:
        about = {"python": python_version()}
        return {PICKLE: _pickled(function, args, kwargs), ARGUMENTS: json.dumps(about).encode()}
    arguments = {"args": _plain(list(args), "op_args"), "kwargs": _plain(dict(kwargs), "op_kwargs")}
    return {FUNCTION: _source(function).encode(), ARGUMENTS: json.dumps(arguments, allow_nan=False).encode()}


def _source(function: Callable[..., Any]) -> str:
    """A script that calls it."""
    name, code = getattr(function, "__name__", ""), getattr(function, "__code__", None)
    if code is None or not name.isidentifier() or hasattr(function, "__wrapped__"):
        problem = "it is a lambda, no function at all, or another decorator has wrapped it"
        raise InvalidSettings(
            "python_callable", problem, f"Write it with def and this decorator below all, {_PICKLE_IT}"
        )
    node, source = _definition(function, name)
    future = bool(code.co_flags & __future__.annotations.compiler_flag)
    used = {*code.co_freevars, *_globals(code, function.__globals__), *_names_around(node, annotations=not future)}
    used -= {name, *dir(builtins)}
    if used:
        raise InvalidSettings(
            "python_callable",
            f"{name} uses {', '.join(sorted(used))} of the module around it, which workers do not have",
            f"Import and define within the function, pass values as arguments, {_PICKLE_IT}",
        )
    return _SCRIPT.format(future="from __future__ import annotations\n\n" if future else "", source=source, name=name)


def _definition(function: Callable[..., Any], name: str) -> tuple[ast.FunctionDef, str]:
    """Without decorators: this one, and those that Airflow's own helpers remove, are above the function."""
    try:
        text = inspect.getsource(function)
        # Where it is indented it stays so, or texts over several lines within it would change.
        head = "if True:\n" if text[:1] in " \t" else "\n"
        tree = ast.parse(head + text)
        node = next(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name)
    except (OSError, TypeError, SyntaxError, StopIteration):
        raise InvalidSettings(
            "python_callable", f"the source of {name} cannot be had", f"Write it into the DAG file, {_PICKLE_IT}"
        ) from None
    lines = (head + text).splitlines()[node.lineno - 1 : node.end_lineno]
    return node, "\n".join([head.rstrip("\n"), *lines]).lstrip("\n")


def _globals(code: CodeType, module: Mapping[str, Any]) -> Iterator[str]:
    """Names of the module that it, or a function in it, uses."""
    instructions = list(dis.get_instructions(code))
    own = {each.argval for each in instructions if each.opname == "STORE_NAME"}  # of a class
    loaded = {each.argval for each in instructions if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    yield from (loaded - own) & module.keys() - {"__file__"}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner, module)


def _names_around(node: ast.FunctionDef, *, annotations: bool) -> Iterator[str]:
    """Names that its definition needs before it is called: of defaults, and of annotations unless these wait."""
    needed: list[ast.AST | None] = [*node.args.defaults, *node.args.kw_defaults]
    if annotations:
        each = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        needed += [argument.annotation for argument in each if argument] + [node.returns]
    for tree in filter(None, needed):
        yield from (name.id for name in ast.walk(tree) if isinstance(name, ast.Name))


def _plain(value: Any, at: str) -> Any:
    """As JSON has it; what is not known yet as it is. Raises InvalidSettings."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: _plain(each, f"{at}[{key!r}]") for key, each in value.items()}
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return [_plain(each, f"{at}[{index}]") for index, each in enumerate(value)]
        case ResolveMixin():
            return value
    raise InvalidSettings(
        at, f"a {type(value).__name__} is not JSON", f"Pass numbers, strings, lists and mappings of them, {_PICKLE_IT}"
    )


def _own(value: Any) -> Any:
    """Without Airflow's own kinds of lists, as of the outputs of mapped tasks, which workers cannot read."""
    lazy = isinstance(value, Sequence) and type(value).__module__.partition(".")[0] == "airflow"
    return list(value) if lazy else value


def _pickled(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> bytes:
    try:
        import cloudpickle
    except ImportError:
        remedy = "Install airflow-provider-elastic-training[cloudpickle] where tasks run"
        raise InvalidSettings("serializer", "cloudpickle is not installed here", remedy) from None
    # Workers cannot import the DAG's module.
    module = inspect.getmodule(function)
    known = module is not None and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
    try:
        if known:
            cloudpickle.register_pickle_by_value(module)
        return bytes(
            cloudpickle.dumps((function, tuple(map(_own, args)), {key: _own(each) for key, each in kwargs.items()}))
        )
    except Exception as error:  # Each object that it meets raises what it likes.
        problem = f"{function.__name__}, or an argument, cannot be pickled: {type(error).__name__}"
        remedy = "Make what it needs within the function; locks, sockets, files and modules of Airflow do not travel"
        raise InvalidSettings("python_callable", problem, remedy) from error
    finally:
        if known:
            cloudpickle.unregister_pickle_by_value(module)
