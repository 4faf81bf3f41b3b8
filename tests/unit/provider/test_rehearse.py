"""``elastic-training rehearse``: a task of a DAG file on past markets."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import NoCredentialsError
from botocore.stub import Stubber

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.run.status import Phase, Series, Status, World
from elastic_training.archive.keeping import keep
from elastic_training.archive.where import of_this_machine
from elastic_training.console.command.main import main
from elastic_training.cost.spot_markets import markets
from elastic_training.cost.spot_prices import Change
from elastic_training.identity.deployment import deployment
from elastic_training.identity.ownership import Owner
from tests.documented import ROOT, blocks

LOG = logging.getLogger(__name__)
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
WORDS = ("--market", "g4dn", "--step-seconds", "1", "--runs", "2")
FILE = """
from datetime import timedelta
from airflow.providers.common.compat.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.settings import Checkpoints, Deadline, Recovery, Workers
from elastic_training.settings.recovery import Restart

print("a file may print")
with DAG("nightly", schedule=None, params={"most": 4}):
    common = {"command": ["python", "train.py"], "checkpoint_uri": "file:///tmp/checkpoints"}
    ElasticTorchOperator(
        task_id="train",
        workers=Workers(min=1, start=2, max=4, machine="g4dn.xlarge"),
        recovery=Recovery(max_wait=timedelta(minutes=5), notices="none"),
        checkpoints=Checkpoints(every=90),
        **common,
    )
    ElasticTorchOperator(task_id="asked", workers=Workers(min=1, start="{{ params.most }}"), **common)
    ElasticTorchOperator.partial(task_id="mapped", recovery=Recovery(mode="fixed"), **common).expand(
        workers=[{"min": 1}, {"min": 2}]
    )
    ElasticTorchOperator(task_id="bare", command=["python", "train.py"], workers=Workers(min=2))
    common["deadline"] = Deadline("{{ ds }}")
    ElasticTorchOperator(task_id="restarted", workers=Workers(min=2), restart=Restart(grace=5), **common)
    ElasticTorchOperator.partial(task_id="any", command=["python", "train.py"]).expand_kwargs(
        [{"workers": {"min": 1}, "checkpoint_uri": "file:///tmp/checkpoints"}]
    )
    EmptyOperator(task_id="other")
with DAG("weekly", schedule=None):
    EmptyOperator(task_id="other")
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "dag.py").write_text(FILE)
    return str(tmp_path / "dag.py")


@pytest.fixture
def steady(tmp_path: Path) -> str:
    """Four machines for a day, of which one goes after six hours and comes again after an hour."""
    path = tmp_path / "steady.csv"
    hour = 3600_000
    adds = "".join(f"0,add,m{number}\n" for number in range(4))
    path.write_text(f"{adds}{6 * hour},remove,m0\n{7 * hour},add,m0\n{24 * hour},remove,m1\n")
    return str(path)


