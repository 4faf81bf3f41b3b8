"""Counting what the ranks really trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from digits.ledger import Counts, Entry, Ledger, count, losses, read_entries


def entry(
    step: int, *indices: int, epoch: int = 0, rank: int = 0, size: int = 1, loss: float = 1.0, at: float = 0
) -> Entry:
    return Entry(step, epoch, rank, size, indices, loss, at or float(step))


def test_every_sample_once_per_epoch_is_nothing_lost_and_nothing_repeated() -> None:
    entries = [entry(1, 0, 1), entry(2, 2), entry(3, 2, 0, epoch=1), entry(4, 1, epoch=1)]
    assert count(entries, samples=3, epochs=2) == Counts(steps=4, seen=6, lost=0, repeated=0)


def test_a_sample_that_two_ranks_trained_on_is_repeated() -> None:
    entries = [entry(1, 0, 1, rank=0, size=2), entry(1, 1, 2, rank=1, size=2)]
    assert count(entries, samples=3, epochs=1) == Counts(steps=1, seen=4, lost=0, repeated=1)


def test_a_repetition_does_not_make_up_for_a_loss() -> None:
    assert count([entry(1, 0, 0), entry(2, 1)], samples=3, epochs=1) == Counts(steps=2, seen=3, lost=1, repeated=1)


def test_an_epoch_that_nobody_trained_is_lost() -> None:
    assert count([entry(1, 0, 1)], samples=2, epochs=2).lost == 2


def test_a_sample_beyond_the_planned_epochs_is_seen_and_hides_no_loss() -> None:
    assert count([entry(1, 0), entry(2, 1, epoch=1)], samples=2, epochs=1) == Counts(2, seen=2, lost=1, repeated=0)


def test_the_loss_of_a_step_is_the_mean_over_all_its_samples() -> None:
    entries = [entry(1, 0, 1, 2, rank=0, size=2, loss=1.0, at=5.0), entry(1, 3, rank=1, size=2, loss=3.0, at=5.5)]
    (step,) = losses(entries)
    assert (step.loss, step.world_size, step.time) == (1.5, 2, 5.5)


def test_a_step_that_was_trained_again_counts_as_its_last_world() -> None:
    first = [entry(7, 0, rank=0, size=3, loss=9.0, at=1.0), entry(7, 1, rank=2, size=3, loss=9.0, at=1.0)]
    again = [entry(7, 0, rank=0, size=2, loss=1.0, at=2.0), entry(7, 1, rank=1, size=2, loss=1.0, at=2.0)]
    (step,) = losses(first + again)
    assert (step.loss, step.world_size) == (1.0, 2)


def test_what_a_process_wrote_is_read_back(tmp_path: Path) -> None:
    written = [entry(1, 4, 2), entry(2, 3)]
    with Ledger(tmp_path / "ledger") as ledger:
        for one in written:
            ledger.append(one)
    assert read_entries(tmp_path / "ledger") == written


def test_a_line_is_readable_before_the_ledger_is_closed(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(entry(1, 0))
        assert len(read_entries(tmp_path)) == 1


def test_two_processes_do_not_write_into_one_file(tmp_path: Path) -> None:
    with Ledger(tmp_path) as one, Ledger(tmp_path) as other:
        one.append(entry(1, 0))
        other.append(entry(1, 1, rank=1))
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert len(read_entries(tmp_path)) == 2


def test_the_unfinished_line_of_a_killed_process_is_passed_over(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(entry(1, 0))
    (path,) = tmp_path.glob("*.jsonl")
    path.write_text(path.read_text() + '{"step":2,"epo')
    assert [one.step for one in read_entries(tmp_path)] == [1]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "1-1.jsonl").write_text('{"step":2}\n')
    with pytest.raises(ValueError, match=r"1-1\.jsonl:1 is not a ledger entry"):
        read_entries(tmp_path)
