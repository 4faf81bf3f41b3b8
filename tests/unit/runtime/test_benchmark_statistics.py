from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.measures import Bound, Measure, Target
from benchmarks.harness.records import RecordReader, Step, change_after, first_whole_step, rate
from benchmarks.harness.report import LAUNCHER_HEAD, as_lines, as_measures, results_of
from benchmarks.harness.rounds import OURS, PEER, Collected
from benchmarks.harness.statistics import Centre, Ratio, compare, summarise

figures = st.lists(st.floats(0.01, 1000), min_size=1, max_size=12)


def world(numbers: range, begin: float, ranks: Sequence[int], entries: Sequence[int], beat: float = 0.1) -> list[Step]:
    """Steps of a world whose process of rank r has the pid ``ranks[r]``; rank r is r milliseconds late."""
    return [
        Step(begin + index * beat + rank / 1000, number, rank, len(ranks), entry, pid)
        for index, number in enumerate(numbers)
        for rank, (pid, entry) in enumerate(zip(ranks, entries, strict=True))
    ]


class TestSummary:
    def test_of_an_odd_number_of_values_is_the_middle_one_between_its_quartiles(self) -> None:
        summary = summarise([5.0, 1.0, 3.0, 2.0, 4.0])
        assert (summary.low, summary.centre, summary.high, summary.count) == (2.0, 3.0, 4.0, 5)

    def test_of_one_value_is_that_value(self) -> None:
        assert summarise([7.0]).low == summarise([7.0]).high == 7.0

    def test_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no values"):
            summarise([])

    @given(figures)
    def test_quartiles_enclose_the_median(self, values: list[float]) -> None:
        summary = summarise(values)
        assert min(values) <= summary.low <= summary.centre <= summary.high <= max(values)


class TestRatio:
    def test_is_that_of_the_medians(self) -> None:
        ratio = compare([1.0, 2.0, 30.0], [4.0, 8.0, 10.0])
        assert ratio is not None
        assert ratio.value == 0.25

    def test_of_means_sees_what_a_median_hides(self) -> None:
        stalls = [0.3, 0.3, 0.3, 30.2, 30.2]
        median, mean = (compare([0.3] * 5, stalls, centre) for centre in (Centre.MEDIAN, Centre.MEAN))
        assert median is not None
        assert mean is not None
        assert median.value == 1.0
        assert mean.value == pytest.approx(0.3 * 5 / sum(stalls))

    def test_of_sides_that_do_not_vary_has_an_interval_of_no_width(self) -> None:
        steady = compare([2.0] * 5, [4.0] * 5)
        assert steady == Ratio(0.5, 0.5, 0.5)

    def test_of_the_same_figures_is_the_same_every_time(self) -> None:
        assert compare([1.0, 2.0, 5.0], [3.0, 4.0]) == compare([1.0, 2.0, 5.0], [3.0, 4.0])

    def test_interval_is_wider_for_noisier_figures(self) -> None:
        calm, noisy = compare([1.0, 1.01, 0.99], [1.0, 1.0, 1.0]), compare([0.5, 1.0, 2.0], [1.0, 1.0, 1.0])
        assert calm is not None
        assert noisy is not None
        assert noisy.high - noisy.low > calm.high - calm.low

    @pytest.mark.parametrize(("ours", "peer"), [([1.0], [0.0]), ([], [1.0]), ([1.0], [])])
    def test_does_not_exist_without_a_peer_to_divide_by(self, ours: list[float], peer: list[float]) -> None:
        assert compare(ours, peer) is None


class TestTarget:
    @pytest.mark.parametrize(
        ("bound", "ours", "ratio", "met"),
        [
            (Bound.RATIO_AT_MOST, 9.0, 0.1, True),
            (Bound.RATIO_AT_MOST, 0.0, 0.11, False),
            (Bound.RATIO_AT_MOST, 0.0, None, False),
            (Bound.RATIO_AT_LEAST, 0.0, 0.1, True),
            (Bound.RATIO_AT_LEAST, 9.0, 0.09, False),
            (Bound.OURS_AT_MOST, 0.1, None, True),
            (Bound.OURS_AT_MOST, 0.2, 0.1, False),
        ],
    )
    def test_is_met_on_its_side_of_the_limit(self, bound: Bound, ours: float, ratio: float | None, met: bool) -> None:
        assert Target(bound, 0.1).met(ours, ratio) is met


class TestFirstWholeStep:
    def test_is_complete_when_the_last_rank_is(self) -> None:
        steps = world(range(1, 4), 10.0, ranks=[100, 101], entries=[1, 1])
        first = first_whole_step(steps, size=2)
        assert first is not None
        assert (first.step, first.time) == (1, 10.001)

    def test_waits_for_every_rank(self) -> None:
        steps = world(range(1, 4), 10.0, ranks=[100, 101], entries=[1, 1])
        assert first_whole_step([step for step in steps if step.rank == 0], size=2) is None
        assert first_whole_step(steps, size=3) is None


