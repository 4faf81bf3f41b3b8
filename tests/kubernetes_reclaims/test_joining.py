"""A machine that no cluster manages joins a run whose launcher and workers are in pods."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import pytest

from elastic_runtime.documents import from_json
from elastic_runtime.launcher.joining import INVALID
from elastic_runtime.run.join import JoinSpec, JoinToken, join_command
from elastic_runtime.run.runobjects import LAUNCHER_PORT, Part, Term
from elastic_training.concurrency.bridge import run as wait_for
from tests.joined_machine import joining, trains_and_leaves
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import TIMING, Place, PodRun
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(600)

LONG = replace(TIMING, leave_grace=30.0)
"""A machine has so long to leave, however busy this one is."""
ANY = ("0.0.0.0/1", "128.0.0.0/1")
"""Networks: the lab enforces no policy."""


def command(place: Place, run: PodRun) -> str:
    return wait_for(place.cluster.join_command(run.ref))


def trainer() -> str:
    return os.environ["ELASTIC_TRAINING_TRAINER_PYTHON"]


def test_it_trains_and_leaves_with_no_step_lost(start: Start, place: Place, undisturbed: Undisturbed) -> None:
    script = Script("exact.py", holds=(20, 40))
    run = start(script, (1, 1, 2), engine="torch", join=JoinSpec(networks=ANY), timing=LONG)
    trains_and_leaves(run, undisturbed, partial(command, place, run), trainer())
    policy = place.namespace.kubectl(
        "get", "networkpolicy", f"{run.ref.name}-join", "--output=jsonpath={.spec.ingress[*].from[*].ipBlock.cidr}"
    )
    assert policy.split() == list(ANY)


def term(place: Place, run: PodRun) -> Term:
    """Of the launcher that is in leadership, or was last."""
    where = "--output=jsonpath={.metadata.annotations.elastic-training/term}"
    return from_json(Term, place.namespace.kubectl("get", "configmap", f"{run.ref.name}-status", where))


@pytest.mark.long
def test_the_next_launcher_knows_neither_the_machines_of_the_one_before_nor_its_tokens(
    start: Start, place: Place
) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 1, 2), engine="torch", join=JoinSpec(networks=ANY))
    run.at(20)
    kept = command(place, run)
    with joining(command(place, run), run.base, trainer()) as machine:
        run.worlds(1, 2)
        run.delete_pods(Part.LAUNCHER)
        assert machine.process.wait(120) == 1, machine.log.read_text()
    run.until(lambda: term(place, run).number == 2, "another launcher")
    now, old = term(place, run), JoinToken.parse(kept.split()[-1])
    (again := run.base / "again").mkdir()
    with joining(join_command(run.ref.name, now.address, LAUNCHER_PORT, old.text()), again, trainer()) as machine:
        assert machine.process.wait(60) == 1
        assert INVALID in machine.log.read_text()
