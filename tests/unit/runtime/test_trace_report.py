"""What the simulator of spot traces tells, and the program around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import replay as program
from benchmarks.harness.sections import read_measures
from benchmarks.traces.policy import PolicyName, job_for
from benchmarks.traces.replays import CASES, replay
from benchmarks.traces.report import as_measures, has_target, trace_lines
from elastic_runtime.prices.book import choose_price, read_prices
from elastic_runtime.rehearsal.trace_files import parse_trace
from tests.unit.runtime.trace_bench import ELASTIC, FIXED, RESTART, STOCK, trace, with_costs

POLICIES = dict(zip(PolicyName, (ELASTIC, FIXED, STOCK, RESTART), strict=True))
PRICE = choose_price(read_prices(), "aws/g4dn.xlarge")
SMALL = "0,add,<a>\n0,add,b\n900000,remove,<a>\n1200000,add,c\n3600000,remove,b\n3600000,remove,c\n"


class TestReport:
    def test_measures_are_of_the_form_that_all_measures_have(self) -> None:
        made = parse_trace("small", SMALL)
        replays = replay(made, job_for(made), POLICIES)
        measures = as_measures(replays, PRICE)
        assert list(measures) == [f"trace_small_{case.key}" for case in CASES]
        for each, plain in zip(replays, measures.values(), strict=True):
            assert plain["ours"] == round(each.outcomes[PolicyName.ELASTIC].goodput, 4)
            assert plain["peer"] == round(each.outcomes[PolicyName.STOCK].goodput, 4)
            assert plain["rounds"] == 1
            assert plain["target"] is plain["met"] is None  # which is for stormy ones

    def test_says_plainly_where_the_target_is_missed(self) -> None:
        # 16 machines that stay, and one after the other that is lost after six minutes.
        stormy = trace(3600, *[(0, 3600)] * 16, *[(begin, begin + 360) for begin in range(0, 3600, 350)])
        assert has_target(stormy)
        slow = {**POLICIES, PolicyName.ELASTIC: with_costs(ELASTIC, leave=60.0, grow=60.0)}
        replays = replay(stormy, job_for(stormy), slow, CASES[:1])
        assert as_measures(replays, PRICE)["trace_made_notice_120"]["met"] is False
        (row,) = [line for line in trace_lines(stormy, replays, PRICE) if line.startswith("| ours, elastic | **0.")]
        assert f"**{replays[0].outcomes[PolicyName.ELASTIC].goodput:.3f}**" in row


class TestProgram:
    def test_replays_a_given_trace_and_leaves_the_projects_results_alone(self, tmp_path: Path) -> None:
        path, output = tmp_path / "mine.csv", tmp_path / "results"
        path.write_text(SMALL)
        before = (program.HERE / "RESULTS.md").read_text()
        assert (
            program.main(
                [str(path), "--no-deadlines", "--notice", "0.5@30", "--output", str(output), "--build", str(output)]
            )
            == 0
        )
        assert read_measures(output)["trace_mine_given"]["section"] == "traces"
        assert "### mine" in (output / "RESULTS.md").read_text()
        assert "50% with notice of 30 s" in (output / "RESULTS.md").read_text()
        assert (program.HERE / "RESULTS.md").read_text() == before

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["none.csv"], "none.csv"),
            (["--instance", "aws/none"], "aws/none is not in the price book"),
            (["--cost", "none=3"], "there is no such cost"),
            (["--efficiency", "2"], "2.0 is not an efficiency"),
        ],
    )
    def test_says_what_is_wrong(self, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
        assert program.main(arguments) == 2
        assert says in capsys.readouterr().err
