"""A task's rendered fields and a run's owner say anything: what follows for the page of all others is nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from elastic_runtime.checkpoint.store import open_store, validate_store_uri
from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_training import archive
from elastic_training.archive.outages import Outages
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.types import RunRef
from elastic_training.concurrency.bridge import run
from elastic_training.console import asking, page, runs
from elastic_training.console.asking import Deadline, Slots
from elastic_training.console.late import Ended, LateKeeping
from elastic_training.console.runs import Spending, TaskFields
from elastic_training.cost.price_book import cost_of
from elastic_training.identity.naming import TaskIdentity
from elastic_training.identity.ownership import Owner, read_owner
from tests.unit.provider.operator_bench import NAME, operator, run_in, trying
from tests.unit.provider.page_bench import API, IDS, PREFIX, Rendered, rendering, seeing

OWNER = Owner("nightly", "r", "train", -1, 1, "nonce")


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str, fake: FakeCluster) -> Rendered:
    """Fields of a task of which there is a run."""
    found = rendering(monkeypatch, tmp_path, store)
    operator(checkpoint_uri=store, wait_for_completion=False).execute({"ti": trying()})
    return found


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that the process may not enter, and one whose server is silent."""
    original = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).startswith("/secured/"):
            raise PermissionError(13, "Permission denied", str(path))
        if str(path).startswith("/silent/"):
            time.sleep(20)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)


