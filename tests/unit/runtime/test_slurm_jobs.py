"""What is asked of Slurm, and what it tells."""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.run.jobs import LAUNCHER, Job, JobState
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from elastic_runtime.slurm.commands import AT_ONCE, Commands
from elastic_runtime.slurm.jobs import (
    MOST_JOBS,
    SlurmSpec,
    comment,
    options,
    read_jobs,
    script,
    why_pending,
)

RUN = RunSpec("digits-train-0a", "uid1", ("true",), WorkersSpec(1, 2, 3))


def test_reads_jobs_of_runs_and_leaves_out_others() -> None:
    text = (
        "12|RUNNING|1795812429|n1|None|elastic-training uid1 worker-0\n"
        "13|PENDING|N/A||Resources|elastic-training uid1 worker-1\n"
        "14|PREEMPTED|1795812400|n2|None|elastic-training uid1 worker-2\n"
        "15|RUNNING|1795812429|n1|None|(null)\n"
        "16|RUNNING|1795812429|n1|None|my own | comment\n"
    )
    end = datetime.fromtimestamp(1795812429, UTC)
    assert list(read_jobs(text)) == [
        Job("12", "uid1", "worker-0", JobState.RUNNING, "RUNNING", "None", "n1", end),
        Job("13", "uid1", "worker-1", JobState.PENDING, "PENDING", "Resources"),
        Job(
            "14", "uid1", "worker-2", JobState.OVER, "PREEMPTED", "None", "n2", datetime.fromtimestamp(1795812400, UTC)
        ),
    ]


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for job in read_jobs(text):
            assert job.run
    except InvalidDocument:
        assert any(line.count("|") < 5 for line in text.splitlines())


def test_an_endless_answer_is_refused() -> None:
    line = "1|RUNNING|0|n1|None|elastic-training u w\n"
    with pytest.raises(InvalidDocument, match="more than"):
        list(read_jobs(line * (MOST_JOBS + 1)))


@given(st.lists(st.text(st.characters(exclude_characters="\0\r", codec="utf-8"), max_size=20), min_size=1, max_size=5))
def test_a_script_passes_any_word_on(words: list[str]) -> None:
    written = script(SlurmSpec("python"), ["printf", "%s\\n", *words])
    passed = shlex.split(written.partition("exec srun ")[2])
    assert passed[-len(words) :] == words


def test_setup_and_prefix_come_before_the_program() -> None:
    spec = SlurmSpec("python", setup=("module load cuda",), prefix=("apptainer", "exec", "a b.sif"))
    assert script(spec, ["python", "-m", "x"]).splitlines() == [
        "#!/bin/bash -l",
        "module load cuda",
        "export ELASTIC_RUNTIME_NOTICE_TO_ALL=1",
        "exec srun --nodes=1 --ntasks=1 --export=ALL apptainer exec 'a b.sif' python -m x",
    ]


def test_options_of_worker_and_launcher() -> None:
    spec = SlurmSpec("python", ("--partition=gpu",), ("--partition=cpu",), grace=40.0, exported=("AWS_SECRET",))
    of_worker = options(spec, RUN, "worker-3", Path("/shared/out"))
    assert of_worker[0] == "--partition=gpu"
    assert {
        "--comment=elastic-training uid1 worker-3", "--signal=TERM@40", "--export=NIL,AWS_SECRET", "--no-requeue",
        "--job-name=digits-train-0a", "--output=/shared/out",
    } <= set(of_worker)  # fmt: skip
    assert options(spec, RUN, LAUNCHER, Path("/shared/log"))[0] == "--partition=cpu"


