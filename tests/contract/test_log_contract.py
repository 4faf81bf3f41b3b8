"""What every cluster promises about a run's log: who streams it, and from where."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from elastic_runtime.errors import OwnershipLost
from elastic_training.clusters.types import (
    LOG_START,
    LogLines,
    Quiet,
    StatusChanged,
    Update,
)
from elastic_training.concurrency.bridge import run
from tests.contract.cluster_kinds import OWNER, Kind
from tests.contract.watching import NEWER, WATCH_TIMEOUT, lines_of, over, started, to_the_end, until

pytestmark = pytest.mark.timeout(600)


def test_the_log_goes_on_where_the_last_watcher_stopped(kind: Kind) -> None:
    ref = started(kind)
    mine = run(kind.cluster.take_log_lease(ref, OWNER))
    assert mine.cursor == LOG_START

    async def first_lines() -> LogLines:
        async with asyncio.timeout(WATCH_TIMEOUT), aclosing(kind.cluster.watch(ref, mine.cursor, 1.0)) as updates:
            async for update in updates:
                if isinstance(update, LogLines):
                    return update
        raise AssertionError("the watch ended without a line")

    first = asyncio.run(first_lines())
    run(kind.cluster.advance(ref, mine.token, first.cursor))
    kind.finish(ref)
    until(kind, ref, over)

    theirs = run(kind.cluster.take_log_lease(ref, OWNER))

    assert theirs.cursor == first.cursor
    rest = lines_of(to_the_end(kind, ref, theirs.cursor))
    assert [*first.lines, *rest] == lines_of(to_the_end(kind, ref, LOG_START))
    assert rest


@pytest.mark.long_in_pods
def test_only_the_last_to_attend_moves_the_cursor(kind: Kind) -> None:
    ref = run(kind.cluster.claim(kind.spec(), OWNER)).ref
    assert run(kind.cluster.log_lease_holder(ref)) is None
    stale, present = run(kind.cluster.take_log_lease(ref, OWNER)), run(kind.cluster.take_log_lease(ref, OWNER))
    assert run(kind.cluster.log_lease_holder(ref)) == present.token
    with pytest.raises(OwnershipLost):
        run(kind.cluster.advance(ref, stale.token, LOG_START))
    run(kind.cluster.advance(ref, present.token, LOG_START))


@pytest.mark.long_in_pods
def test_only_the_last_to_attend_renews_the_lease(kind: Kind) -> None:
    ref = run(kind.cluster.claim(kind.spec(), OWNER)).ref
    mine = run(kind.cluster.take_log_lease(ref, OWNER))
    run(kind.cluster.renew_lease(ref, mine.token))
    run(kind.cluster.claim(kind.spec(), NEWER))
    with pytest.raises(OwnershipLost):
        run(kind.cluster.renew_lease(ref, mine.token))
    theirs = run(kind.cluster.take_log_lease(ref, NEWER))
    run(kind.cluster.renew_lease(ref, theirs.token))


@pytest.mark.long_in_pods
def test_a_watch_without_log_has_none_and_speaks_at_every_beat(kind: Kind) -> None:
    ref = started(kind)

    async def some() -> list[Update]:
        found: list[Update] = []
        async with asyncio.timeout(WATCH_TIMEOUT), aclosing(kind.cluster.watch(ref, None, 0.1)) as updates:
            async for update in updates:
                found.append(update)
                if isinstance(update, Quiet):
                    return found
        raise AssertionError("the watch ended")

    found = asyncio.run(some())
    assert isinstance(found[0], StatusChanged)
    assert not lines_of(found)
