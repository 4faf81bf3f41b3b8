"""The watch that trigger and operator share, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastic_runtime.errors import ClusterUnavailable, FailureKind
from elastic_runtime.run.spec import RunSpec, Timing
from elastic_runtime.run.status import Phase, WorkerStatus
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import LOG_START, LogLines, RunRef, Update
from elastic_training.concurrency.bridge import run
from elastic_training.following.follow import Ending, Followed, Follower
from tests.unit.provider.virtual_time import run_virtually

LOG = logging.getLogger("test.follow")
LOG.setLevel(logging.INFO)
MORNING = datetime(2026, 11, 21, 8, tzinfo=UTC)
OWNER = "try 1"


def claimed(cluster: FakeCluster, uid: str = "1", timing: Timing | None = None) -> RunRef:
    spec = RunSpec(name="run", uid=uid, command=("python", "train.py"), timing=timing or Timing())
    return run(cluster.claim(spec, OWNER)).ref


def follow(cluster: FakeCluster, ref: RunRef, deadline: datetime | None = None) -> Followed:
    async def on_the_loops_clock() -> Followed:
        loop = asyncio.get_running_loop()
        follower = Follower(
            cluster, ref, OWNER, LOG, deadline=deadline, now=lambda: MORNING + timedelta(seconds=loop.time())
        )
        return await follower.follow()

    return run_virtually(on_the_loops_clock())


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOG.name]


def test_every_line_and_every_change_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)
    cluster.script(
        lambda: cluster.write_log("run", "one", "two with 100%"),
        lambda: cluster.publish("run", step=5),
        lambda: cluster.publish("run", step=6, metrics={"loss": 0.5}),
        lambda: cluster.write_log("run", "three"),
        lambda: cluster.succeed("run"),
    )
    followed = follow(cluster, ref)
    assert followed.ending is Ending.FINISHED
    assert followed.status is not None
    assert (followed.status.phase, followed.status.step) == (Phase.SUCCEEDED, 6)
    # The launcher tells what happens while it runs; nobody does so once more.
    assert told(caplog) == ["the launcher has started", "one", "two with 100%", "three"]


def test_what_no_launcher_can_tell_is_told_of_the_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)
    cluster.script(
        lambda: cluster.publish("run", phase=Phase.PENDING, reason="the launcher is starting"),
        lambda: cluster.publish("run", phase=Phase.STARTING, reason="0 of 2 ranks can start"),
        lambda: cluster.publish("run", phase=Phase.RUNNING, reason="2 ranks train"),
        lambda: cluster.publish("run", phase=Phase.SUSPENDED, reason="no worker"),
        lambda: cluster.publish("run", phase=Phase.SUSPENDED, reason="no worker: the image is missing"),
        lambda: cluster.publish("run", phase=Phase.FAILED, failure=FailureKind.LAUNCHER_LOST, reason="it is gone"),
    )
    assert follow(cluster, ref).ending is Ending.FINISHED
    changes = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == LOG.name]
    assert [each for each in changes if each[1] != "the launcher has started"] == [
        ("INFO", "pending: the launcher is starting"),
        ("INFO", "starting: 0 of 2 ranks can start"),
        ("INFO", "suspended: no worker: the image is missing"),
        ("ERROR", "failed: it is gone"),
    ]


def test_the_way_in_is_told_when_rank_0_is_on_another_worker_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    class Pods(FakeCluster):
        def shell_in(self, worker: WorkerStatus) -> tuple[str, ...]:
            return ("kubectl", "exec", f"{worker.name} of it")

    cluster = Pods(poll=1)
    ref = claimed(cluster)
    first = cluster.named("run").status.workers[0]
    on = {name: (replace(first, name=name, ranks=(0,)),) for name in ("a", "b", "c")}
    cluster.script(
        lambda: cluster.publish("run", workers=on["a"]),
        lambda: cluster.publish("run", phase=Phase.RUNNING, world_size=0, workers=()),
        lambda: cluster.publish("run", phase=Phase.RUNNING, world_size=1, workers=on["b"]),
        lambda: cluster.publish("run", phase=Phase.SUSPENDED, world_size=0, workers=()),
        lambda: cluster.publish("run", phase=Phase.RUNNING, world_size=1, workers=on["c"]),
        lambda: cluster.succeed("run"),
    )
    assert follow(cluster, ref).ending is Ending.FINISHED
    said = [text for text in told(caplog) if "shell" in text]
    assert said == [f"for a shell beside rank 0: kubectl exec '{name} of it'" for name in ("a", "c")]


def test_each_source_has_its_level_and_its_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)
    now = MORNING.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    cluster.script(
        lambda: cluster.write_log(
            "run",
            f"{now} INFO launcher: started: world 1 of 2 ranks",
            f"{now} DEBUG worker-0 agent: released",
            f"{now} worker-1 [1]<stderr>: UserWarning: so be it",
            f"{now} worker-1 [1]<stdout>: {now} ERROR launcher: finished: failed",
            "2026-11-21T03:00:00.000Z ERROR launcher: told five hours late",
        ),
        lambda: cluster.succeed("run"),
    )
    follow(cluster, ref)
    found = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert [each for each in found if each[0].startswith(f"{LOG.name}.")] == [  # and no housekeeping at INFO
        ("test.follow.launcher", "INFO", "started: world 1 of 2 ranks"),
        ("test.follow.rank.stderr", "WARNING", "worker-1 [1]<stderr>: UserWarning: so be it"),
        ("test.follow.rank.stdout", "INFO", f"worker-1 [1]<stdout>: {now} ERROR launcher: finished: failed"),
        ("test.follow.launcher", "ERROR", "(2026-11-21 03:00:00 UTC) told five hours late"),
    ]


def test_who_follows_next_goes_on_where_a_cancelled_one_stopped(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)

    async def cut_short() -> None:
        watching = asyncio.create_task(Follower(cluster, ref, OWNER, LOG).follow())
        await asyncio.sleep(30)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    run_virtually(cut_short())
    cluster.write_log("run", "written while nobody watched")
    cluster.succeed("run")
    follow(cluster, ref)
    lines = [line for line in told(caplog) if not line.startswith("Run run:")]
    assert lines == ["the launcher has started", "written while nobody watched"]


def test_the_deadline_is_kept_while_nothing_happens() -> None:
    cluster = FakeCluster(poll=1)
    followed = follow(cluster, claimed(cluster), MORNING + timedelta(hours=2))
    assert followed.ending is Ending.DEADLINE
    assert followed.status is not None
    assert not followed.status.phase.final


@pytest.mark.parametrize(("lease", "renewals"), [(0, 6), (6 * 3600, 6), (600, 36), (60, 360)])
def test_the_lease_is_renewed_every_ten_minutes_or_six_times_in_its_length(lease: float, renewals: int) -> None:
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster, timing=Timing(lease=lease))
    follow(cluster, ref, MORNING + timedelta(hours=1))
    assert cluster.runs["run"].lease_renewals == pytest.approx(renewals, rel=0.05, abs=1)


class NotesSeldom(FakeCluster):
    """As a cluster whose requests are dear."""

    async def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        async with aclosing(super().watch(ref, cursor, beat)) as updates:
            async for update in updates:
                yield replace(update, note=False) if isinstance(update, LogLines) else update


def test_a_watch_that_ends_notes_how_far_it_has_told(caplog: pytest.LogCaptureFixture) -> None:
    cluster = NotesSeldom(poll=1)
    ref = claimed(cluster)

    async def interrupted() -> None:
        following = asyncio.create_task(Follower(cluster, ref, OWNER, LOG).follow())
        await asyncio.sleep(60)
        assert noted() == LOG_START
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    def noted() -> str:
        return cluster.runs["run"].document.cursor

    cluster.script(lambda: cluster.write_log("run", "one", "two"))
    run_virtually(interrupted())
    assert "two" in told(caplog)
    assert noted() == str(len(cluster.runs["run"].log))


class CountsRenewals(FakeCluster):
    """How often the lease was renewed for its own sake."""

    asked = 0

    async def renew_lease(self, ref: RunRef, token: str) -> None:
        self.asked += 1
        await super().renew_lease(ref, token)


def test_a_lease_is_not_renewed_where_the_log_that_was_streamed_has_done_it() -> None:
    cluster = CountsRenewals(poll=10)
    ref = claimed(cluster)
    cluster.script(*[lambda: cluster.write_log("run", "one more")] * 400)
    follow(cluster, ref, MORNING + timedelta(hours=1))
    assert cluster.asked <= 1
    assert cluster.runs["run"].lease_renewals > 300


def test_a_watcher_that_was_replaced_stops() -> None:
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)
    cluster.script(
        lambda: run(cluster.take_log_lease(ref, OWNER)), lambda: cluster.write_log("run", "for somebody else")
    )
    assert follow(cluster, ref).ending is Ending.SUPERSEDED


@pytest.mark.parametrize("when", ["before it looks", "while nothing happens"])
def test_a_try_that_was_replaced_stops(when: str) -> None:
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)

    def replace_it() -> None:
        run(cluster.claim(RunSpec(name="run", uid="2", command=("python", "train.py")), "try 2"))

    if when == "before it looks":
        replace_it()
    else:
        cluster.script(replace_it)
    assert follow(cluster, ref, MORNING + timedelta(hours=1)).ending is Ending.SUPERSEDED


def test_a_run_that_is_replaced_or_deleted_has_vanished() -> None:
    cluster = FakeCluster(poll=1)
    ref = claimed(cluster)
    cluster.script(lambda: run(cluster.delete(ref, OWNER)))
    followed = follow(cluster, ref)
    assert followed.ending is Ending.VANISHED
    assert "does not exist" in followed.detail


class Shaky(FakeCluster):
    """Does not answer for a while."""

    def __init__(self, failures: int) -> None:
        super().__init__(poll=1)
        self.failures = failures
        self.asked_at: list[float] = []

    async def watch(self, ref: RunRef, cursor: str | None, beat: float) -> AsyncGenerator[Update, None]:
        self.asked_at.append(asyncio.get_running_loop().time())
        if len(self.asked_at) <= self.failures:
            raise ClusterUnavailable("the cluster does not answer")
        async with aclosing(super().watch(ref, cursor, beat)) as updates:
            async for update in updates:
                yield update


def test_a_cluster_that_does_not_answer_is_asked_again_ever_more_slowly() -> None:
    cluster = Shaky(failures=7)
    ref = claimed(cluster)
    cluster.fail("run", FailureKind.RANK_FAILED, "rank 0 ended with code 1")
    followed = follow(cluster, ref)
    assert followed.ending is Ending.FINISHED
    pauses = [later - earlier for earlier, later in zip(cluster.asked_at, cluster.asked_at[1:], strict=False)]
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 60, 60])


def test_the_deadline_holds_also_while_the_cluster_does_not_answer() -> None:
    cluster = Shaky(failures=1000)
    ref = claimed(cluster)
    assert follow(cluster, ref, MORNING + timedelta(minutes=5)).ending is Ending.DEADLINE
