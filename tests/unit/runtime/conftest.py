"""How the tests of the runtime are run, and what some of them share.

How many examples Hypothesis tries; torch's threads; for DurableState one rank, its clock and its agent. What
takes long to import is imported by the tests that need it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_runtime.run.spec import CheckpointSpec
from tests import examples
from tests.unit.runtime.rank_bench import Agent, Clock

examples.choose()
# Before torch is imported: its threads would wait for each other busily, with tensors as small as the tests'.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="module")
def horovod() -> Iterator[None]:
    """A world of one."""
    import horovod.torch as hvd

    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves one when its other fixtures have ended."""
    before = {thread.ident for thread in threading.enumerate()}
    yield
    assert {thread.ident for thread in threading.enumerate()} <= before, "a thread was left"


@pytest.fixture
def agent() -> Iterator[Agent]:
    """At the other end of a rank's link."""
    agent = Agent()
    yield agent
    agent.close()


@pytest.fixture
def clock() -> Clock:
    """What a rank tells the time by."""
    return Clock()


@pytest.fixture
def spec(tmp_path: Path) -> CheckpointSpec:
    """Checkpoints in a folder that is not there yet, one a minute."""
    return CheckpointSpec((tmp_path / "run").as_uri(), every=60, keep=3)