class TestChange:
    def test_scale_out_ends_with_the_first_step_of_all_three(self) -> None:
        before = world(range(1, 11), 0.0, ranks=[100, 101], entries=[1, 1])
        after = world(range(11, 13), 2.0, ranks=[100, 101, 102], entries=[2, 2, 1])
        change = change_after(before + after, event=0.5, size=3)
        assert change is not None
        assert (change.resumed, change.size, change.steps_lost) == (2.002, 3, 0)
        assert change.pause == pytest.approx(1.1)

    def test_steps_that_the_old_world_still_completes_do_not_count(self) -> None:
        steps = world(range(1, 11), 0.0, ranks=[100, 101], entries=[1, 1])
        assert change_after(steps, event=0.5) is None

    def test_world_of_another_size_does_not_count_when_a_size_is_asked_for(self) -> None:
        steps = world(range(1, 6), 0.0, [100, 101, 102], [1, 1, 1]) + world(range(6, 8), 1.0, [100], [2])
        assert change_after(steps, event=0.5, size=2) is None
        assert change_after(steps, event=0.5) is not None

    def test_steps_done_again_are_lost(self) -> None:
        before = world(range(1, 11), 0.0, ranks=[100, 101, 102], entries=[1, 1, 1])
        change = change_after(before + world(range(8, 12), 31.0, [100, 101], [2, 2]), event=0.95)
        assert change is not None
        assert (change.size, change.steps_lost) == (2, 3)
        assert change.pause == pytest.approx(30.1)

    def test_new_rank_zero_may_be_a_process_that_was_another_rank(self) -> None:
        before = world(range(1, 6), 0.0, ranks=[100, 101, 102], entries=[1, 1, 1])
        change = change_after(before + world(range(6, 8), 1.0, [101, 102], [2, 2]), event=0.45, size=2)
        assert change is not None
        assert (change.resumed, change.steps_lost) == (1.001, 0)
        assert change.pause == pytest.approx(0.599)


class TestRate:
    def test_is_steps_by_time_of_rank_zero_within_the_window(self) -> None:
        steps = world(range(1, 101), 0.0, ranks=[100, 101], entries=[1, 1], beat=0.02)
        assert rate(steps, 0.5, 1.5) == pytest.approx(50.0)

    def test_needs_two_steps(self) -> None:
        with pytest.raises(ValueError, match="no rate"):
            rate(world(range(1, 2), 0.0, [100], [1]), 0.0, 1.0)


def test_reader_follows_files_that_grow_and_leaves_a_line_that_is_still_being_written(tmp_path: Path) -> None:
    reader = RecordReader(tmp_path)
    line = json.dumps({"t": 1_500_000_000, "step": 3, "rank": 1, "size": 2, "entry": 1}) + "\n"
    (tmp_path / "100.jsonl").write_text(line + line[:20])
    assert reader.refresh() == [Step(1.5, 3, 1, 2, 1, 100)]
    with (tmp_path / "100.jsonl").open("a") as stream:
        stream.write(line[20:])
    assert len(reader.refresh()) == 2


class TestReport:
    def collected(self) -> Collected:
        collected = Collected()
        for ours, peer in ((0.2, 4.0), (0.3, 3.0), (0.4, 2.0)):
            collected.add(OURS, {Measure.SCALE_OUT: ours, Measure.LEAVE_LOST: 0, Measure.THROUGHPUT: 97.0})
            collected.add(PEER, {Measure.SCALE_OUT: peer, Measure.LEAVE_LOST: 0, Measure.THROUGHPUT: 100.0})
        collected.add(OURS, {Measure.KILL: 1.0})
        return collected

    def test_json_holds_medians_ratio_and_rounds_of_what_both_sides_have(self) -> None:
        plain = json.loads(json.dumps(as_measures(results_of(self.collected()))))
        assert set(plain) == {"scale_out", "planned_leave_steps_lost", "throughput"}
        assert {key: plain["scale_out"][key] for key in ("ours", "peer", "ratio", "rounds", "met")} == {
            "ours": 0.3, "peer": 3.0, "ratio": 0.1, "rounds": 3, "met": True,
        }  # fmt: skip
        assert plain["planned_leave_steps_lost"]["ratio"] is None

    def test_page_says_which_targets_are_missed_and_what_went_wrong(self) -> None:
        page = as_lines(LAUNCHER_HEAD, results_of(self.collected()), {"machine": "a loom"}, ["kill 1/3 peer: no world"])
        rows = {row.split(" | ")[0]: row for row in page if row.startswith("| ")}
        assert rows["| Throughput of 2 ranks, everything on (steps/s)"].endswith("| **no** |")
        assert rows["| Scale-out 2→3: size asked → first step at 3 (s)"].endswith("| yes |")
        assert "* machine: a loom" in page
        assert "* kill 1/3 peer: no world" in page