def rehearsed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["rehearse", *words, "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["rehearse", *words]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.splitlines()[-1]


class TestWithoutAFile:
    def test_the_figures_of_a_steady_market(self, capsys: pytest.CaptureFixture[str], steady: str) -> None:
        made = rehearsed(capsys, "--min", "1", "--start", "2", "--steps", "3600", "--trace", steady, *WORDS)
        # Machine, worker and session take 30, 5 and 5 s; an hour of steps; 60 copies of half a second.
        assert made["figures"]["seconds"]["median"] == pytest.approx(3640 + 30, abs=2)
        assert made["on_demand"] == {"seconds": 3640.0, "cost": pytest.approx(3605 * 2 / 3600 * 0.658)}
        assert made["figures"]["mean_cost"] == pytest.approx(3636 * 2 / 3600 * 0.2475, abs=0.002)
        assert (made["figures"]["runs"], made["figures"]["finished"]) == (2, 2)
        best = made["alternatives"][0]
        assert (best["title"], best["sizes"]) == ("ends sooner, and costs no more", {"minimum": 1, "wanted": 4})

    def test_a_table_for_people(self, capsys: pytest.CaptureFixture[str], steady: str) -> None:
        words = ("--min", "1", "--start", "2", "--max", "4", "--node-hours", "2", "--trace", steady, *WORDS)
        assert main(["rehearse", *words]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("rehearsal of a task: 3600 steps, 2 h 00 min of one worker\n")
        assert "min=1, start=2, max=4" in printed
        assert "notices 120 s ahead" in printed
        assert "aws/g4dn.xlarge: $0.2475 spot, $0.658 on demand" in printed
        (sizes,) = (line for line in printed.splitlines() if line.startswith("workers that train, by"))
        assert [float(each) for each in sizes.partition(": ")[2].split()] == pytest.approx([2.0] * 10, abs=0.3)

    def test_made_up_markets_are_called_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        made = rehearsed(capsys, "--start", "1", "--steps", "60", *WORDS)
        assert set(made["markets"]) == {"calm", "flapping", "fleet_loss", "stormy"}
        assert any("made up, and none was recorded" in note for note in made["notes"])

    def test_airflow_is_not_imported(self, steady: str) -> None:
        program = (
            "import sys\nfrom elastic_training.console.command.main import main\n"
            "status = main(sys.argv[1:])\nassert 'airflow' not in sys.modules\nsys.exit(status)"
        )
        words = ["rehearse", "--start", "1", "--steps", "60", "--trace", steady, *WORDS]
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "rehearsal of a task" in done.stdout

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("--steps", "9", *WORDS), "--start: the number of workers is not known"),
            (("--start", "1", *WORDS), "--steps: how much is to be trained is not known"),
            (("--start", "1", "--steps", "9"), "--market: the machine type is not known"),
            (("--start", "1", "--steps", "9", "--market", "g9"), "--market: g9 is not in the price book"),
            (("--start", "1", "--steps", "9", "--market", "g6"), "--market: g6 may be aws/g6.xlarge, aws/g6e.2xlarge"),
            (("--start", "1", "--steps", "9", "--trace", "none.csv", *WORDS), "none.csv: cannot be read as a trace"),
            (("--start", "1", "--steps", "9", "--cost", "x=1", *WORDS), "costs.x: there is no such cost"),
            (("--start", "1", "--steps", "9", "--efficiency", "0.2", *WORDS), "efficiency: 0.2 is not an efficiency"),
            (("--min", "3", "--start", "2", "--steps", "9", *WORDS), "workers.min: 3 is more than workers.start"),
            (("--start", "1", "--steps", "99999999", *WORDS), "--days: the work takes 1157.4 days"),
            (("--start", "1", "--steps", "9", "--task", "train", *WORDS), "--task: a DAG file and a task belong"),
            (("--start", "1", "--steps", "9", "--prices", "none.toml", *WORDS), "none.toml: cannot be read as a price"),
            (("--start", "1", "--steps", "9", "--market", "gcp/g2", "--ec2", "x"), "--ec2: gcp/g2-standard-4 is no"),
        ],
    )
    def test_refusals(self, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str) -> None:
        assert says in refused(capsys, *words)

    @pytest.mark.parametrize("words", [("--steps", "0"), ("--days", "nan"), ("--runs", "1e3"), ("--cost", "grow")])
    def test_words_that_are_none(self, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["rehearse", *words])
        assert ended.value.code == 2
        assert "is not a number of" in capsys.readouterr().err


