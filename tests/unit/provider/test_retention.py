"""Runs that are over are kept as long as the deployment says, and no longer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from elastic_runtime.errors import ClusterUnavailable, InvalidSettings
from elastic_runtime.run.headline import Headline
from elastic_runtime.run.spec import RunSpec
from elastic_runtime.run.status import Phase
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.folder import deciding, remove
from elastic_training.clusters.registry import substituted
from elastic_training.clusters.types import RunRef, RunSummary
from elastic_training.concurrency.bridge import run
from elastic_training.console.command.main import main
from elastic_training.identity.ownership import Owner
from elastic_training.lifecycle import retention
from elastic_training.lifecycle.retention import MOST, Removal, Retention, configured, outdated, sweep
from tests.unit.provider.operator_bench import operator, trying

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def over(
    name: str, ago: timedelta, *, task: str = "train", index: int = -1, deployment: str = "ours", **more: Any
) -> RunSummary:
    """A run of the DAG run of its name."""
    owner = Owner("nightly", name, task, index, 1, "nonce", deployment)
    ref = RunRef(more.pop("called", owner.task.name), name)
    head = {"phase": Phase.SUCCEEDED, "finished": NOW - ago} | more
    headline = Headline(name, name, reason="done", updated=NOW - ago, news="", **head)
    return RunSummary(ref, owner.text(), NOW - 2 * ago, headline)


def gone(*runs: RunSummary, deployment: str | None = "ours", **kept: Any) -> list[str]:
    return [each.headline.run for each in outdated(runs, deployment, Retention(**kept), NOW)]


class TestWhatGoes:
    def test_is_old(self) -> None:
        runs = over("old", 31 * DAY), over("older", 40 * DAY), over("young", 29 * DAY)
        assert gone(*runs) == ["older", "old"]
        assert gone(*runs, age=None) == []

    def test_or_of_a_dag_run_beyond_the_last_ones_of_its_task(self) -> None:
        runs = [over(f"day {day}", day * DAY, index=index) for day in range(2, 7) for index in (0, 1)]
        assert gone(*runs, count=3) == ["day 6", "day 6", "day 5", "day 5"], "all map indexes of a DAG run count as one"
        assert gone(*runs, over("day 9", 9 * DAY, task="other"), count=3) == ["day 6", "day 6", "day 5", "day 5"]
        assert gone(*runs, count=None) == []

    def test_but_not_before_its_task_can_have_taken_its_result(self) -> None:
        runs = [over(f"hour {hour}", timedelta(hours=hour)) for hour in range(1, 30)]
        assert gone(*runs, count=1) == ["hour 29", "hour 28", "hour 27", "hour 26", "hour 25"]

    @pytest.mark.parametrize("phase", [each for each in Phase if not each.final])
    def test_nothing_that_is_not_over(self, phase: Phase) -> None:
        assert gone(over("old", 99 * DAY, phase=phase, finished=None)) == []

    def test_nothing_of_another_deployment_nor_of_nobody(self) -> None:
        other = over("old", 99 * DAY, deployment="theirs")
        nobodys = RunSummary(other.ref, "somebody", other.created, other.headline)
        assert gone(other, nobodys) == []
        assert gone(other, nobodys, deployment=None) == ["old"]

    def test_runs_that_are_not_called_as_their_task_is_push_none_out(self) -> None:
        honest = [over(f"day {day}", day * DAY) for day in range(2, 5)]
        forged = [over(f"forged {number}", 2 * DAY, called=f"anything-{number}") for number in range(9)]
        assert gone(*honest, *forged, count=2) == ["day 4"]
        assert gone(*honest, over("forged", 31 * DAY, called="anything"), count=3) == ["forged"]


class TestSettings:
    def test_bound_it_by_default(self) -> None:
        assert configured() == Retention(timedelta(days=30), 100)

    def test_are_airflows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__KEEP_DAYS", "0.5")
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__KEEP_RUNS", "0")
        assert configured() == Retention(timedelta(hours=12), None)
        assert configured(days=2, runs=7) == Retention(2 * DAY, 7)
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__KEEP_DAYS", "a week")
        with pytest.raises(InvalidSettings, match=r"\[elastic_training\] keep_days: 'a week'"):
            configured()


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has so many days pass."""

    def pass_days(days: int) -> None:
        now = datetime.now(UTC) + timedelta(days=days)
        for module in ("lifecycle.retention", "console.command.pruning"):
            monkeypatch.setattr(f"elastic_training.{module}.utc_now", lambda: now)

    return pass_days


def ended(fake: FakeCluster, name: str, deployment: str = "ours") -> None:
    owner = Owner("nightly", name, "train", -1, 1, "nonce", deployment)
    run(fake.claim(RunSpec(name=name, uid=f"uid-{name}", command=("python",)), owner.text()))
    fake.succeed(name)


