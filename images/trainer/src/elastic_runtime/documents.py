"""Frozen dataclasses to JSON and back, strictly: the one codec of specs, status documents and wire messages.

A thin layer over `cattrs`_, which structures nested, frozen, slotted dataclasses by their type hints and names the
path of what it could not read. Times are aware UTC datetimes, written as RFC 3339 with milliseconds.

.. _cattrs: https://catt.rs
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import cattrs
from cattrs.errors import BaseValidationError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.strategies import configure_tagged_union
from cattrs.v import format_exception

from elastic_runtime.errors import ElasticError, InvalidDocument, InvalidSettings
from elastic_runtime.marks import SPARSE, VERSION
from elastic_runtime.printable import printable

T = TypeVar("T")
_LONGEST_PROBLEMS = 1000
"""Characters in which is said what is wrong with a document."""
_LONGEST_VERSION = 20
_ONE_RELEASE = "have one release of elastic-runtime and of the provider in Airflow and in all images"
_UNREADABLE = (BaseValidationError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)

DEEPEST = 100
"""Levels of JSON that are read."""
EARLIEST, LATEST = 1970, 2200
"""Years that a document tells of."""


class _Wrong(ValueError):
    """What is wrong with a value, without the value: it may be secret, or long."""


def time_to_text(value: datetime) -> str:
    """Return a time as RFC 3339 text in UTC, with milliseconds."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time_from_json(value: object, _: type) -> datetime:
    try:
        moment = datetime.fromisoformat(_exactly(value, str))
    except ValueError:
        raise _Wrong(f"a {_type_of(value)} that is not a time") from None
    if moment.tzinfo is None:
        raise _Wrong("a time with no time zone")
    # No calendar ends within them, so that a time can be converted, and compared with others, without an overflow.
    if not EARLIEST <= moment.year <= LATEST:
        raise _Wrong(f"a time that is not between the years {EARLIEST} and {LATEST}")
    return moment.astimezone(UTC)


def _exactly(value: object, kind: type) -> Any:
    """No coercion: ``"3"`` is not 3, and True is not 1."""
    if type(value) is not kind:
        raise _Wrong(f"{_type_of(value)}, not {kind.__name__}")
    return value


def _text(value: object, _: type) -> str:
    text: str = _exactly(value, str)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # and not where the text is logged or sent
            raise _Wrong("a text with half a character") from None
    return text


def _type_of(value: object) -> str:
    return type(value).__name__


def _number(value: object, _: type) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(f"{_type_of(value)}, not a number")
    if not math.isfinite(number := float(value)):
        raise _Wrong("not a finite number, and JSON has no other")
    return number


_INTEGERS, _NUMBERS, _GAPPED = tuple[int, ...], tuple[float, ...], tuple[float | None, ...]
_COLUMNS = (_INTEGERS, _NUMBERS, _GAPPED)


def _column(value: object, kind: Any) -> tuple[Any, ...]:
    """Many numbers at once: one hook for each of them would take most of the time of reading a status."""
    read, kinds = (int, {int}) if kind == _INTEGERS else (float, {int, float})
    gaps: set[type] = {type(None)} if kind == _GAPPED else set()
    if not isinstance(value, list | tuple) or not {type(each) for each in value} <= kinds | gaps:
        raise _Wrong(f"{_type_of(value)} that does not consist of numbers of type {read.__name__}")
    if not all(math.isfinite(each) for each in value if each is not None):
        raise _Wrong("not finite numbers, and JSON has no others")
    return tuple(None if each is None else read(each) for each in value) if gaps else tuple(map(read, value))


def _member(value: object, kind: type[StrEnum]) -> StrEnum:
    text = _exactly(value, str)
    try:
        return kind(text)
    except ValueError:
        raise _Wrong(f"none of {', '.join(kind)}") from None


def _without_defaults(kind: type) -> Callable[[Any], dict[str, Any]]:
    left_out: dict[str, Any] = {
        each.name: override(omit_if_default=True) for each in fields(kind) if each.metadata == SPARSE
    }
    return make_dict_unstructure_fn(kind, _converter, **left_out)


def _is_versioned(kind: Any) -> bool:
    return is_dataclass(kind) and any(each.metadata == VERSION for each in fields(kind))


def _of_one_version(kind: type, converter: cattrs.Converter) -> Callable[[Any, type], Any]:
    """Looks at the version first: in a document of another one, whatever else is wrong follows from that."""
    [own] = [each for each in fields(kind) if each.metadata == VERSION]
    read: Callable[[Any, type], Any] = make_dict_structure_fn(kind, converter)

    def structure(plain: Any, _: type) -> Any:
        found = plain.get(own.name, own.default) if isinstance(plain, Mapping) else own.default
        if type(found) is int and found != own.default:
            told = f"its version is {printable(found, _LONGEST_VERSION)}, and version {own.default} is read here"
            raise _Wrong(f"{told}: {_ONE_RELEASE}")
        return read(plain, kind)

    return structure


