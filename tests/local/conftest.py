"""Runs that never outlive their test, and the undisturbed run that others are measured against."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.run.status import Phase
from tests.faulty_proxy import FaultyProxy, faulty_proxy
from tests.local.harness import ScriptedRun
from tests.paced import Script, Undisturbed
from tests.s3_server import CREDENTIALS, new_bucket, s3_server

Start = Callable[..., ScriptedRun]


ENGINES: dict[str, dict[str, Any]] = {
    "horovod": {},
    "torch": {"engine": "torch"},
    "torch-in-place": {"engine": "torch", "environment": {"IN_PLACE": "1"}},
    "torch-sharded": {"engine": "torch", "environment": {"SHARDED": "1"}},
    "torch-sharded-in-place": {"engine": "torch", "environment": {"SHARDED": "1", "IN_PLACE": "1"}},
}
"""What the spec says for it, by the name of a test's parameter."""
_all = "ENGINES" in os.environ
each_engine = pytest.mark.parametrize(
    "start", ENGINES if _all else ["horovod", "torch-in-place", "torch-sharded-in-place"], indirect=True
)
"""For tests of ``exact.py``: the same history, and the same training, whoever connects the ranks."""
both_engines = pytest.mark.parametrize("start", ENGINES if _all else ["horovod"], indirect=True)
"""The same for losses and notices to all, where ``make test-faults`` asks for it: it takes ten minutes more."""
one_has_all = pytest.mark.parametrize(
    "start",
    [each for each in ENGINES if "sharded" not in each] if "ENGINES" in os.environ else ["horovod"],
    indirect=True,
)
"""The same where a rank alone must have the state."""


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts runs, by Horovod or as :data:`each_engine` says; arguments as :class:`ScriptedRun`, but for the folder."""
    runs: list[ScriptedRun] = []
    engine = ENGINES[getattr(request, "param", "horovod")]

    def begin(script: Script, *arguments: Any, **spec: Any) -> ScriptedRun:
        runs.append(ScriptedRun(tmp_path / f"run-{len(runs)}", script, *arguments, **engine, **spec))
        return runs[-1].start()

    yield begin
    for run in runs:
        run.close()


@dataclass(frozen=True)
class S3:
    """A bucket behind a faulty proxy."""

    proxy: FaultyProxy
    bucket: str
    environment: dict[str, str]
    """Of ranks that are to use it; nothing is tried more than twice."""

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/run"


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": s3_url}.items():
        monkeypatch.setenv(name, value)
    with faulty_proxy(s3_url) as proxy:
        seen_by_ranks = {"AWS_ENDPOINT_URL_S3": proxy.url, "AWS_MAX_ATTEMPTS": "2"}
        yield S3(proxy, new_bucket(), {**CREDENTIALS, **seen_by_ranks})


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    run = ScriptedRun(tmp_path_factory.mktemp("undisturbed") / "run", Script("exact.py"), (2, 2, 2)).start()
    try:
        status = run.end()
        assert status.phase is Phase.SUCCEEDED, run.report("no success")
        return Undisturbed.by(run)
    finally:
        run.close()
