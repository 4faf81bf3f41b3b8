"""What a rank does for those that stay when it has left their world."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.protocol.rank_link import WORKER_NAME, RankLink
from elastic_runtime.script.giving_way import NICER, ROOM, give_way

LEAST = 19
"""Lowest priority that there is."""


@pytest.mark.parametrize(
    ("leaving", "nicer"),
    [
        ({}, [NICER]),
        ({"worker-1": ROOM + 60.0}, [NICER]),
        ({"worker-1": ROOM - 1.0}, []),
        ({"worker-2": ROOM - 1.0}, [NICER]),
    ],
    ids=["a smaller size", "its worker is taken later", "its worker is taken soon", "another worker is"],
)
def test_a_rank_ends_at_a_lower_priority_unless_it_is_in_haste(
    monkeypatch: pytest.MonkeyPatch, leaving: dict[str, float], nicer: list[int]
) -> None:
    found: list[int] = []
    monkeypatch.setattr(os, "nice", found.append)
    monkeypatch.setattr(os, "getsid", lambda _: 0)  # Not the tests' own session.
    monkeypatch.setenv(WORKER_NAME, "worker-1")
    link = RankLink(None)
    link.leaving = {name: utc_now() + timedelta(seconds=seconds) for name, seconds in leaving.items()}
    give_way(link)
    assert found == nicer


def test_a_process_with_a_session_of_its_own_is_lowered() -> None:
    script = (
        "import os\n"
        "from elastic_runtime.protocol.rank_link import RankLink\n"
        "from elastic_runtime.script.giving_way import give_way\n"
        "give_way(RankLink(None))\n"
        "print(os.nice(0))\n"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, check=True, start_new_session=True, capture_output=True, text=True)
    assert int(found.stdout) == min(LEAST, os.nice(0) + NICER)