_converter = cattrs.Converter(forbid_extra_keys=False)
_converter.register_unstructure_hook(datetime, time_to_text)
_converter.register_unstructure_hook(StrEnum, lambda member: member.value)
_converter.register_structure_hook(datetime, _time_from_json)
_converter.register_structure_hook(str, _text)
for _kind in (int, bool):
    _converter.register_structure_hook(_kind, _exactly)
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook_func(lambda kind: kind in _COLUMNS, _column)
_converter.register_unstructure_hook_func(lambda kind: kind in _COLUMNS, list)
_converter.register_structure_hook(StrEnum, _member)  # Hooks are found by class, and an enum of strings is a str too.
_converter.register_unstructure_hook_factory(
    lambda kind: is_dataclass(kind) and any(each.metadata == SPARSE for each in fields(kind)), _without_defaults
)
_converter.register_structure_hook_factory(_is_versioned, _of_one_version)
_hasty = _converter.copy(detailed_validation=False)
"""Ends at the first thing that is wrong; the other one makes an error, of kilobytes, for each."""
_FEW = 1000
"""Values of a document in which all is told that is wrong."""


def _describe(error: BaseException, kind: type | None) -> str:
    """What is wrong with one field; errors of our own hooks say it themselves, and no others may quote the value."""
    return str(error) if isinstance(error, _Wrong | ElasticError) else format_exception(error, kind)


def tag_union(union: Any, tag: str, tag_of: Callable[[type], str]) -> None:
    """Have each document of this union carry, under the key ``tag``, which of its classes it is."""
    for converter in (_converter, _hasty):
        configure_tagged_union(union, converter, tag_name=tag, tag_generator=tag_of)


def to_plain(document: object, kind: Any = None) -> Any:
    """The document as dicts, lists, strings and numbers; as one of the union ``kind``, with its tag."""
    return _converter.unstructure(document, unstructure_as=kind)


def from_plain(kind: type[T], plain: object) -> T:
    """Read a document of type ``kind``; unknown keys are ignored.

    Raises:
        InvalidDocument: with the path of every field that could not be read; of a large document, with the first
            thing that is wrong.
        InvalidSettings: every field could be read, and a value of one cannot work.
    """
    try:
        return (_converter if _is_small(plain) else _hasty).structure(plain, kind)
    except InvalidSettings:
        raise
    except _UNREADABLE as error:
        if isinstance(error, BaseExceptionGroup) and (wrong := _first(error, InvalidSettings)):
            raise wrong from None
        problems = "; ".join(cattrs.transform_error(error, format_exception=_describe))
        name = getattr(kind, "__name__", "message")
        raise InvalidDocument(
            f"not a {name}: {printable(problems, _LONGEST_PROBLEMS)}"
        ) from None  # whose causes quote the document


def _is_small(plain: object) -> bool:
    left, seen = [plain], 0
    while left and seen + len(left) <= _FEW:
        value = left.pop()
        seen += 1
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
    return not left


def _first(group: BaseExceptionGroup[BaseException], kind: type[T]) -> T | None:
    for error in group.exceptions:
        if isinstance(error, kind):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := _first(error, kind)):
            return found
    return None


def to_json(document: object) -> str:
    """Serialize a document as one line of JSON. Raise ValueError for NaN and infinities."""
    return json.dumps(to_plain(document), separators=(",", ":"), allow_nan=False)


def from_json(kind: type[T], text: str | bytes) -> T:
    """Read one JSON text as ``kind``.

    Raises:
        InvalidDocument: the text is not JSON, or not a ``kind``.
    """
    return from_plain(kind, parse_json(text))


def parse_json(text: str | bytes, *, deepest: int | None = DEEPEST) -> Any:
    """Any JSON text.

    Args:
        text: the text.
        deepest: levels that it may nest; None: as many as Python reads, for callers that expect a RecursionError.

    Raises:
        InvalidDocument: it is not JSON, nests too deeply, or has a number of too many digits.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"not JSON: {error}") from None
    if deepest is not None and _nests_deeper(value, deepest):
        raise InvalidDocument(f"JSON of more than {deepest} levels")
    return value


def _nests_deeper(value: object, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new one, whole, and never neither."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:  # raised again: nothing half-made stays, whatever ended this
        Path(temporary).unlink(missing_ok=True)
        raise
