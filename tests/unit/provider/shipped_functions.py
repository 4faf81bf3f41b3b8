"""Functions that tests ship, as they would stand in a DAG file."""

from __future__ import annotations

import json
import math

RATE = 0.5


def writes(path, /, *more, rate=0.1, **named):
    import json
    from pathlib import Path

    text = """
  as it is
"""
    Path(path).write_text(json.dumps([rate, more, named, text]))


def uses_the_module(path):
    return json.dumps(math.pi * RATE)


def uses_it_within(path):
    def inner():
        return [RATE for _ in range(3)]

    return inner()


def has_a_default_of_the_module(rate=RATE):
    return rate


def has_its_own_names(items):
    RATE = 3  # noqa: N806  # shadows the module's on purpose

    class Model:
        json = "own"
        same = json

    return [Model.same, RATE, *map(str, items), has_its_own_names.__name__]


def closure():
    seen = []

    def inner():
        return seen

    return inner


async def waits():
    return 1
