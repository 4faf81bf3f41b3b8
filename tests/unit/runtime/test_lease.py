"""The age of a lease, by the launcher's own clock: whoever renews it may be a machine with another one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elastic_runtime.launcher.folder import platform as local
from elastic_runtime.launcher.local.platform import LocalPlatform
from elastic_runtime.launcher.platform import LeaseAge
from elastic_runtime.run.rundir import RunDir
from elastic_runtime.run.spec import RunSpec, WorkersSpec
from tests.unit.runtime.rank_bench import Clock

HOUR = 3600.0


def test_counts_from_the_last_change() -> None:
    clock = Clock()
    lease = LeaseAge(clock)
    assert lease() is None
    lease.see("12:00")
    clock.now += 5.0
    lease.see("12:00")
    assert lease() == 5.0
    lease.see("11:59")
    assert lease() == 0.0
    lease.see(None)
    assert lease() is None


def test_can_begin_anew() -> None:
    clock = Clock()
    lease = LeaseAge(clock)
    lease.see("12:00")
    clock.now += 5.0
    lease.restart()
    clock.now += 1.0
    assert lease() == 1.0


@pytest.mark.parametrize("skew", [-7 * HOUR, 0.0, 7 * HOUR])
def test_of_a_shared_folder_whose_other_users_have_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(local, "time", type("Time", (), {"monotonic": staticmethod(clock)}))
    folder = RunDir(tmp_path)
    platform = LocalPlatform(folder, RunSpec("run", "uid", ("true",), WorkersSpec(1, 1, 1)))
    assert platform.lease_age() is None

    def renew() -> None:
        folder.lease.touch()
        at = time.time() + skew + clock.now
        os.utime(folder.lease, (at, at))

    renew()
    assert platform.lease_age() == 0.0
    clock.now += 60.0
    assert platform.lease_age() == 60.0
    renew()
    assert platform.lease_age() == 0.0
