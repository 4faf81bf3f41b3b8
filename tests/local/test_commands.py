"""Whatever the ranks' command is: plain Elastic Horovod, a shell, cold or warm; and what becomes of its output."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from elastic_runtime.run.status import Phase
from tests.local.conftest import Start
from tests.paced import SCRIPTS, Script, sizes_of

pytestmark = pytest.mark.timeout(240)


def test_a_plain_elastic_horovod_script_runs_and_sees_every_sample_once(start: Start) -> None:
    run = start(Script("stock.py", epochs=2, holds=(5, 12)))
    run.at(5)
    run.resize(3)
    run.worlds(2, 3)
    run.go(5)
    run.at(12)
    run.resize(2)
    run.worlds(2, 3, 2)

    status = run.finish()

    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 3, 2, 0]
    ledger = run.ledger()
    assert set(ledger.steps().values()) == {1}
    for epoch in (0, 1):
        assert ledger.samples(epoch) == dict.fromkeys(range(120), 1)
    ranks: dict[int, list[list[float]]] = {}
    for note in ledger.notes:
        ranks.setdefault(note["step"], []).append(note["here"])
    apart = [step for step, found in ranks.items() if any(here != found[0] for here in found)]
    assert not apart, f"learning rates or weights of the ranks differ in steps {apart}: {ranks[apart[0]]}"


STOCK = SCRIPTS / "stock.py"
SHELL = ("sh", "-c", f"exec {sys.executable} {STOCK}")
CHILD = (sys.executable, "-c", f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '{STOCK}']))")
"""Its descriptors are closed, so that it does not inherit the rank's connection to the agent."""


@pytest.mark.parametrize(
    ("command", "warm"),
    [
        pytest.param(SHELL, True, marks=pytest.mark.long, id="a-shell-beside-warm-ranks"),
        pytest.param(SHELL, False, id="a-shell"),
        pytest.param(CHILD, True, id="a-child-of-a-warm-rank"),
        pytest.param(CHILD, False, marks=pytest.mark.long, id="a-child"),
    ],
)
def test_a_training_that_the_command_starts_scales(start: Start, command: tuple[str, ...], warm: bool) -> None:
    run = start(Script("stock.py", epochs=1, holds=(6,)), command=command, warm=warm)
    run.at(6)  # What is left of the samples can be divided by three: Horovod's sampler repeats some otherwise.
    run.resize(3)
    run.worlds(2, 3)
    status = run.finish()
    assert status.phase is Phase.SUCCEEDED
    assert sizes_of(status) == [2, 3, 0]
    assert run.ledger().samples(0) == dict.fromkeys(range(120), 1)


def test_every_line_of_every_rank_is_in_the_log_in_order(start: Start) -> None:
    run = start(Script("talkative.py"))
    assert run.end().phase is Phase.SUCCEEDED
    line = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (worker-\d) \[(\d)\]<(stdout|stderr)>: (.*)")
    found = [match.groups() for match in map(line.fullmatch, run.log().splitlines()) if match]
    for rank in "01":
        lines = [text for _, of, stream, text in found if (of, stream) == (rank, "stdout")]
        assert lines == [f"line {number}" for number in range(1000)]
    assert Counter(found)[("worker-0", "0", "stderr", "no newline at the end")] <= 1
    assert sorted(of for _, of, stream, text in found if text == "no newline at the end") == ["0", "1"]


def test_how_a_rank_writes_its_own_log_is_its_scripts_to_say(start: Start) -> None:
    script = "import logging; logging.basicConfig(format='mine: %(message)s', level='INFO'); logging.info('so be it')"
    run = start(Script("talkative.py"), command=("python", "-c", script))
    run.end()
    found = [line for line in run.log().splitlines() if line.endswith("so be it")]
    assert found
    assert all("<stderr>: mine: so be it" in line for line in found)
