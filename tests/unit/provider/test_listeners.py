"""Who follows a run tells its listeners, whatever they do; and the user's callbacks are such."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase, Status
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.following.follow import Ending, Followed, Follower
from elastic_training.listeners import listeners_of
from elastic_training.listeners.audience import Audience, Listener
from elastic_training.listeners.callbacks import (
    CallbackListener,
    TrainingCallback,
    check_callbacks,
    load_callback,
    path_of,
)
from elastic_training.listeners.changes import Change, changes
from tests.unit.provider.operator_bench import deferred, operator, run_in, trying
from tests.unit.provider.virtual_time import run_virtually

LOG = logging.getLogger("test.listeners")
OWNER = "try 1"


class Notes:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.news: list[str] = []
        self.phases: list[str] = []

    async def handle(self, status: Status | None, news: Sequence[Change]) -> None:
        assert status is not None
        self.phases.append(status.phase)
        self.news += [each.kind.value for each in news]


class Raises(Notes):
    async def handle(self, status: Status | None, news: Sequence[Change]) -> None:
        raise ValueError("a listener's own trouble")


class Hangs(Notes):
    async def handle(self, status: Status | None, news: Sequence[Change]) -> None:
        await asyncio.sleep(10**6)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(poll=1)


@pytest.fixture
def ref(cluster: FakeCluster) -> RunRef:
    return run(cluster.claim(RunSpec(name="run", uid="1", command=("python", "train.py")), OWNER)).ref


def follow(cluster: FakeCluster, ref: RunRef, *listeners: Listener) -> Followed:
    return run_virtually(Follower(cluster, ref, OWNER, LOG, listeners=listeners).follow())


def trains_and_ends(cluster: FakeCluster) -> None:
    cluster.script(
        lambda: cluster.publish("run", step=5),
        lambda: cluster.train("run", 3),
        lambda: cluster.succeed("run"),
    )


def test_a_listener_hears_each_change_once_and_the_last_status(cluster: FakeCluster, ref: RunRef) -> None:
    trains_and_ends(cluster)
    notes = Notes()
    follow(cluster, ref, notes)
    assert notes.news == ["first_step", "resized", "finished"]
    assert notes.phases[-1] == Phase.SUCCEEDED


def test_the_next_follower_tells_only_what_is_new(cluster: FakeCluster, ref: RunRef) -> None:
    async def cut_short() -> None:
        watching = asyncio.create_task(Follower(cluster, ref, OWNER, LOG, listeners=[first]).follow())
        await asyncio.sleep(30)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    first, second = Notes(), Notes()
    cluster.publish("run", step=5)
    run_virtually(cut_short())
    cluster.succeed("run")
    follow(cluster, ref, second)
    assert (first.news, second.news) == (["first_step"], ["finished"])


def test_a_new_try_that_adopts_the_run_does_not_hear_it_all_again(cluster: FakeCluster, ref: RunRef) -> None:
    async def cut_short() -> None:
        watching = asyncio.create_task(Follower(cluster, ref, OWNER, LOG, listeners=[Notes()]).follow())
        await asyncio.sleep(30)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    cluster.publish("run", step=5)
    run_virtually(cut_short())
    run(cluster.claim(RunSpec(name="run", uid="2", command=("python", "train.py")), "try 2"))
    cluster.succeed("run")
    notes = Notes()
    run_virtually(Follower(cluster, ref, "try 2", LOG, listeners=[notes]).follow())
    assert notes.news == ["finished"]


@pytest.mark.parametrize("bad", [Raises, Hangs])
def test_a_listener_that_fails_or_hangs_costs_the_others_and_the_training_nothing(
    cluster: FakeCluster, ref: RunRef, bad: Callable[[], Notes], caplog: pytest.LogCaptureFixture
) -> None:
    async def timed() -> tuple[Followed, float]:
        followed = await Follower(cluster, ref, OWNER, LOG, listeners=[bad(), notes]).follow()
        return followed, asyncio.get_running_loop().time()

    trains_and_ends(cluster)
    notes = Notes()
    followed, seconds = run_virtually(timed())
    assert followed.ending is Ending.FINISHED
    assert seconds < 70
    assert bad.__name__ in caplog.text
    if bad is Raises:
        assert notes.news == ["first_step", "resized", "finished"]


def test_who_has_no_listeners_notes_nothing_of_them(cluster: FakeCluster, ref: RunRef) -> None:
    cluster.script(lambda: cluster.succeed("run"))
    follow(cluster, ref)
    assert cluster.runs["run"].document.told == ""


class Recorder(TrainingCallback):
    """What was called, and with what."""

    calls: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    @staticmethod
    def created(**kwargs: Any) -> None:
        Recorder.calls.append(("created", kwargs))

    @staticmethod
    def first_step(**kwargs: Any) -> None:
        Recorder.calls.append(("first_step", kwargs))

    def finished(self, **kwargs: Any) -> None:  # type: ignore[override]  # as users may write them
        Recorder.calls.append(("finished", kwargs))


class Broken(TrainingCallback):
    """Raises in all that it overrides."""

    @staticmethod
    def created(**kwargs: Any) -> None:
        raise ValueError("a user's bug")

    @staticmethod
    def finished(**kwargs: Any) -> None:
        raise ValueError("a user's bug")


@pytest.fixture
def calls() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    yield Recorder.calls
    Recorder.calls.clear()


def test_callbacks_of_a_task_that_waits_itself(fake: FakeCluster, calls: list[tuple[str, dict[str, Any]]]) -> None:
    training = operator(callbacks=[Recorder, Broken])
    fake.script(lambda: fake.publish(next(iter(fake.runs)), step=3), lambda: fake.succeed(next(iter(fake.runs))))
    assert training.execute({"ti": trying()})["phase"] == "succeeded"
    assert [name for name, _ in calls] == ["created", "first_step", "finished"]
    created, ended = calls[0][1], calls[-1][1]
    assert (created["task"].task_id, created["status"], created["change"].kind.value) == ("train", None, "created")
    assert ended["status"].phase is Phase.SUCCEEDED


def test_callbacks_of_a_deferred_task_travel_as_paths(fake: FakeCluster) -> None:
    trigger = deferred(operator(callbacks=Recorder, deferrable=True), trying()).trigger
    assert trigger.serialize()[1]["callbacks"] == [f"{__name__}.Recorder"]
    assert run_in(fake).spec.name


def test_a_trigger_calls_them(fake: FakeCluster, calls: list[tuple[str, dict[str, Any]]]) -> None:
    async def events(trigger: Any) -> list[Any]:
        return [event async for event in trigger.run()]

    trigger = deferred(operator(callbacks=path_of(Recorder), deferrable=True), trying()).trigger
    calls.clear()
    fake.script(lambda: fake.succeed(next(iter(fake.runs))))
    assert len(run_virtually(events(trigger))) == 1
    assert [name for name, _ in calls] == ["finished"]


class TestWhatIsNoCallback:
    @pytest.mark.parametrize("given", ["plain", "no/path.x", 3, dict, [3]])
    def test_is_refused_at_parse(self, given: object) -> None:
        with pytest.raises(InvalidSettings, match="callbacks"):
            check_callbacks(given, deferrable=False)

    def test_nor_what_no_triggerer_can_import(self) -> None:
        class Local(TrainingCallback):
            pass

        assert check_callbacks(Local, deferrable=False) == (Local,)
        with pytest.raises(InvalidSettings, match="DAG file"):
            check_callbacks(Local, deferrable=True)

    @pytest.mark.parametrize("path", ["no_such_package.Tell", "json.no_such", "json.JSONDecoder"])
    def test_fails_where_it_is_imported_and_no_training_with_it(self, path: str) -> None:
        with pytest.raises(InvalidSettings, match="callbacks"):
            load_callback(path)


def test_a_callback_that_does_not_return_is_called_no_more_and_holds_nothing_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered, released = threading.Event(), threading.Event()

    class Sleeps(TrainingCallback):
        @staticmethod
        def finished(**kwargs: Any) -> None:
            entered.set()
            released.wait(30)

    async def tell() -> None:
        audience = Audience([CallbackListener(Sleeps, OWNER)], LOG, max_wait=0.1)
        over = Status("run", "1", Phase.FAILED, "over", datetime(2026, 11, 22, tzinfo=UTC))
        await audience.tell(over, changes(None, over))
        await audience.tell(over, changes(None, over))

    asyncio.run(tell())
    assert entered.wait(10)
    assert "has not returned" in caplog.text
    assert "still handling an earlier event" in caplog.text
    released.set()
    for thread in threading.enumerate():
        if thread.name == "elastic-training listener":
            thread.join(5)


def test_nobody_listens_where_there_are_no_metrics_and_no_callbacks() -> None:
    assert listeners_of(OWNER, ()) == ()
