"""Horovod's knobs, from the DAG file to the ranks' environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Horovod, SizePlan, SizeWindow
from elastic_training.settings.horovod_knobs import ELSEWHERE, horovod_of

FIXED: dict[str, Any] = {"workers": {"min": 2}, "recovery": {"mode": "fixed"}}


def operator(**arguments: Any) -> ElasticHorovodOperator:
    return ElasticHorovodOperator(
        task_id="train", command=["python", "train.py"], **{"workers": {"min": 1, "max": 4}, **arguments}
    )


def environment(**arguments: Any) -> dict[str, str]:
    return dict(operator(**arguments).spec("run").environment)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Horovod(fusion_threshold_mb=-1), "fusion_threshold_mb"),
        (lambda: Horovod(fusion_threshold_mb=0.5), "fusion_threshold_mb"),  # type: ignore[arg-type]
        (lambda: Horovod(cycle_time_ms="often"), "cycle_time_ms"),
        (lambda: Horovod(cycle_time_ms=float("nan")), "cycle_time_ms"),
        (lambda: Horovod(stall_check="maybe"), "stall_check"),
        (lambda: Horovod(stall_check_warning_time_seconds=0), "stall_check_warning_time_seconds"),
        (
            lambda: Horovod(stall_check_warning_time_seconds=60, stall_check_shutdown_time_seconds=60),
            "stall_check_shutdown_time_seconds",
        ),
        (lambda: Horovod(autotune_gaussian_process_noise=1.5), "autotune_gaussian_process_noise"),
        (lambda: Horovod(log_level="loud"), "log_level"),
        (lambda: Horovod(autotune_log_file=""), "autotune_log_file"),
        (lambda: horovod_of({"cycle_time": 2}), "cycle_time"),
        *((lambda name=name: horovod_of({name: 1}), name) for name in ELSEWHERE),
    ],
)
def test_what_cannot_work_is_refused_at_parse(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        make()
    assert refused.value.field == f"horovod.{field}"


def test_what_is_like_a_flag_is_named() -> None:
    with pytest.raises(InvalidSettings, match=r"cycle_time_ms"):
        operator(horovod={"cycle_time": 2})


def test_nothing_given_sets_nothing() -> None:
    assert environment() == {}
    assert operator().horovod.serialize() == {}


def test_units_and_flags_are_written_as_horovods_variables_have_them() -> None:
    asked = Horovod(
        fusion_threshold_mb="32", cycle_time_ms=2.5, stall_check=False, log_level="DEBUG", log_with_timestamp="no"
    )
    assert environment(horovod=asked, environment={"DATA": "/data"}) == {
        "DATA": "/data",
        "HOROVOD_FUSION_THRESHOLD": str(32 * 2**20),
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_LOG_LEVEL": "debug",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }


def test_autotune_is_for_runs_that_never_resize() -> None:
    tuned = Horovod(autotune=True, autotune_warmup_samples=1)
    wanted = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1"}
    assert environment(horovod=tuned, **FIXED) == wanted
    for changing in (
        {},
        {"recovery": {"mode": "fixed"}},
        {"workers": {"min": 2}},
        FIXED | {"workers": {"min": 1, "max": 2}},
    ):
        with pytest.raises(InvalidSettings, match="horovod#2835"):
            environment(horovod=tuned, **changing)
    plan = SizePlan(windows=[SizeWindow(2, "22:00", "06:00")], otherwise=2, timezone="UTC")
    with pytest.raises(InvalidSettings, match="no size plan"):
        environment(horovod=tuned, size_plan=plan, **FIXED)


def test_autotunes_own_settings_mean_nothing_without_it() -> None:
    assert environment(horovod=Horovod(autotune="{{ params.tune }}", autotune_warmup_samples=1).rendered(_no)) == {}


def _no(value: Any) -> Any:
    return "False" if value == "{{ params.tune }}" else value


def test_two_words_on_one_knob_are_refused_unless_they_are_the_same() -> None:
    knob = Horovod(cycle_time_ms=2)
    assert environment(horovod=knob, environment={"HOROVOD_CYCLE_TIME": "2"}) == {"HOROVOD_CYCLE_TIME": "2"}
    with pytest.raises(InvalidSettings, match="Write one of the two") as refused:
        environment(horovod=knob, environment={"HOROVOD_CYCLE_TIME": "5"})
    assert refused.value.field == "environment.HOROVOD_CYCLE_TIME"


scalars = st.none() | st.booleans() | st.integers(-10, 10**9) | st.floats() | st.text(max_size=8)


@given(st.fixed_dictionaries({}, optional={each.name: scalars for each in fields(Horovod)}))
def test_whatever_is_given_is_refused_or_written(values: dict[str, Any]) -> None:
    try:
        written = Horovod(**values).environment(fixed_size=True)
    except InvalidSettings as refused:
        field = refused.field
    else:
        field = "horovod."
        assert all(name.startswith("HOROVOD_") and value and "\0" not in value for name, value in written.items())
        assert len(written) <= sum(value is not None for value in values.values())
    assert field.startswith("horovod.")
