"""A machine that no cluster manages joins a run whose launcher and workers are in pods."""

from __future__ import annotations

import os
from functools import partial

import pytest

from elastic_runtime.launcher.joining import INVALID
from elastic_runtime.run.join import JoinSpec
from elastic_training.concurrency.bridge import run as wait_for
from tests.joined_machine import joining, trains_and_leaves
from tests.kubernetes_reclaims.conftest import Start
from tests.kubernetes_reclaims.pod_run import Place, PodRun
from tests.paced import Script, Undisturbed

pytestmark = pytest.mark.timeout(600)

ANY = ("0.0.0.0/1", "128.0.0.0/1")
"""Networks: the lab enforces no policy."""


def command(place: Place, run: PodRun) -> str:
    return wait_for(place.cluster.join_command(run.ref))


def trainer() -> str:
    return os.environ["ELASTIC_TRAINING_TRAINER_PYTHON"]


def test_it_trains_and_leaves_with_no_step_lost(start: Start, place: Place, undisturbed: Undisturbed) -> None:
    run = start(Script("exact.py", holds=(20, 40)), (1, 1, 2), engine="torch", join=JoinSpec(networks=ANY))
    trains_and_leaves(run, undisturbed, partial(command, place, run), trainer())
    policy = place.namespace.kubectl(
        "get", "networkpolicy", f"{run.ref.name}-join", "--output=jsonpath={.spec.ingress[*].from[*].ipBlock.cidr}"
    )
    assert policy.split() == list(ANY)


@pytest.mark.long
def test_a_token_is_of_no_use_to_the_next_launcher(start: Start, place: Place) -> None:
    run = start(Script("exact.py", holds=(20,)), (1, 1, 2), engine="torch", join=JoinSpec(networks=ANY))
    run.at(20)
    old = command(place, run).split()
    run.kill_launcher()
    run.until(lambda: command(place, run).split()[3] != old[3], "another launcher")
    *words, _ = command(place, run).split()
    with joining(" ".join((*words, old[5])), run.base, trainer()) as machine:
        assert machine.process.wait(60) != 0
        assert INVALID in machine.log.read_text()
