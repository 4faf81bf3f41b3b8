"""The commands that check a receipt and replay steps: which program they start, and with what."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec, RunSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.concurrency.bridge import run
from elastic_training.console.command import auditing
from elastic_training.console.command.main import main
from elastic_training.identity.ownership import Owner

OWNER = Owner("nightly", "scheduled__1", "train", -1, 1, "nonce")
PROGRAM = """#!{python}
import json, os, sys
words = sys.argv[1:]
file = words[4] if words[3] == "replay" else None
told = {{"words": words, "airflow": [name for name in os.environ if "AIRFLOW" in name.upper()]}}
if file:
    told |= {{"spec": json.load(open(file)), "mode": os.stat(file).st_mode}}
json.dump(told, open({told!r}, "w"))
sys.exit({status})
"""


def interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """Stands for the Python of local runs; writes down how it was started."""
    told, program = folder / "told.json", folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, told=str(told), status=status))
    program.chmod(0o755)
    monkeypatch.setattr(auditing, "local_settings", lambda: (folder, str(program)))
    return told


def claim(fake: FakeCluster, uri: str | None) -> None:
    spec = RunSpec("nightly-train", "uid", ("python", "train.py"), checkpoint=CheckpointSpec(uri) if uri else None)
    run(fake.claim(spec, OWNER.text()))


@pytest.mark.parametrize("status", [0, 1])
def test_a_receipt_is_checked_where_numpy_is(
    fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    told = interpreter(tmp_path, monkeypatch, status)
    claim(fake, "file:///store/run")
    for name in ("nightly-train", "file:///store/run"):
        assert main(["verify", name]) == status
        found = json.loads(told.read_text())
        assert found == {"words": ["-P", "-m", "elastic_runtime.audit", "verify", "file:///store/run"], "airflow": []}


def test_a_replay_gets_the_spec_in_a_file_that_others_cannot_read(
    fake: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = interpreter(tmp_path, monkeypatch)
    claim(fake, "file:///store/run")
    assert main(["replay", "nightly-train", "--step", "7", "--workers", "2", "--within", "1e-6"]) == 0
    found = json.loads(told.read_text())
    assert found["words"][5:] == ["--step=7", "--workers=2", "--within=1e-06", "--timeout=3600"]
    assert found["spec"]["checkpoint"]["uri"] == "file:///store/run"
    assert stat.S_IMODE(found["mode"]) == 0o600
    assert not Path(found["words"][4]).exists()


def test_a_run_without_a_store_has_no_receipt(fake: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    claim(fake, None)
    assert main(["verify", "nightly-train"]) == 1
    assert "has no receipt" in capsys.readouterr().err
