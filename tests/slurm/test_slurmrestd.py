"""slurmrestd: jobs are submitted, told of and ended through it as by Slurm's commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.slurm.commands import Commands
from elastic_runtime.slurm.jobs import SlurmSpec, options
from elastic_runtime.slurm.rest import RestAccess, RestJobs
from tests.paced import until

pytestmark = pytest.mark.timeout(200)

RUN = RunSpec("by-rest", "uid-by-rest", ("true",), WorkersSpec(1, 1, 1))


def access() -> RestAccess:
    command = ["scontrol", "token", "username=root", "lifespan=3600"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return RestAccess(os.environ["SLURM_LAB_REST"], "root", told.strip().removeprefix("SLURM_JWT="))


@pytest.fixture
def rest() -> RestJobs:
    return RestJobs(access())


def state(job: str, jobs: list[Job]) -> JobState | None:
    return next((each.state for each in jobs if each.id == job), None)


def test_a_job_is_the_one_that_sbatch_would_submit(rest: RestJobs, tmp_path: Path) -> None:
    spec = SlurmSpec("python", launcher_options=("--partition=high", "--mem=1G", "--time=5"), exported=("SECRET",))
    output = tmp_path / "log"
    script = '#!/bin/bash -l\necho "home=$HOME secret=$SECRET"\nexec srun --export=ALL sleep 300\n'
    chosen, secrets = options(spec, RUN, LAUNCHER, output), {"SECRET": "its value", "OTHER": "not exported"}

    job = rest.submit(chosen, script, secrets)
    by_sbatch = Commands().submit(chosen, script, secrets)
    until(lambda: output.exists() and output.read_text().count("home=") == 2, "both have written")

    shown = [_shown(each) for each in (job, by_sbatch)]
    assert shown[0] == shown[1]
    assert set(output.read_text().splitlines()) == {f"home={Path.home()} secret=its value"}
    assert {each.id for each in rest.jobs(RUN.name)} == {job, by_sbatch}
    told = {each.id: each for each in Commands().jobs(RUN.name)}
    assert told.items() <= {each.id: each for each in rest.jobs()}.items(), "which has those of earlier tests, too"
    assert rest.jobs("another-run") == []

    rest.cancel([job, by_sbatch])
    until(lambda: {state(each, rest.jobs()) for each in (job, by_sbatch)} == {JobState.OVER}, "both have ended", 60.0)
    rest.cancel([job, "999999"])


def _shown(job: str) -> dict[str, str]:
    """What Slurm has been asked for."""
    told = subprocess.run(["scontrol", "show", "job", job, "-o"], check=True, capture_output=True, text=True).stdout
    words = dict(word.partition("=")[::2] for word in told.split())
    names = ("JobName", "Partition", "Requeue", "TimeLimit", "NumNodes", "NumTasks", "MinMemoryNode", "StdOut")
    return {name: words[name] for name in names}


def test_what_slurm_refuses_is_said(rest: RestJobs, tmp_path: Path) -> None:
    spec = SlurmSpec("python", launcher_options=("--partition=nowhere",))
    with pytest.raises(InvalidSettings, match="Invalid partition"):
        rest.submit(options(spec, RUN, LAUNCHER, tmp_path / "log"), "#!/bin/sh\ntrue\n")


@pytest.mark.parametrize("token", ["", "forged", "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJyb290In0.c2VjcmV0"])
def test_another_token_is_refused_and_is_in_no_message(token: str) -> None:
    with pytest.raises(ClusterUnavailable) as caught:
        RestJobs(RestAccess(os.environ["SLURM_LAB_REST"], "root", token)).jobs()
    assert not token or token not in str(caught.value)
