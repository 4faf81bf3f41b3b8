"""What parsers are given: anything, JSON of anything, and documents of ours that somebody has changed.

How many inputs each gets is said by the environment: ``FUZZ=10000``, as ``make fuzz`` does; otherwise 500.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

INPUTS = int(os.environ.get("FUZZ") or 500)
LONGEST = timedelta(seconds=10)
"""That one input may take, on a machine that does other things too."""
# Not shrunk: documents of 60 kB take minutes.
thorough = settings(
    max_examples=INPUTS,
    deadline=LONGEST,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    database=None,
)

_DEEP, _DIGITS = "\0deep\0", "\0digits\0"
_WRITTEN = {
    json.dumps(_DEEP): "[" * 30_000 + "]" * 30_000,
    json.dumps(_DIGITS): "9" * 5000,
}
"""What json cannot write, by what stands for it."""
_LINES = ["", "{}", "NaN", "\ud800", "\0", "\u0661", "../../x", "a\nlauncher: succeeded", "\x1b[2K", "::endgroup::"]
_TIMES = ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-13-99T99:99:99Z", "2026-11-21T12:00:00"]
texts = st.text(max_size=12) | st.sampled_from([*_LINES, *_TIMES, "x" * 5000, "9" * 5000])
numbers = st.sampled_from([0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, -0.0, float("inf"), float("nan"), True])
odd = st.none() | texts | numbers | st.sampled_from([[], {}, [[]], {"": None}, _DEEP, _DIGITS])
values = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
).map(copy.deepcopy)  # what is sampled is one object, and is changed below


def written(value: object) -> bytes:
    """As JSON, or what is nearly that."""
    text = json.dumps(value)
    for mark, digits in _WRITTEN.items():
        text = text.replace(mark, digits)
    return text.encode()


def inputs(*documents: object) -> st.SearchStrategy[bytes]:
    """Bytes, JSON, and these documents changed.

    Args:
        documents: of ours, as they are written: bytes as they are, everything else as JSON.
    """
    plain = [each for each in documents if not isinstance(each, bytes)]
    raw = [each if isinstance(each, bytes) else written(each) for each in documents]
    return st.binary(max_size=300) | values.map(written) | changed(plain).map(written) | spoiled(raw)


@st.composite
def changed(draw: st.DrawFn, documents: Sequence[object]) -> Any:
    """One of these documents with a few of its places taken away, replaced, doubled, nested, or named otherwise."""
    if not documents:
        return draw(values)
    document = {"": copy.deepcopy(draw(st.sampled_from(documents)))}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["remove", "replace", "replace", "nest", "rename", "add", "double"]))
        if how == "replace" or holder is document:
            holder[key] = draw(values)
        elif how == "nest":
            holder[key] = draw(st.sampled_from([[holder[key]], {"a": holder[key]}, [holder[key]] * 3]))
        elif how == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder[draw(texts)] = holder.pop(key) if how == "rename" else draw(values)
        else:
            holder.append(holder[key] if how == "double" else draw(values))
    return document.get("")


@st.composite
def spoiled(draw: st.DrawFn, documents: Sequence[bytes]) -> bytes:
    """One of these documents with a few of its bytes changed, cut out, or put in twice."""
    data = draw(st.sampled_from(documents)) if documents else draw(st.binary())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        how = draw(st.sampled_from(["cut", "put", "double", "flip", "end"]))
        if how == "end":
            return data[:start]
        middle = {"cut": b"", "double": data[start:end] * 2, "flip": bytes(each ^ 0x41 for each in data[start:end])}
        data = data[:start] + middle.get(how, draw(st.binary(max_size=8))) + data[end:]
    return data


def _places(value: Any) -> Any:
    """Each container below, with a key or index of it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])
