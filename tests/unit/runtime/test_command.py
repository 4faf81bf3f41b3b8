"""Which rank commands start warm, and which devices a slot gets."""

from __future__ import annotations

import os
import sys

import pytest

from elastic_runtime.agent.command import Entry, PythonCommand, cold, parse
from elastic_runtime.agent.hardware import Usage


@pytest.mark.parametrize(
    ("command", "parsed"),
    [
        (["python", "train.py"], PythonCommand(Entry.SCRIPT, "train.py", ())),
        (["python3", "-u", "train.py", "-u", "x"], PythonCommand(Entry.SCRIPT, "train.py", ("-u", "x"))),
        (["python3.11", "-u", "-u", "train.py"], PythonCommand(Entry.SCRIPT, "train.py", ())),
        ([sys.executable, "-m", "package", "-m"], PythonCommand(Entry.MODULE, "package", ("-m",))),
        (["python", "-c", "pass", "a"], PythonCommand(Entry.CODE, "pass", ("a",))),
        (["/another/python", "train.py"], None),
        (["python", "-O", "train.py"], None),
        (["python", "-X", "dev", "train.py"], None),
        (["python", "-"], None),
        (["python", "-m"], None),
        (["python", "-u"], None),
        (["python"], None),
        (["pythonic", "train.py"], None),
        (["torchrun", "train.py"], None),
        (["./train"], None),
    ],
)
def test_is_taken_apart(command: list[str], parsed: PythonCommand | None) -> None:
    assert parse(command) == parsed


@pytest.mark.parametrize(
    ("command", "executed"),
    [
        (["python", "-O", "x"], [sys.executable, "-O", "x"]),
        (["/another/python", "x"], ["/another/python", "x"]),
        (["sh", "-c", "x"], ["sh", "-c", "x"]),
    ],
)
def test_a_bare_python_is_our_own(command: list[str], executed: list[str]) -> None:
    assert cold(command) == executed


def test_usage_is_summed_over_those_that_live() -> None:
    usage = Usage()
    _, alone = usage.measure([os.getpid()])
    percent, with_the_dead = usage.measure([os.getpid(), 2**22 + 1])
    assert percent >= 0.0
    assert alone > 1_000_000
    assert abs(with_the_dead - alone) < 50_000_000
    assert usage.measure([]) == (0.0, 0)
