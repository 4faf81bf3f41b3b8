"""Scripts for TensorFlow without an elastic state: Horovod's own examples, and two as tutorials teach them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.launcher.record.misuse import STATIC
from elastic_runtime.run.spec import RecoverySpec, RestartSpec
from tests.local.conftest import Start
from tests.paced import Script, sizes_of
from tests.steered import STANDIN, Steered, checkout, steering
from tests.stock_scripts import losses_printed
from tests.tensorflow.conftest import ENVIRONMENT, SCRIPTS

__all__ = ["checkout"]
pytestmark = pytest.mark.timeout(400)

HOROVODS = {
    "tensorflow2_mnist.py": ("10000 //", "60 //"),
    "tensorflow2_keras_mnist.py": ("500 //", "24 //", "epochs=24", "epochs=4"),
}
"""What is replaced in them for fewer steps."""


@pytest.fixture
def train(start: Start, tmp_path: Path) -> Callable[..., Steered]:
    """Starts a script, of which each process waits after three steps."""

    def begin(path: str, *arguments: str, workers: tuple[int, int, int] = (1, 2, 3), **spec: Any) -> Steered:
        script = Script("static.py", (path, *arguments))
        python_path = os.pathsep.join([str(STANDIN), ENVIRONMENT["PYTHONPATH"]])
        environment = {**ENVIRONMENT, "PYTHONPATH": python_path, **steering(tmp_path, 3)}
        recovery = RecoverySpec(backoff=0.5)
        run = start(script, workers, script.command(SCRIPTS), recovery=recovery, environment=environment, **spec)
        return Steered(run, tmp_path, 3)

    return begin


RESTARTED: dict[str, Any] = {"engine": "horovodrun", "restart": RestartSpec(grace=20.0)}


@pytest.mark.parametrize("name", HOROVODS)
def test_horovods_examples_start_over_in_each_world(
    train: Callable[..., Steered], checkout: Callable[[str, str], Path], name: str
) -> None:
    path = checkout("horovod", "examples/tensorflow2") / name
    script = train(str(path), *HOROVODS[name], "--", **RESTARTED)
    script.sizes_a_notice_and_a_loss()
    losses = [float(each.split()[0]) for mark in ("Loss: ", "loss: ") for each in script.told(mark)]
    assert losses[-1] < losses[0], losses
    print(name, losses[0], losses[-1])


@pytest.mark.parametrize("name", HOROVODS)
def test_horovods_examples_are_told_of_where_nobody_restarts_them(
    train: Callable[..., Steered], checkout: Callable[[str, str], Path], name: str
) -> None:
    path = checkout("horovod", "examples/tensorflow2") / name
    script = train(str(path), *HOROVODS[name], "--")
    script.stands(2)
    assert script.run.until_status(lambda _: script.warnings(), "it is told") is not None
    assert script.warnings() == [STATIC]
    script.run.resize(3)
    script.run.until_status(lambda status: len(script.warnings()) == 2 and status.target_size == 2, "held")
    script.succeed()
    assert sizes_of(script.run.status()) == [2, 0]


@pytest.mark.shows(engine="horovodrun", framework="tensorflow", fault="resize", place="local")
def test_a_script_with_a_checkpoint_goes_on_from_it(train: Callable[..., Steered], tmp_path: Path) -> None:
    """Five steps an epoch with two ranks, four with three."""
    options = ("--", "--distributed", "1", "--epochs", "4", "--checkpoint", str(tmp_path / "weights.h5"))
    script = train("tutorial/distributed.py", *options, **RESTARTED)
    script.stands(2)
    (tmp_path / "hold").unlink()
    script.run.until((tmp_path / "weights.h5.epoch").exists, "an epoch is done")
    (tmp_path / "hold").touch()
    script.run.resize(3)
    script.stands(3)
    script.succeed()
    begun = [line for line in script.told("Epoch ") if line.endswith("/4")]
    assert begun.count("1/4") == 1, "it did not start over"
    assert begun[-1] == "4/4"


def test_mnist_distributed_on_one_machine(train: Callable[..., Steered], tmp_path: Path) -> None:
    options = ("--", "--distributed", "1", "--checkpoint", str(tmp_path / "weights.h5"))
    script = train("tutorial/distributed.py", *options, workers=(1, 1, 1), **RESTARTED)
    script.succeed()
    assert script.told("rank 0 of 1 is done") == [""]
    assert script.warnings() == []


@pytest.mark.parametrize("spec", [{}, RESTARTED], ids=["in place", "restarted"])
def test_the_quickstart_for_beginners(train: Callable[..., Steered], spec: dict[str, Any]) -> None:
    """Without Horovod: the run is as good as one that somebody starts by hand."""
    script = train("tutorial/beginner.py", "--", workers=(1, 1, 1), **spec)
    script.succeed()
    losses = losses_printed(script.run.log().replace("loss ", "loss: "))
    print(losses[0], losses[-1])
    assert losses[-1] < losses[0]
