"""Messages between ranks of torch.distributed end where the sender does, also in the middle of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paced import SCRIPTS


@pytest.mark.parametrize("kind", ["broadcast", "exchange"])
@pytest.mark.parametrize("attempt", [0, pytest.param(1, marks=pytest.mark.long)])  # by chance no message is half there
def test_a_rank_that_has_half_a_message_does_not_wait_for_the_rest(tmp_path: Path, kind: str, attempt: int) -> None:
    words = [sys.executable, str(SCRIPTS / "half_a_message.py"), kind]
    ranks = [
        subprocess.Popen([*words, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        told, _ = ranks[0].communicate(timeout=60)  # Gloo's own timeout is 100 s.
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    assert "gloo" in told
