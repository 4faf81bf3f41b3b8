"""What the simulator of spot traces reads: traces, costs."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks.traces.bill import bill
from benchmarks.traces.costs import Side, read_costs, with_given
from benchmarks.traces.made import MADE, make
from benchmarks.traces.policy import best_fixed_size, job_for
from benchmarks.traces.report import has_target
from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.prices.book import Price
from elastic_runtime.rehearsal.account import Account
from elastic_runtime.rehearsal.costs import Costs
from elastic_runtime.rehearsal.policy import Job
from elastic_runtime.rehearsal.scaling import Scaling
from elastic_runtime.rehearsal.simulator import Outcome
from elastic_runtime.rehearsal.trace import Notices, Stay
from elastic_runtime.rehearsal.trace_files import SHIPPED, parse_trace, read_trace
from elastic_runtime.run.spec import Timing
from tests.unit.runtime.trace_bench import trace

CHANGES = "5000,add,a\n5000,add,b\n\n# a comment\n8000,remove,a\n9000,add,a\n15000,remove,b\n"


class TestTrace:
    def test_begins_with_the_first_change_and_ends_with_the_last(self) -> None:
        read = parse_trace("t", CHANGES)
        assert read.duration == 10.0
        assert read.stays == (Stay("a", 0.0, 3.0), Stay("b", 0.0, 10.0), Stay("a~2", 4.0, 10.0))

    def test_what_is_removed_at_the_very_end_is_no_loss(self) -> None:
        read = parse_trace("t", CHANGES)
        assert [stay.name for stay in read.losses] == ["a"]
        assert read.losses_per_node_hour == pytest.approx(1 / (19 / 3600))

    def test_levels(self) -> None:
        read = parse_trace("t", CHANGES)
        assert read.levels() == [(0.0, 2), (3.0, 1), (4.0, 2), (10.0, 0)]
        assert read.peak == 2

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("0,add,a\nx,remove,a\n", "line 2: 'x,remove,a' is not"),
            ("0,add,a\n1,leave,a\n", "line 2: '1,leave,a' is not"),
            ("0,add\n", "line 1: '0,add' is not"),
            ("0,add,a\n1,add,a\n", "line 2: '1,add,a' cannot be: a is there"),
            ("0,add,a\n1,remove,b\n", "line 2: '1,remove,b' cannot be: b is not there"),
            ("5,add,a\n1,remove,a\n", "line 2: '1,remove,a' is earlier"),
            ("", "no two changes"),
            ("7,add,a\n", "no two changes"),
        ],
    )
    def test_what_is_none_is_refused_with_its_line(self, text: str, says: str) -> None:
        with pytest.raises(InvalidDocument, match=says):
            parse_trace("t", text)

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidDocument, match=r"none\.csv"):
            read_trace(tmp_path / "none.csv")

    @pytest.mark.parametrize("name", MADE)
    def test_those_that_ship_are_what_their_seed_makes(self, name: str) -> None:
        assert (SHIPPED / f"{name}.csv").read_text() == make(name)

    def test_the_stormy_one_is_as_the_goal_says(self) -> None:
        stormy = read_trace(SHIPPED / "stormy.csv")
        assert stormy.losses_per_node_hour == pytest.approx(0.6, abs=0.01)
        assert has_target(stormy)


class TestNotices:
    def test_come_so_long_before_the_loss_or_with_the_machine(self) -> None:
        made = trace(1000, (0, 500), (450, 500), (0, 1000))
        moments = [Notices(1.0, 120.0).moment(stay, made) for stay in made.stays]
        assert moments == [380.0, None, 450.0]  # the second stays to the end

    def test_of_some_are_the_same_every_time(self) -> None:
        made = trace(1000, *[(0, 500)] * 16)
        heard = [[Notices(0.5, 30.0, seed=7).moment(stay, made) for stay in made.stays] for _ in range(2)]
        assert heard[0] == heard[1]
        assert {None, 470.0} == set(heard[0])

    def test_a_share_is_a_share(self) -> None:
        with pytest.raises(InvalidSettings, match=r"notices\.share"):
            Notices(1.5)


class TestScaling:
    def test_is_linear_by_default(self) -> None:
        assert [Scaling().rate(workers) for workers in (0, 1, 2, 32)] == [0.0, 1.0, 2.0, 32.0]

    def test_has_an_efficiency_for_each_doubling(self) -> None:
        assert Scaling(0.9).rate(8) == pytest.approx(8 * 0.9**3)

    def test_more_workers_are_never_slower(self) -> None:
        with pytest.raises(InvalidSettings, match="efficiency"):
            Scaling(0.5)


MEASURES = {
    "start": {"ours": 3.3, "peer": 5.1},
    "sigkill": {"ours": 0.1, "peer": 10.0},
    "sigkill_mean": {"ours": 0.2, "peer": 15.0},
    "scale_out": {"ours": 0.5, "peer": None},
}


class TestCosts:
    def test_are_those_measured_of_that_side(self) -> None:
        ours, peer = (read_costs(MEASURES, side) for side in (Side.OURS, Side.PEER))
        assert (ours.costs.session_start, ours.costs.forced_reset, ours.costs.grow) == (3.3, 0.2, 0.5)
        assert (peer.costs.session_start, peer.costs.forced_reset, peer.costs.grow) == (5.1, 15.0, Costs().grow)

    def test_a_machine_that_vanishes_is_missed_before_silence_alone_would_tell(self) -> None:
        ours, peer = (read_costs(MEASURES, side).costs for side in (Side.OURS, Side.PEER))
        assert 3 * Timing().heartbeat < ours.silent_reset < Timing().agent_silence
        assert peer.silent_reset == Costs().silent_reset

    def test_say_where_they_are_from(self) -> None:
        lines = with_given(read_costs(MEASURES, Side.OURS), {"leave": 2.0}).lines()
        assert "session_start 3.3 s (`start`, ours)" in lines
        assert "leave 2 s (given)" in lines
        assert "machine_start 30 s (assumed)" in lines

    def test_that_do_not_exist_are_refused(self) -> None:
        with pytest.raises(InvalidSettings, match=r"costs\.boot.*machine_start"):
            with_given(read_costs({}, Side.OURS), {"boot": 1.0})

    def test_are_not_negative(self) -> None:
        with pytest.raises(InvalidSettings, match=r"costs\.grow"):
            Costs(grow=-1.0)


class TestJob:
    def test_the_best_fixed_size_trades_machines_for_time(self) -> None:
        made = trace(1000, (0, 1000), (0, 1000), (0, 600), (0, 100))
        # 4 for 100 s, 3 for 600 s, 2 for 1000 s
        assert best_fixed_size(made, 1, Scaling()) == 2
        assert best_fixed_size(made, 3, Scaling()) == 3

    def test_is_as_large_as_the_trace(self) -> None:
        job = job_for(trace(1000, *[(0, 1000)] * 9))
        assert (job.minimum, job.fixed, job.maximum) == (2, 9, 9)

    def test_bounds_that_are_out_of_order_are_refused(self) -> None:
        with pytest.raises(InvalidSettings, match="min 3, fixed 2, max 4"):
            Job(3, 4, 2)


class TestBill:
    def test_is_of_the_machines_and_of_the_work(self) -> None:
        price = Price("c", "i", "r", on_demand=Decimal(2), spot=Decimal("0.5"), date=date(2026, 11, 21), source="s")
        made = trace(3600, (0, 3600), (0, 1800))
        outcome = Outcome(
            Account(), useful=3600.0, steps=0, lost_steps=0, planned_resets=0, forced_resets=0,
            sessions=1, checkpoints=0, losses=0, announced=0, seconds=3600.0, finished=False, end=None, failure=None,
            paid=(), history=(),
        )  # fmt: skip
        costs = bill(outcome, made, Job(1, 2, 2), price)
        # Paid for: 1.5 node-hours. The work of one node-hour: two machines for half an hour.
        assert (costs.spot, costs.on_demand, costs.ratio) == (0.75, 2.0, 0.375)
