"""The pickle of a tree of tensors, followed without doing what it says.

The operations are those of `pickle`_ that ``torch.save`` writes; a value is itself where it is plain, and a
:class:`_Made` where it would be made. What ``torch.load(weights_only=True)`` would do besides is refused: it is allowed
there, and can be made to take any amount of memory or time.

.. _pickle: https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from elastic_runtime.errors import InvalidDocument

_SCALARS = (bool, int, float, str, type(None))
_LITERALS = ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1", "SHORT_BINSTRING")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@dataclass(frozen=True, slots=True)
class _Named:
    """A global that a pickle names."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    """Of so many elements; torch compares that with the record."""

    elements: int


@dataclass(slots=True)
class _Made:
    """Anything that would be made."""

    kind: str
    items: list[Any] = field(default_factory=list)
    """Of a list."""


def check_recipe(data: bytes) -> int:
    """Follow a pickle of protocol 2 to its end; returns how many operations it has.

    Raises:
        InvalidDocument: it would make something else than tensors that fit their storages, and plain values.
        Exception: what a pickle that is none makes of :mod:`pickletools`, IndexError and KeyError among it.
    """
    follower = _Follower()
    count = 0
    for operation, argument, _ in pickletools.genops(data):
        count += 1
        follower.follow(operation.name, argument)
    return count


class _Follower:
    """The machine that pickles are programs of, over placeholders."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._vouched = {
            each[1] if isinstance(each, tuple) else f"{each.__module__}.{each.__qualname__}"
            for each in torch.serialization.get_safe_globals()
        }
        self._operations: dict[str, Callable[[Any], object]] = {
            **dict.fromkeys(_LITERALS, self._push),
            **{name: partial(self._push_anyway, value) for name, value in _CONSTANTS.items()},
            **{f"EMPTY_{kind.upper()}": partial(self._push_new, kind) for kind in ("dict", "list", "set")},
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda place: self._memo.update({place: self._stack[-1]})),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda place: self._push(self._memo[place])),
            "TUPLE1": lambda _: self._push(self._pop(1)),
            "TUPLE2": lambda _: self._push(self._pop(2)),
            "TUPLE3": lambda _: self._push(self._pop(3)),
            "TUPLE": lambda _: self._push(self._to_mark()),
            "MARK": self._mark,
            "APPEND": lambda _: self._fill("list", self._pop(1)),
            "APPENDS": lambda _: self._fill("list", self._to_mark()),
            "SETITEM": lambda _: self._fill("dict", self._pop(2)),
            "SETITEMS": lambda _: self._fill("dict", self._to_mark()),
            # Protocol 2 has Python 2's name of that module.
            "GLOBAL": lambda name: self._push(_Named(re.sub("^__builtin__ ", "builtins ", name).replace(" ", "."))),
            "BINPERSID": lambda _: self._push(_storage(*self._pop(1))),
            "REDUCE": lambda _: self._push(self._made(*self._pop(2))),
            "NEWOBJ": lambda _: self._push(self._made(*self._pop(2))),
            "BUILD": lambda _: self._build(*self._pop(2)),
            "PROTO": lambda _: None,
            "STOP": lambda _: None,
        }

    def follow(self, name: str, argument: Any) -> None:
        """Apply one operation of a pickle."""
        if name not in self._operations:
            raise InvalidDocument(f"a pickle with the operation {name}")
        self._operations[name](argument)

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _push_anyway(self, value: Any, _: Any) -> None:
        self._push(value)

    def _push_new(self, kind: str, _: Any) -> None:
        self._push(_Made(kind))

    def _pop(self, count: int) -> tuple[Any, ...]:
        _need(len(self._stack) >= count, "that takes what is not there")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        return values

    def _mark(self, _: Any) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _to_mark(self) -> tuple[Any, ...]:
        items, self._stack = self._stack, self._marks.pop()
        return tuple(items)

    def _fill(self, kind: str, items: tuple[Any, ...]) -> None:
        target = self._stack[-1]
        _need(_is_made(target, kind), f"that fills something else than a {kind}")
        if kind == "list":
            target.items.extend(items)
        else:
            _check_keys(items[::2])

    def _made(self, function: Any, arguments: Any) -> _Made:
        _need(isinstance(function, _Named) and type(arguments) is tuple, "that calls a value")
        if function.name in self._vouched:  # by the script, which knows what it does
            return _Made(function.name)
        _need(function.name in _MAKERS, f"that calls {function.name}")
        return _MAKERS[function.name](arguments)

    def _build(self, target: Any, _state: Any) -> None:
        """``Module.state_dict`` hangs ``_metadata`` onto an OrderedDict."""
        is_ours = isinstance(target, _Made) and (target.kind == "dict" or target.kind in self._vouched)
        _need(is_ours, "that sets the state of something else than an OrderedDict")
        self._push(target)


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise InvalidDocument(f"a pickle {what}")