class TestPriceBook:
    @pytest.mark.usefixtures("forbidden")
    @pytest.mark.parametrize("book", [f"/tmp/{'a' * 300}", "/secured/prices.toml", "/tmp/a\0b", "/tmp", "/dev/zero"])
    def test_that_cannot_be_read_fails_nothing(
        self, rendered: Rendered, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, book: str
    ) -> None:
        next(iter(rendered.values()))["price_book"] = book
        client = seeing(monkeypatch)
        for path, query in ((f"{API}/runs", None), (f"{API}/task", IDS), (f"{PREFIX}/report", IDS)):
            assert client.get(path, params=query).status_code == 200
        told: list[str] = []
        log = type("Log", (), {"warning": staticmethod(lambda message, *args: told.append(message % args))})
        assert cost_of(run_in(fake).status, book, log) is None
        assert len(told) == 1

    @pytest.mark.usefixtures("forbidden")
    @pytest.mark.timeout(60)
    def test_that_is_silent_stalls_no_page(self, rendered: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
        next(iter(rendered.values()))["price_book"] = "/silent/prices.toml"
        client = seeing(monkeypatch)
        began = monotonic()
        for _ in range(3):
            answer = client.get(f"{API}/runs")
            assert answer.status_code == 200
            assert [each["cost"] for each in answer.json()["runs"]] == [None]
            assert client.get(f"{API}/task", params=IDS).status_code == 200
        assert monotonic() - began < 15  # And not 20 for each of six.

    def test_is_not_read_under_the_lock_of_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entered, leave = threading.Event(), threading.Event()

        def read(name: str) -> None:
            if name == "silent":
                entered.set()
                leave.wait(20)

        monkeypatch.setattr(runs, "read_book", read)
        spending = Spending()
        held = threading.Thread(target=spending.cost, args=((), "silent", Deadline(20)))
        held.start()
        assert entered.wait(20)
        began = monotonic()
        assert spending.cost((), "quick", Deadline(20)) is None
        assert monotonic() - began < 10
        leave.set()
        held.join()


URIS = ("\0", "\n", "\x7f", "\x85", "%00", "%0d%0aHost:%20evil", "%2500", "\ud800")


class TestCheckpointUri:
    @pytest.mark.parametrize("part", URIS)
    @pytest.mark.parametrize("base", ["s3://bucket", "gs://bucket", "az://container", "file:///srv"])
    def test_with_a_control_character_is_refused(self, base: str, part: str) -> None:
        for use in (validate_store_uri, open_store):
            with pytest.raises(InvalidSettings) as refused:
                use(f"{base}/a{part}b")
            assert str(refused.value).isprintable()

    @pytest.mark.parametrize("part", URIS)
    def test_stops_neither_the_page_nor_the_keeping_of_others(
        self, rendered: Rendered, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, part: str
    ) -> None:
        fake.succeed(NAME)
        fields = dict(next(iter(rendered.values())))
        evil = {**fields, "checkpoint_uri": f"file:///tmp/a{part}b"}
        rendered[("evil", "r", "train", -1)] = evil
        asked = {"dag_id": "evil", "run_id": "r", "task_id": "train"}
        assert seeing(monkeypatch).get(f"{API}/task", params=asked).status_code == 200
        self.keep(fake, evil, fields)

    def test_nor_does_any_other_error(
        self, rendered: Rendered, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.succeed(NAME)
        fields = dict(next(iter(rendered.values())))
        is_kept = LateKeeping._is_kept

        def broken(each: Ended) -> bool:
            if each.owner.dag_id == "evil":
                raise SystemError("broken")
            return is_kept(each)

        monkeypatch.setattr(LateKeeping, "_is_kept", staticmethod(broken))
        self.keep(fake, fields, fields)

    @staticmethod
    def keep(fake: FakeCluster, evil: dict[str, Any], fields: dict[str, Any]) -> None:
        owner = read_owner(run_in(fake).document.owner)
        assert owner is not None
        bad = Ended("local", RunRef("evil", "u"), OWNER_OF_EVIL, None, datetime.now(UTC), evil)
        good = Ended("local", run_in(fake).document.ref, owner, None, datetime.now(UTC), fields)
        LateKeeping().keep([bad, good])
        assert archive.look_up(owner.task)[0] is not None


OWNER_OF_EVIL = Owner("evil", "r", "train", -1, 1, "nonce")


class TestOwner:
    @pytest.mark.parametrize(
        "forged",
        [
            {"map_index": 2**70},
            {"map_index": 2**31},
            {"map_index": -2},
            {"try_number": 2**63},
            {"try_number": -1},
            {"run_id": "r\0"},
            {"dag_id": "d" * 2000},
        ],
    )
    def test_with_ids_that_no_database_takes_is_none(self, forged: dict[str, Any]) -> None:
        ids = {name: getattr(OWNER, name) for name in Owner.__slots__}
        assert read_owner(OWNER.text()) == OWNER
        assert read_owner(Owner(**ids | forged).text()) is None

    def test_that_the_database_refuses_takes_nothing_from_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def told(ids: Collection[Any]) -> dict[Any, dict[str, Any]]:
            if any(each[0] == "evil" for each in ids):
                raise ValueError("a parameter")
            return {each: {"cluster": each[1]} for each in ids}

        monkeypatch.setattr(runs, "rendered_of_tasks", told)
        good = [Owner("nightly", f"r{number}", "train", -1, 1, "nonce") for number in range(20)]
        found = TaskFields().of([*good, OWNER_OF_EVIL])
        assert [found[each]["cluster"] for each in good] == [each.run_id for each in good]
        assert found[OWNER_OF_EVIL] == {}


class TestOutages:
    def test_of_one_dags_task_are_not_those_of_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names: list[str] = []

        def ask(name: str, _: Any) -> Any:
            names.append(name)
            raise ClusterUnavailable("silent")

        for dag_id, run_id, index in (("a", "r", -1), ("b", "r", -1), ("a", "s", -1), ("a", "r", 3)):
            archive.look_up(TaskIdentity(dag_id, run_id, "train", index), None, ask)
        assert len(set(names)) == 4

    def test_of_a_store_are_no_places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asking, "OUTAGES", known := Outages())
        known._note("the store s3://bucket", "the store s3://bucket has failed")
        with pytest.raises(InvalidSettings):
            page.find("the store s3://bucket", OWNER.task, Deadline())
        assert "the store s3://bucket" in known._known


class TestThreads:
    @pytest.fixture(autouse=True)
    def silent(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """A secrets backend that does not answer."""
        self.asked: list[str] = []
        leave = threading.Event()

        def own_name(place: str) -> str:
            self.asked.append(place)
            leave.wait(60)
            raise InvalidSettings("cluster", "there is none", "Write another")

        monkeypatch.setattr(page, "own_name", own_name)
        monkeypatch.setattr(page, "PLACE", 0.5)
        monkeypatch.setattr(asking, "SLOTS", Slots(6))
        monkeypatch.setattr(asking, "OUTAGES", Outages())
        yield leave
        leave.set()

    def test_are_as_many_as_slots_however_many_places_a_dag_run_names(self) -> None:
        rows = [(TaskIdentity("d", "r", "t", index), f"kube_{index}") for index in range(100)]
        run(asyncio.sleep(0))  # The loop has a thread, too.
        before = threading.active_count()
        for _ in range(3):
            answers = run(page._looked_at(rows))
            assert [each["phase"] for each in answers] == [None] * 100
        assert len(self.asked) <= 6
        assert threading.active_count() <= before + 6

    def test_each_place_is_asked_for_once_a_request(self) -> None:
        rows = [(TaskIdentity("d", "r", "t", index), "kube") for index in range(100)]
        run(page._looked_at(rows))
        assert self.asked == ["kube"]

    def test_a_slot_is_held_until_its_call_returns(self, silent: threading.Event) -> None:
        slots, began = Slots(1), threading.Event()

        def call() -> str:
            began.set()
            silent.wait(60)
            return "done"

        with pytest.raises(TimeoutError):
            slots.within(0.1, call)
        with pytest.raises(TimeoutError):
            slots.within(0.1, call)
        silent.set()
        assert slots.within(20, lambda: "next") == "next"
        for _ in range(3):  # An error of the call's own gives it back once.
            with pytest.raises(RuntimeError, match="its own"):
                slots.within(20, self.fails)
        assert slots.within(20, lambda: "next") == "next"

    @staticmethod
    def fails() -> None:
        raise RuntimeError("its own")
