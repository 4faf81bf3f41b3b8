"""The documentation's fragments of DAG files and its commands run, or say why they do not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from airflow.providers.common.compat.sdk import DAG

from elastic_training.clusters.location import read_location
from tests.documented import ROOT, blocks
from tests.documented_fragments import COMMANDS, FRAGMENTS, Commands, Fragment
from tests.unit.tools.test_documents import BLOCKS, DAGS, OF_THE_PROVIDER

PRELUDE = """
from datetime import timedelta
from airflow.providers.standard.operators.empty import EmptyOperator
from elastic_training.operators.capacity_decision import CapacityDecisionOperator
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Pods, PodShape, SecretRef, Volume
from elastic_training.retry_policy import TrainingRetryPolicy
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import Workers
"""
USUAL = 'task_id="train", command=["python", "train.py"], workers=Workers(min=1, max=2),'
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / each for each in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
SHELL = [
    (str(page.relative_to(ROOT)), block)
    for page in PAGES
    for language in ("sh", "bash", "shell", "console", "")
    for block in blocks(page, language)
    if language or re.match(r"(make|pip|airflow|kubectl) ", block)
]
SNIPPETS = [
    (place.partition(":")[0], block)
    for place, block in BLOCKS.items()
    if OF_THE_PROVIDER.search(block) and place not in DAGS and not place.startswith("docs/getting-started.md")
]


def test_every_fragment_is_run_or_says_why_not() -> None:
    for page, block in SNIPPETS:
        found = [each.words for each in FRAGMENTS if each.page == page and each.words in block]
        assert len(found) == 1, f"give this block of {page} an entry in tests/documented_fragments.py:\n{block}"
    assert len(SNIPPETS) == len(FRAGMENTS)


@pytest.mark.parametrize(
    "fragment", [each for each in FRAGMENTS if not each.reason], ids=lambda each: f"{each.page} {each.words}"
)
def test_a_fragment_does_what_it_says(fragment: Fragment) -> None:
    (block,) = [block for page, block in SNIPPETS if page == fragment.page and fragment.words in block]
    parts = [
        PRELUDE,
        textwrap.dedent(fragment.before),
        re.sub(r"\.\.\.,", USUAL, block),
        textwrap.dedent(fragment.after),
    ]
    for _ in range(2):
        with DAG("shown"):
            exec(compile("\n".join(parts), fragment.page, "exec"), {"__name__": "shown"})


def test_every_block_of_commands_is_run_or_says_why_not() -> None:
    for page, block in SHELL:
        found = [each.words for each in COMMANDS if each.page == page and each.words in block]
        assert len(found) == 1, (
            f"give this block of {page} one entry in tests/documented_fragments.py, not {found}:\n{block}"
        )
    assert len(SHELL) == len(COMMANDS)


@pytest.mark.parametrize("commands", COMMANDS, ids=lambda each: f"{each.page} {each.words}")
def test_commands_can_be_run(commands: Commands) -> None:
    """A shell understands them, targets of make and files are there, and so is what runs them."""
    assert bool(commands.run_by) != bool(commands.reason)
    if commands.run_by:
        assert (ROOT / commands.run_by).exists()
    block = shown(commands)
    understood = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
    assert understood.returncode == 0, understood.stderr
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    for file in re.findall(r"(?<![\w/.$])((?:tools|deploy|dags|benchmarks)/[\w./-]+)", block):
        assert (ROOT / file.rstrip(".")).exists(), file


CONNECTIONS = [each for each in COMMANDS if each.words in ("airflow connections add", "local_python")]


@pytest.mark.parametrize("commands", CONNECTIONS, ids=lambda each: each.page)
def test_connections_that_are_added_lead_somewhere(commands: Commands, tmp_path: Path) -> None:
    """What the shell gives Airflow's command line is what Airflow and the provider take."""
    stand_in = tmp_path / "airflow"
    record = "import json, sys; print(json.dumps(sys.argv[1:]))"
    stand_in.write_text(f"#!{sys.executable}\n{record}\n")
    stand_in.chmod(0o755)
    for _ in range(2):
        told = subprocess.run(
            ["bash", "-eu"], input=shown(commands), capture_output=True, text=True, check=True,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )  # fmt: skip
        calls = [json.loads(line) for line in told.stdout.splitlines()]
        assert calls
        for *command, name, kind_flag, kind, extra_flag, extra in calls:
            assert command == ["connections", "add"]
            assert (kind_flag, kind, extra_flag) == ("--conn-type", "elastic_training", "--conn-extra")
            assert read_location(name, json.loads(extra))


def shown(commands: Commands) -> str:
    (block,) = [block for page, block in SHELL if page == commands.page and commands.words in block]
    return block