def _storage(identity: Any) -> _Storage:
    # ("storage", class, key, location, elements): torch.serialization, persistent_id.
    _need(type(identity) is tuple and len(identity) == 5, "with a storage that is none")
    _need(type(identity[4]) is int and identity[4] >= 0, "with a storage of no size")
    return _Storage(identity[4])


def _tensor(arguments: tuple[Any, ...]) -> _Made:
    storage, offset, shape, *_ = arguments
    _need(isinstance(storage, _Storage) and type(offset) is int and offset >= 0 and _is_shape(shape), "of no tensor")
    _need(math.prod(shape) <= storage.elements, "of a tensor that is larger than its storage")
    return _Made("tensor")


def _of_tensors(_arguments: tuple[Any, ...]) -> _Made:
    return _Made("tensor")


def _ordered(arguments: tuple[Any, ...]) -> _Made:
    _need(arguments == (), "of an OrderedDict that is made of something")
    return _Made("dict")


def _counted(arguments: tuple[Any, ...]) -> _Made:
    _need(len(arguments) == 1 and _is_made(arguments[0], "dict"), "of a Counter that is not made of a dict")
    return _Made("dict")


def _set(arguments: tuple[Any, ...]) -> _Made:
    _need(len(arguments) == 1 and _is_made(arguments[0], "list"), "of a set that is not made of a list")
    _check_keys(arguments[0].items)
    return _Made("set")


def _of_scalars(arguments: tuple[Any, ...]) -> _Made:
    _need(all(type(each) in _SCALARS for each in arguments), "with a value that is made of others")
    return _Made("value")


def _size(arguments: tuple[Any, ...]) -> _Made:
    _need(len(arguments) == 1 and _is_shape(arguments[0]), "of a Size that is none")
    return _Made("value")


def _bytes(arguments: tuple[Any, ...]) -> _Made:
    # How bytes are written; other codecs may take quadratic time.
    is_text = len(arguments) == 2 and type(arguments[0]) is str and arguments[1] in ("latin1", "latin-1")
    is_bytes = len(arguments) == 1 and _is_made(arguments[0], "bytes")
    _need(arguments == () or is_text or is_bytes, "of bytes that are not of a text")
    return _Made("bytes")


_MAKERS: dict[str, Callable[[tuple[Any, ...]], _Made]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_qtensor": _tensor,
    "torch._utils._rebuild_parameter": _of_tensors,
    "torch._utils._rebuild_sparse_tensor": _of_tensors,
    "torch._utils._rebuild_meta_tensor_no_storage": _of_tensors,
    "torch.Size": _size,
    "torch.device": _of_scalars,
    "torch.serialization._get_layout": _of_scalars,
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counted,
    "builtins.set": _set,
    "builtins.complex": _of_scalars,
    "builtins.bytearray": _bytes,
    "_codecs.encode": _bytes,
}
"""What ``torch.save`` writes calls of, of all that ``weights_only`` allows."""


def _is_shape(value: Any) -> bool:
    # torch has at most 64 dimensions, and sizes of 64 bits.
    return type(value) is tuple and len(value) <= 64 and all(type(each) is int and 0 <= each < 2**63 for each in value)


def _is_made(value: Any, kind: str) -> bool:
    return isinstance(value, _Made) and value.kind == kind


def _check_keys(keys: Any) -> None:
    """To hash nested tuples takes as long as they unfold to."""
    for key in keys:
        parts = key if type(key) is tuple else (key,)
        _need(all(type(each) in (*_SCALARS, _Named) for each in parts), "with a key that is no plain value")