class TestAtTheEndOfATask:
    def test_what_is_outdated_goes_and_the_log_says_so(self, late: Callable[[int], None]) -> None:
        fake, log = FakeCluster(), Mock()
        for name, whose in (("a", "ours"), ("b", "ours"), ("c", "theirs")):
            ended(fake, name, whose)
        late(29)
        run(sweep(fake, "ours", log))
        assert (set(fake.runs), log.mock_calls) == ({"a", "b", "c"}, [])
        late(31)
        run(sweep(fake, "ours", log))
        assert set(fake.runs) == {"c"}
        log.info.assert_called_once()
        assert "keep_days" in log.info.call_args.args[0]
        assert log.info.call_args.args[1:] == (2, "a, b")

    def test_a_few_at_a_time(self, late: Callable[[int], None]) -> None:
        fake = FakeCluster()
        for index in range(MOST + 3):
            ended(fake, f"run-{index}")
        late(31)
        run(sweep(fake, "ours", Mock()))
        assert len(fake.runs) == 3

    @pytest.mark.parametrize("error", [ClusterUnavailable("away"), PermissionError("spec.json")], ids=repr)
    def test_a_place_that_cannot_be_listed_is_a_warning(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake, log = FakeCluster(), Mock()
        monkeypatch.setattr(fake, "list", AsyncMock(side_effect=error))
        run(sweep(fake, "ours", log))
        assert log.warning.call_args.args[1] == str(error)

    def test_a_living_run_of_which_a_forged_document_says_that_it_is_over_stays(
        self, late: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake = FakeCluster()
        ended(fake, "a")
        [over] = run(fake.list())
        owner = Owner("nightly", "b", "train", -1, 1, "nonce", "ours").text()
        living = run(fake.claim(RunSpec(name="b", uid="uid-b", command=("python",)), owner)).ref
        forged = RunSummary(living, owner, over.created, over.headline)

        async def listed() -> list[RunSummary]:
            return [forged, over]

        monkeypatch.setattr(fake, "list", listed)
        late(31)
        run(sweep(fake, "ours", Mock()))
        assert set(fake.runs) == {"b"}
        assert not run(fake.status(living)).phase.final

    def test_what_was_not_there_is_not_said_to_be_removed_and_takes_no_turn(
        self, late: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake, log = FakeCluster(), Mock()
        ended(fake, "a")
        [over] = run(fake.list())
        forged = [RunSummary(RunRef("a", f"no uid {n}"), over.owner, over.created, over.headline) for n in range(MOST)]

        async def listed() -> list[RunSummary]:
            return [*forged, over]

        monkeypatch.setattr(fake, "list", listed)
        late(31)
        run(sweep(fake, "ours", log))
        assert not fake.runs
        removed, strays = log.info.call_args_list
        assert removed.args[1:] == (1, "a")
        assert "not there" in strays.args[0]
        assert strays.args[1] == MOST

    def test_a_task_does_it(self, fake: FakeCluster, late: Callable[[int], None]) -> None:
        training = operator()
        ti = trying()
        owner = training._owner(ti)
        ended(fake, "long-ago", owner.deployment)
        late(31)
        run(fake.claim(RunSpec(name="now", uid="now", command=("python",)), owner.text()))
        fake.succeed("now")
        ref = run(fake.find("now"))
        training.clear_up(fake, ref, owner.text(), run(fake.status(ref)))
        assert "long-ago" not in fake.runs


class TestCommand:
    @pytest.fixture
    def moon(self, late: Callable[[int], None]) -> Any:
        with substituted("local", fake := FakeCluster()):
            for name, whose in (("a", "ours"), ("b", "theirs")):
                ended(fake, name, whose)
            late(10)
            yield fake

    @pytest.fixture(autouse=True)
    def deployment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__DEPLOYMENT", "ours")

    def test_lists_and_removes(self, moon: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prune"]) == 0
        assert capsys.readouterr().out == "nothing to remove\n"
        assert main(["prune", "--days", "9", "--dry-run"]) == 0
        head, line = capsys.readouterr().out.splitlines()
        assert head.split() == ["NAME", "PLACE", "PHASE", "FINISHED", "TASK"]
        assert line.startswith("a ")
        assert set(moon.runs) == {"a", "b"}
        assert main(["prune", "--days", "9", "--yes"]) == 0
        assert capsys.readouterr().out.endswith("a in local is removed\n")
        assert set(moon.runs) == {"b"}
        assert main(["prune", "--days", "9", "--yes", "--all-deployments"]) == 0
        assert not moon.runs

    def test_asks_at_a_terminal(
        self, moon: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: False))
        assert main(["prune", "--days", "9"]) == 2
        assert "write --yes" in capsys.readouterr().err
        for word, left in (("no", {"a", "b"}), ("yes", {"b"})):
            monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True, readline=lambda _, word=word: f"{word}\n"))
            main(["prune", "--days", "9"])
            assert set(moon.runs) == left

    def test_a_place_that_does_not_answer_is_told(self, moon: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prune", "--days", "9", "--yes", "--place", "local", "--place", "no/Place"]) == 1
        assert "no/Place: " in capsys.readouterr().err
        assert set(moon.runs) == {"b"}

    @pytest.mark.parametrize("words", [("--days", "0"), ("--days", "x"), ("--runs", "0")])
    def test_what_is_no_number_is_refused(self, words: tuple[str, str]) -> None:
        with pytest.raises(SystemExit):
            main(["prune", *words])


class TestLocks:
    """Of runs of this machine: the lock of a name goes with its run, and still lets one in at a time."""

    def test_none_stays(self, tmp_path: Path) -> None:
        with deciding(tmp_path, "run"):
            (tmp_path / "run").mkdir()
            remove(tmp_path, "run")
        assert list(tmp_path.iterdir()) == []

    def test_who_waited_for_one_that_was_removed_holds_the_next(self, tmp_path: Path) -> None:
        count, most, lock = 0, 0, threading.Lock()

        def decide() -> None:
            nonlocal count, most
            for _ in range(50):
                with deciding(tmp_path, "run"):
                    with lock:
                        count += 1
                        most = max(most, count)
                    with lock:
                        count -= 1
                    remove(tmp_path, "run")

        threads = [threading.Thread(target=decide) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert most == 1


def test_a_run_that_somebody_has_taken_over_stays() -> None:
    fake = FakeCluster()
    ended(fake, "a")
    summary = run(fake.list())[0]
    stale = RunSummary(summary.ref, "another owner", summary.created, summary.headline)
    assert run(retention.remove(fake, stale)) is Removal.STAYS
    assert "a" in fake.runs