@pytest.mark.parametrize(
    ("reason", "words", "hopeless"),
    [
        ("Resources", "nodes are in use", False),
        ("(Priority)", "higher priority", False),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", "down, drained or reserved", False),
        ("QOSMaxJobsPerUserLimit", "a limit of the account or QOS", False),
        ("AssocGrpGRES", "a limit of the account or QOS", False),
        ("PartitionTimeLimit", "shorten time_limit", True),
        ("BadConstraints", "change constraint", True),
        ("Something new", "Something new", False),
    ],
)
def test_why_a_job_waits_is_said_with_what_to_do(reason: str, words: str, hopeless: bool) -> None:
    said, never = why_pending(reason)
    assert words in said
    assert never is hopeless


class Answers:
    """A shell that answers as it is told; notes what it was asked."""

    def __init__(self, status: int = 0, output: str = "", errors: str = "") -> None:
        self.answer = (status, output, errors)
        self.asked: list[list[str]] = []

    def __call__(self, command: list[str], stdin: str, variables: object) -> tuple[int, str, str]:
        self.asked.append(list(command))
        return self.answer


def commands(answers: Answers) -> Commands:
    return Commands(answers)  # type: ignore[arg-type]


def test_a_job_of_a_federation_is_known_by_its_number() -> None:
    assert commands(Answers(output="17;lab\n")).submit(["--parsable"], "#!/bin/sh\n") == "17"


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", InvalidSettings),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", InvalidSettings),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", ClusterUnavailable),
        ("sbatch: error: Required partition not available (inactive or drain)", ClusterUnavailable),
        ("sbatch: error: Required node not available (down, drained or reserved)", ClusterUnavailable),
        ("sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size)", ClusterUnavailable),
    ],
)
def test_what_is_refused_for_good_is_told_from_what_may_pass(errors: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=errors.removeprefix("sbatch: error: ")[:30].replace("(", ".")):
        commands(Answers(1, "", errors)).submit([], "")


def test_what_is_no_answer_of_squeue_is_an_outage() -> None:
    with pytest.raises(ClusterUnavailable, match="not a job"):
        commands(Answers(output="hello\n")).jobs()


def test_many_jobs_are_ended_some_at_a_time_and_one_that_is_gone_is_no_error() -> None:
    answers = Answers(1, "", "scancel: error: Kill job error on job id 7: Invalid job id specified")
    commands(answers).cancel(str(number) for number in range(AT_ONCE + 1))
    assert [len(command) for command in answers.asked] == [2 + AT_ONCE, 3]


def test_a_command_that_is_not_there_is_a_setting() -> None:
    with pytest.raises(InvalidSettings, match="there is no sbatch"):
        Commands(lambda *_: missing()).submit([], "")


def missing() -> tuple[int, str, str]:
    from elastic_runtime.slurm.commands import on_this_machine

    return on_this_machine(["sbatch"], "", {}, {"PATH": "/nonexistent"})


def test_a_command_hears_nothing_of_the_job_in_which_it_is_called(tmp_path: Path) -> None:
    """``srun`` gives the launcher ``SLURM_CPU_BIND``, and ``sbatch`` would hand it on to workers."""
    from elastic_runtime.slurm.commands import on_this_machine

    variables = {"SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_JOB_ID": "6", "SLURM_CONF": "/etc/ours", "HOME": "/h"}
    status, said, _ = on_this_machine(["env"], "", {"SLURM_TIME_FORMAT": "%s"}, {"PATH": "/usr/bin:/bin"} | variables)
    assert status == 0
    assert {"SLURM_CONF=/etc/ours", "SLURM_TIME_FORMAT=%s", "HOME=/h"} <= set(said.splitlines())
    assert "SLURM_CPU_BIND" not in said
    assert "SLURM_JOB_ID" not in said


def test_a_comment_is_three_words() -> None:
    assert comment("uid1", "worker-0").split() == ["elastic-training", "uid1", "worker-0"]


def test_an_answer_that_does_not_come_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_arguments: object, **_more: object) -> None:
        raise subprocess.TimeoutExpired("squeue", 60)

    monkeypatch.setattr(subprocess, "run", silent)
    with pytest.raises(ClusterUnavailable, match="has not answered in 60 s"):
        Commands().jobs()
