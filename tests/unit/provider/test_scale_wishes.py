"""What may be asked of a training's size, and from when on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import WorkersSpec
from elastic_runtime.run.status import Phase, Series, Status
from elastic_training.clusters.document import MAX_RELEASED, SizeRequest, resume_request, size_request
from elastic_training.scaling.request import ScaleAfter, scale_after

BOUNDS = WorkersSpec(2, 2, 6)


@pytest.mark.parametrize(
    ("written", "present", "target"),
    [(3, 2, 3), ("3", 2, 3), ("+2", 3, 5), ("-1", 3, 2), ("min", 5, 2), ("max", 5, 6), (" +1 ", 2, 3)],
)
def test_what_a_wish_comes_to(written: Any, present: int, target: int) -> None:
    assert size_request(written, None, clip=False).target(present, BOUNDS) == target


@pytest.mark.parametrize("written", [-1, "00", "+0", "-0", "two", "", "++2", "1.5", 1.5, True, "1e3", "9" * 9, [3]])
def test_what_is_no_size(written: Any) -> None:
    with pytest.raises(InvalidSettings) as caught:
        size_request(written, None, clip=False)
    assert caught.value.field == "workers"


@pytest.mark.parametrize("written", [0, "0", " 0 "])
def test_no_worker_is_a_pause_whose_target_is_the_size_to_go_back_to(written: Any) -> None:
    wish = size_request(written, None, clip=True, name="p", by="ada")
    assert wish == SizeRequest("p", pause=True, by="ada")
    assert (wish.target(3, BOUNDS), wish.relative) == (3, False)


@pytest.mark.parametrize(("written", "target"), [(None, 4), (3, 3), ("max", 6)])
def test_a_pause_ends_with_the_size_before_it_or_another(written: Any, target: int) -> None:
    wish = resume_request(written, name="r")
    assert (wish.resume, wish.pause, wish.target(4, BOUNDS)) == (True, False, target)


@pytest.mark.parametrize("written", [0, "0", "+1", "-1", "soon", 1.5])
def test_what_no_run_can_go_on_with(written: Any) -> None:
    with pytest.raises(InvalidSettings) as caught:
        resume_request(written)
    assert caught.value.field == "workers"


@pytest.mark.parametrize(("written", "nearest"), [(1, 2), (7, 6), ("+9", 6), ("-9", 2)])
def test_out_of_bounds_is_refused_or_clipped(written: Any, nearest: int) -> None:
    with pytest.raises(InvalidSettings, match="bounds 2 to 6"):
        size_request(written, None, clip=False).target(4, BOUNDS)
    assert size_request(written, None, clip=True).target(4, BOUNDS) == nearest


@given(st.integers(-9, 9).filter(bool), st.integers(2, 6))
def test_a_clipped_wish_is_always_within(change: int, present: int) -> None:
    target = size_request(f"{change:+d}", None, clip=True).target(present, BOUNDS)
    assert 2 <= target <= 6
    assert abs(target - present) <= abs(change)


def test_named_workers_are_as_many_fewer() -> None:
    wish = size_request(None, ["worker-3", "worker-1"], clip=False)
    assert (wish.target(6, BOUNDS), wish.relative, wish.release) == (4, True, ("worker-3", "worker-1"))


@pytest.mark.parametrize(
    "names",
    [[], "worker-3", ["worker-3", "worker-3"], ["../owner"], ["a/b"], [".hidden"], [3], ["w"] * (MAX_RELEASED + 1)],
)
def test_what_names_no_workers(names: Any) -> None:
    with pytest.raises(InvalidSettings, match="release"):
        size_request(None, names, clip=False)


@pytest.mark.parametrize(("workers", "release"), [(None, None), (3, ["worker-3"])])
def test_a_size_or_names(workers: Any, release: Any) -> None:
    with pytest.raises(InvalidSettings):
        size_request(workers, release, clip=False)


def status(**more: Any) -> Status:
    return Status("run", "1", Phase.RUNNING, "", datetime(2026, 3, 1, tzinfo=UTC), **more)


def test_a_step() -> None:
    after = scale_after("7", None, None)
    assert after.missing(status()) == after.missing(status(step=6)) == "step 7 has not come"
    assert after.missing(status(step=7)) is None


def test_what_a_run_that_trains_has_never_told_is_called_unknown() -> None:
    step, epoch = scale_after(7, None, None), scale_after(None, 2, None)
    metric = scale_after(None, None, ("accuracy", ">", 0.9))
    no_step = "step 7 has not come, and no step is known of it: a script without DurableState has to call report(step)"
    assert step.missing(status(world_size=2)) == no_step
    assert step.missing(status(world_size=2, step=6)) == "step 7 has not come"
    assert "no epoch is known of it: the script has to call report(epoch" in str(epoch.missing(status(world_size=2)))
    assert epoch.missing(status(world_size=2, metrics={"epoch": 1.0})) == "epoch 2 has not come"
    assert "no value is known of it: the script has to report" in str(metric.missing(status(world_size=2)))


def test_an_epoch_is_what_the_script_reports() -> None:
    after = scale_after(None, 2, None)
    assert after.missing(status(metrics={"epoch": 1.0}))
    assert after.missing(status(metrics={"epoch": 2.0})) is None


def test_a_metric_that_was_there_between_two_looks_counts() -> None:
    after = scale_after(None, None, ("accuracy", ">=", "0.9"))
    assert after.missing(status(metrics={"accuracy": 0.8, "loss": 0.9}))
    past = Series(steps=(1, 2), times=(1.0, 2.0), values=(0.91, 0.8))
    assert after.missing(status(metrics={"accuracy": 0.8}, series={"accuracy": past})) is None


def test_all_that_is_given_has_to_come() -> None:
    after = scale_after(3, None, ("loss", "<", 1))
    assert after.missing(status(step=3)) == "loss < 1 has not come"
    assert after.missing(status(step=3, metrics={"loss": 0.5})) is None
    assert ScaleAfter().missing(status()) is None


@pytest.mark.parametrize(
    "metric",
    [
        "accuracy",
        ("accuracy", ">="),
        ("accuracy", "==", 1),
        ("accuracy", ">", "much"),
        ("", ">", 1),
        ("a" * 200, ">", 1),
        ("accuracy", ">", float("nan")),
        ("accuracy", ">", True),
        (3, ">", 1),
    ],
)
def test_what_is_no_bound_of_a_metric(metric: Any) -> None:
    with pytest.raises(InvalidSettings, match="after_metric"):
        scale_after(None, None, metric)