class TestAFile:
    def test_the_tasks_own_settings(self, capsys: pytest.CaptureFixture[str], file: str, steady: str) -> None:
        words = (file, "--task", "train", "--steps", "60", "--trace", steady, "--step-seconds", "1", "--runs", "1")
        assert main(["rehearse", *words]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith("rehearsal of nightly.train: 60 steps")
        assert "elastic, max_wait 5 min, a checkpoint every 90 s, no notices\n" in printed
        assert "min=1, start=2, max=4" in printed
        assert "aws/g4dn.xlarge" in printed  # by Workers(machine=…)

    def test_the_documentations_command(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steady: str
    ) -> None:
        (block,) = (each for each in blocks(ROOT / "docs" / "cost.md", "sh") if "rehearse" in each)
        program, command, file, *words = block.split()
        assert (program, command) == ("elastic-training", "rehearse")
        Path(steady).rename(tmp_path / "fleet.csv")
        monkeypatch.chdir(tmp_path)
        made = rehearsed(capsys, str(ROOT / file), *words)
        assert (list(made["markets"]), made["figures"]["finished"]) == (["fleet"], 5)

    def test_options_go_before_them(self, capsys: pytest.CaptureFixture[str], file: str, steady: str) -> None:
        words = ("--start", "3", "--checkpoint-every", "0", "--notice", "30", "--max-wait", "60", "--mode", "fixed")
        assert main(["rehearse", file, "--task", "train", "--steps", "60", "--trace", steady, *words, *WORDS]) == 0
        printed = capsys.readouterr().out
        assert "fixed, max_wait 60 s, no checkpoints, notices 30 s ahead\n" in printed
        assert "min=1, start=3, max=4" in printed

    def test_what_is_not_known_has_to_be_said(self, capsys: pytest.CaptureFixture[str], file: str, steady: str) -> None:
        words = ("--steps", "60", "--trace", steady, *WORDS)
        said = refused(capsys, file, "--task", "asked", *words)
        assert "workers.start is a template" in said
        assert said.endswith("Write --start … --max …")
        assert rehearsed(capsys, file, "--task", "asked", *words, "--start", "3", "--max", "4")["settings"]["max"] == 4
        said = refused(capsys, file, "--task", "mapped", *words)
        assert "workers.min is mapped; workers.start is mapped; workers.max is mapped" in said
        made = rehearsed(capsys, file, "--task", "mapped", *words, "--min", "1", "--start", "2", "--max", "2")
        assert made["settings"] == {"min": 1, "start": 2, "max": 2}

    def test_a_local_task_without_a_store_has_no_checkpoints(
        self, capsys: pytest.CaptureFixture[str], file: str, steady: str
    ) -> None:
        assert main(["rehearse", file, "--task", "bare", "--steps", "60", "--trace", steady, *WORDS]) == 0
        assert "no checkpoints" in capsys.readouterr().out

    def test_a_restart_goes_back_to_a_checkpoint(
        self, capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path
    ) -> None:
        (tmp_path / "one.csv").write_text("0,add,a\n0,add,b\n900000,remove,b\n1000000,add,b\n90000000,remove,a\n")
        words = ("--steps", "1800", "--trace", str(tmp_path / "one.csv"), *WORDS, "--runs", "1")
        kept, lost = (rehearsed(capsys, file, "--task", task, *words) for task in ("train", "restarted"))
        assert kept["figures"]["lost_steps"] == 0 < lost["figures"]["lost_steps"]
        assert any(note.startswith("left out: the checkpoint at the script's signal") for note in lost["notes"])
        assert "left out: deadline; the workers of start are asked for all the time" in lost["notes"]

    def test_whatever_is_mapped_is_asked_for(self, capsys: pytest.CaptureFixture[str], file: str, steady: str) -> None:
        words = ("--steps", "60", "--trace", steady, *WORDS)
        said = refused(capsys, file, "--task", "any", *words)
        names = (
            "min",
            "start",
            "max",
            "mode",
            "max-wait",
            "start-timeout",
            "reset-limit",
            "checkpoint-every",
            "notice",
        )
        assert said.endswith(f"Write {' '.join(f'--{name} …' for name in names)}")
        more = ("--mode", "elastic", "--max-wait", "9", "--start-timeout", "90", "--reset-limit", "9", "--notice", "0")
        sizes = ("--min", "1", "--start", "2", "--max", "2", "--checkpoint-every", "60")
        made = rehearsed(capsys, file, "--task", "any", *words, *more, *sizes)
        assert any(note.startswith("left out: restart, which is mapped") for note in made["notes"])

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (
                ("--task", "none"),
                "--task: the file has no task none. It has any, asked, bare, mapped, other and others",
            ),
            (("--task", "other"), "--dag: nightly, weekly have a task other"),
            (("--task", "other", "--dag", "weekly"), "--task: other is not a training"),
            (("--task", "train", "--dag", "daily"), "--dag: the file has no DAG daily. It has nightly, weekly"),
        ],
    )
    def test_a_task_that_is_none(
        self, capsys: pytest.CaptureFixture[str], file: str, words: tuple[str, ...], says: str
    ) -> None:
        assert says in refused(capsys, file, *words, "--steps", "9")

    def test_a_file_that_is_none(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        assert "DAG: " in refused(capsys, str(tmp_path / "none.py"), "--task", "train", "--steps", "9")
        (tmp_path / "wrong.py").write_text("import no_such_module_of_anybody")
        said = refused(capsys, str(tmp_path / "wrong.py"), "--task", "train", "--steps", "9")
        assert "No module named 'no_such_module_of_anybody'" in said
        (tmp_path / "empty.py").write_text("")
        assert "has no DAG" in refused(capsys, str(tmp_path / "empty.py"), "--task", "train", "--steps", "9")


def status(run: str, phase: Phase, step: int, rates: dict[int, float]) -> Status:
    """As of a run with worlds of these sizes, one after the other for a minute, with a measurement each ten seconds."""
    points = [
        (NOON + timedelta(minutes=index, seconds=10 * each + 5), rate)
        for index, rate in enumerate(rates.values())
        for each in range(6)
    ]
    return Status(
        run=run,
        uid=run,
        phase=phase,
        reason="",
        updated=NOON,
        finished=NOON,
        step=step,
        history=tuple(World(NOON + timedelta(minutes=index), size, 1) for index, size in enumerate(rates)),
        throughput=Series(
            1, tuple(range(len(points))), tuple(at.timestamp() for at, _ in points), tuple(rate for _, rate in points)
        ),
    )


class TestMeasured:
    def kept(self, number: int, found: Status, task: str = "train") -> None:
        owner = Owner("nightly", f"run{number}", task, -1, 1, "nonce", deployment())
        keep(of_this_machine().uri, None, owner, "local", found, None, LOG)

    def documents(self) -> list[Path]:
        return list(Path(of_this_machine().uri.removeprefix("file://")).rglob("*.json"))

    def test_is_by_the_tasks_own_runs(self, capsys: pytest.CaptureFixture[str], file: str, steady: str) -> None:
        done = status("first", Phase.SUCCEEDED, 120, {1: 2.0, 2: 3.6})
        self.kept(1, done)
        self.kept(2, status("another task's", Phase.SUCCEEDED, 9, {2: 99.0}), task="asked")
        made = rehearsed(capsys, file, "--task", "train", "--trace", steady, "--runs", "1")
        assert made["steps"] == 120
        (step,) = (note for note in made["notes"] if note.startswith("a step takes"))
        assert step.startswith("a step takes 0.278 s with 2 workers (measured by first and earlier runs: ")
        assert "2 steps/s with 1, 3.6 steps/s with 2" in step
        assert "0.90 of the throughput at each doubling" in step
        assert "as many steps as first had" in made["notes"]

    def test_the_newest_run_counts_for_each_number_of_workers(
        self, capsys: pytest.CaptureFixture[str], file: str, steady: str
    ) -> None:
        self.kept(1, status("older", Phase.SUCCEEDED, 120, {1: 9.0, 4: 4.0}))
        (document,) = self.documents()
        os.utime(document, (0, 0))
        self.kept(2, status("newer", Phase.FAILED, 60, {1: 1.0, 2: 2.0}))
        made = rehearsed(capsys, file, "--task", "train", "--trace", steady, "--runs", "1")
        (step,) = (note for note in made["notes"] if note.startswith("a step takes"))
        assert "measured by newer and earlier runs: 1 steps/s with 1, 2 steps/s with 2, 4 steps/s with 4" in step
        assert made["steps"] == 120, "of the newest that succeeded"

    def test_what_cannot_be_believed_is_passed_over(
        self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, file: str, steady: str
    ) -> None:
        self.kept(1, status("first", Phase.SUCCEEDED, 120, {2: 4.0}))
        (document,) = self.documents()
        document.with_name("altered-0.t1.json").write_text(document.read_text())
        document.write_text(document.read_text().replace('"task_id":"train"', '"task_id":"other"'))
        made = rehearsed(capsys, file, "--task", "train", "--steps", "9", "--trace", steady, "--runs", "1")
        assert any("a step takes 1 s with 2 workers (assumed" in note for note in made["notes"])
        assert caplog.text.count("is passed over") == 2


def entry(hours: float, price: str, zone: str = "euc1-az1") -> dict[str, Any]:
    time = datetime.now(UTC) - hours * HOUR
    return {"InstanceType": "g4dn.xlarge", "AvailabilityZone": zone, "Timestamp": time, "SpotPrice": price}


class TestEc2:
    WORDS = ("--start", "2", "--steps", "600", "--ec2", "eu-central-1", *WORDS)

    @pytest.fixture
    def ec2(self, monkeypatch: pytest.MonkeyPatch) -> Stubber:
        client = boto3.client("ec2", region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b")
        monkeypatch.setattr(boto3, "client", lambda *_, **__: client)
        (stub := Stubber(client)).activate()
        return stub

    def test_is_asked_for_the_prices_of_the_past_days(self, ec2: Stubber, capsys: pytest.CaptureFixture[str]) -> None:
        history = [entry(48, "0.1"), entry(48, "0.3", "euc1-az2"), entry(12, "0.2", "euc1-az2")]
        ec2.add_response("describe_spot_price_history", {"SpotPriceHistory": history})
        made = rehearsed(capsys, *self.WORDS, "--days", "1")
        assert set(made["markets"]) == {"euc1-az1", "euc1-az2"}
        paid = 605 * 2 / 3600
        cost = made["markets"]["euc1-az1"]["mean_cost"]
        assert cost == pytest.approx(paid * 0.1, rel=0.02)
        second = made["markets"]["euc1-az2"]["cost"]
        assert (second["low"], second["high"]) == (pytest.approx(cost * 2, rel=0.02), pytest.approx(cost * 3, rel=0.02))
        assert any("EC2 does not tell when machines were taken" in note for note in made["notes"])

    def test_that_does_not_allow_it_is_told_with_the_right(
        self, ec2: Stubber, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ec2.add_client_error("describe_spot_price_history", "UnauthorizedOperation")
        said = refused(capsys, *self.WORDS)
        assert "EC2 refuses its spot prices" in said
        assert "ec2:DescribeSpotPriceHistory" in said

    def test_without_credentials(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        def client(*_: object, **__: object) -> None:
            raise NoCredentialsError

        monkeypatch.setattr(boto3, "client", client)
        assert "boto3 has no credentials" in refused(capsys, *self.WORDS)

    def test_is_not_asked_unless_it_is_said(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], steady: str
    ) -> None:
        monkeypatch.setattr(boto3, "client", lambda *_, **__: pytest.fail("it was asked"))
        rehearsed(capsys, "--start", "2", "--steps", "60", "--trace", steady, *WORDS)


class TestZones:
    def change(self, hours: float, price: str, zone: str = "a") -> Change:
        return Change("g4dn.xlarge", zone, NOON + hours * HOUR, Decimal(price))

    def test_have_no_machine_while_the_price_is_above_on_demand(self) -> None:
        changes = [self.change(-9, "0.2"), self.change(2, "0.7"), self.change(3, "0.3"), self.change(99, "0.1")]
        (market,) = markets(changes, NOON, NOON + 5 * HOUR, machines=2, ceiling=Decimal("0.5"))
        assert [(stay.begin, stay.end) for stay in market.stays] == [(0, 7200)] * 2 + [(10800, 18000)] * 2
        assert market.prices == ((0.0, Decimal("0.2")), (7200.0, Decimal("0.7")), (10800.0, Decimal("0.3")))
        assert len(market.losses) == 2

    def test_that_are_always_above_it_are_left_out(self) -> None:
        changes = [self.change(-1, "0.2", "a"), self.change(-1, "0.9", "b")]
        found = markets(changes, NOON, NOON + HOUR, machines=1, ceiling=Decimal("0.5"))
        assert [market.name for market in found] == ["a"]
        with pytest.raises(InvalidDocument, match="no spot prices"):
            markets(changes[1:], NOON, NOON + HOUR, machines=1, ceiling=Decimal("0.5"))
