"""The run's certificates expire: people are told in time, once, and once more when it has happened."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.clock import utc_now
from elastic_runtime.launcher.certificate_expiry import AHEAD, CertificateExpiry
from elastic_runtime.launcher.record.run_record import RunRecord
from elastic_runtime.net import certificates
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import EventKind, Status
from tests.unit.runtime.launcher_bench import Place, Worker, launched
from tests.unit.runtime.run_record.bench import NOON, Clock


def test_is_told_once_ahead_and_once_when_it_is_there() -> None:
    clock = Clock()
    record = RunRecord(RunSpec("run", "uid", ("true",)), clock)
    expiry = CertificateExpiry(NOON + timedelta(days=30), record, clock)
    told: list[int] = []
    for _ in range(31 * 24):
        expiry.look()
        told.append(len(record.status([], {}, 1).events))
        clock.tick(3600)
    day = 24
    assert [told.index(count) for count in (1, 2)] == [(30 - AHEAD.days) * day, 30 * day]
    assert told[-1] == 2
    ahead, there = record.status([], {}, 1).events
    assert ahead.kind is there.kind is EventKind.WARNING
    assert "the run's certificates expire at 2026-02-01 12:00 UTC" in ahead.message
    assert "the run's certificates have expired at" in there.message
    for each in (ahead, there):
        assert 'on_clear="resume"' in each.message


@pytest.mark.parametrize("left", [AHEAD - timedelta(hours=1), AHEAD + timedelta(hours=1)])
def test_the_launcher_looks_at_the_certificates_that_it_has(tmp_path: Path, left: timedelta) -> None:
    certificates.create(tls := tmp_path / "tls", validity=left)
    assert abs(certificates.expiry(tls) - utc_now() - left) < timedelta(minutes=1)

    async def test(place: Place, worker: Worker, running: object) -> None:
        def warned(status: Status) -> bool:
            return any("certificates expire" in event.message for event in status.events)

        assert warned(place.published[-1]) is (left < AHEAD)

    launched(tls, test)
