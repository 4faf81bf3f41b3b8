"""The sources of reclaim notices together: what is told, in which order, and when the time is over."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from elastic_runtime.agent import notices
from elastic_runtime.agent.notices import Source, collect, sources
from elastic_runtime.agent.notices.clouds import NO_METADATA
from elastic_runtime.clock import utc_now
from elastic_runtime.documents import to_json, write_atomically
from elastic_runtime.run.rundir import ReclaimNotice


async def says(source: str, *, after: float, deadline: float) -> ReclaimNotice:
    """A notice after so many seconds, for so many seconds after that."""
    await asyncio.sleep(after)
    return ReclaimNotice(source, utc_now() + timedelta(seconds=deadline))


async def has_nothing_to_say() -> None:
    return None


async def breaks() -> ReclaimNotice:
    raise ZeroDivisionError


def heard(*listening: Source) -> tuple[list[str], float]:
    """Sources of the notices told, and seconds until the time was over."""

    async def run() -> tuple[list[str], float]:
        told: list[str] = []
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout(10):
            await collect(listening, lambda notice: told.append(notice.source))
        return told, asyncio.get_running_loop().time() - begun

    return asyncio.run(run())


def test_a_notice_is_told_and_its_time_is_over_at_its_deadline() -> None:
    told, seconds = heard(says("aws", after=0.01, deadline=0.1), has_nothing_to_say())
    assert told == ["aws"]
    assert 0.1 <= seconds < 5


def test_the_earliest_deadline_of_several_notices_ends_it() -> None:
    told, seconds = heard(says("aws", after=0.0, deadline=60), says("sigterm", after=0.05, deadline=0.05))
    assert told == ["aws", "sigterm"]
    assert 0.1 <= seconds < 5


def test_a_later_deadline_changes_nothing() -> None:
    told, seconds = heard(says("aws", after=0.0, deadline=0.2), says("sigterm", after=0.05, deadline=60))
    assert told == ["aws", "sigterm"]
    assert seconds < 5


def test_a_source_that_breaks_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    told, _ = heard(breaks(), says("file", after=0.05, deadline=0.0))
    assert told == ["file"]
    assert "a source of reclaim notices has failed" in caplog.text


def test_nobody_listens_any_more_once_it_is_cancelled() -> None:
    ended = []

    async def listens() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def run() -> None:
        task = asyncio.create_task(collect([listens()], lambda _: None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_sigterm_leaves_as_much_time_as_whoever_sends_it() -> None:
    async def run() -> None:
        terminated, before = asyncio.Event(), utc_now()
        terminated.set()
        notice = await notices.sigterm(terminated, 25.0)
        assert notice.source == "sigterm"
        assert 25 <= (notice.deadline - before).total_seconds() < 30

    asyncio.run(run())


def test_a_file_is_read_once_it_is_there(tmp_path: Path) -> None:
    notice = ReclaimNotice("drill", utc_now().replace(microsecond=0))

    async def run() -> None:
        reading = asyncio.create_task(notices.written(tmp_path / "notice.json"))
        await asyncio.sleep(0)
        write_atomically(tmp_path / "notice.json", to_json(notice))
        async with asyncio.timeout(10):
            assert await reading == notice

    asyncio.run(run())


def test_nobody_touches_the_network_unless_asked_to() -> None:
    async def run() -> None:
        sigterm, written, cloud = sources(asyncio.Event(), 1.0, None, NO_METADATA)
        assert await written is None
        assert await cloud is None
        sigterm.close()

    asyncio.run(run())
