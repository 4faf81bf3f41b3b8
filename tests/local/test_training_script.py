"""The script in docs/training-script.md is one that runs, and resumes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_runtime.protocol.rank_link import CHECKPOINT
from elastic_runtime.torch import load_checkpoint

DOC = Path(__file__).parents[2] / "docs" / "training-script.md"


@pytest.mark.timeout(300)  # two processes that import torch
def test_the_documented_script_trains_and_resumes_where_it_ended(tmp_path: Path) -> None:
    match = re.search(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert match is not None
    (tmp_path / "train.py").write_text(match[1])
    store = tmp_path / "store"
    environment = {**os.environ, CHECKPOINT: json.dumps({"uri": store.as_uri()})}

    def train() -> str:
        return subprocess.run(
            [sys.executable, tmp_path / "train.py"], env=environment, capture_output=True, text=True, check=True
        ).stdout

    trained = train()
    assert re.fullmatch(r"step 200 of 200, best loss 0\.[01]\d\d\n", trained)
    (stored,) = store.glob("ckpt-*")
    checkpoint = load_checkpoint(stored.as_uri())
    assert checkpoint["step"] == 200
    assert checkpoint["scheduler"]["last_epoch"] == 10
    assert train() == trained
    assert list(store.glob("ckpt-*")) == [stored]
