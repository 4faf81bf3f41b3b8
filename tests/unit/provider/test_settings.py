from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import NoticeService, RecoveryMode, Timing, WorkersSpec
from elastic_training.operators.checks import check_environment, command_words
from elastic_training.settings import Checkpoints, Recovery, Workers
from elastic_training.settings.values import parse_bool


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Workers(min=0), "workers.min"),
        (lambda: Workers(min=3, start=2), "workers.min"),
        (lambda: Workers(min=1, start=5, max=4), "workers.start"),
        (lambda: Workers(min=5, start="{{ params.start }}", max=4), "workers.min"),
        (lambda: Workers(min=1, slots=0), "workers.slots"),
        (lambda: Workers(min="many"), "workers.min"),
        (lambda: Workers(gpus=-1), "workers.gpus"),
        (lambda: Workers(gpus=4, slots=3), "workers.slots"),
        (lambda: Workers(gpu_resource="gpu"), "workers.gpu_resource"),
        (lambda: Workers(shm="2 GB"), "workers.shm"),
        (lambda: Workers(spot="maybe"), "workers.spot"),
        (lambda: Workers(min=1.5), "workers.min"),  # type: ignore[arg-type]  # what a user may write
        (lambda: Workers(min=True), "workers.min"),
        (lambda: Recovery(mode="hope"), "recovery.mode"),
        (lambda: Recovery(notices="ibm"), "recovery.notices"),
        (lambda: Recovery(max_wait=timedelta(seconds=-1)), "recovery.max_wait"),
        (lambda: Recovery(max_wait=0), "recovery.max_wait"),
        (lambda: Recovery(max_wait=float("nan")), "recovery.max_wait"),
        (lambda: Recovery(start_timeout="soon"), "recovery.start_timeout"),
        (lambda: Recovery(reset_limit=-1), "recovery.reset_limit"),
        (lambda: Recovery(rank_failures=-1), "recovery.rank_failures"),
        (lambda: Recovery(lease=-1), "recovery.lease"),
        (lambda: Recovery(unwatched=0), "recovery.unwatched"),
        (lambda: Recovery(standstill=-1), "recovery.standstill"),
        (lambda: Recovery(standstill="never"), "recovery.standstill"),
        (lambda: Recovery(stragglers="kill"), "recovery.stragglers"),
        (lambda: Recovery(stragglers="replace", mode="fixed"), "recovery.stragglers"),
        (lambda: Recovery(factor=1), "recovery.factor"),
        (lambda: Recovery(factor="twice"), "recovery.factor"),
        (lambda: Recovery(window=1), "recovery.window"),
        (lambda: Recovery(grow_memory=1.5), "recovery.up_to"),
        (lambda: Recovery(up_to="64Gi"), "recovery.grow_memory"),
        (lambda: Recovery(grow_memory="{{ params.factor }}"), "recovery.up_to"),
        (lambda: Recovery(grow_memory=1, up_to="64Gi"), "recovery.grow_memory"),
        (lambda: Recovery(grow_memory=1.5, up_to="much"), "recovery.up_to"),
        (lambda: Recovery(window=timedelta(days=2)), "recovery.window"),
        (lambda: Recovery(compare="sometimes"), "recovery.compare"),
        (lambda: Checkpoints(every=0), "checkpoints.every"),
        (lambda: Checkpoints(keep=0), "checkpoints.keep"),
    ],
)
def test_what_cannot_work_is_refused_with_field_and_remedy(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.remedy.startswith("Write ")


@pytest.mark.parametrize(
    ("workers", "slots"),
    [
        (Workers(gpus=4), 4),
        (Workers(gpus=4, slots=1), 1),
        (Workers(gpus=4, slots=2), 2),
        (Workers(gpus=1, slots=2), 2),
        (Workers(), 1),
    ],
)
def test_slots_follow_from_gpus_unless_they_are_given(workers: Workers, slots: int) -> None:
    assert workers.spec().slots == slots


def test_what_is_left_out_follows_from_what_is_there() -> None:
    assert Workers(min=2).spec() == WorkersSpec(2, 2, 2, 1)
    assert Workers(min=2, start=3).spec() == WorkersSpec(2, 3, 3, 1)


def test_templates_are_checked_only_once_they_are_rendered() -> None:
    workers = Workers(min="{{ low }}", start=2, max="{{ high }}")
    rendered = workers.rendered(lambda text: {"{{ low }}": "3", "{{ high }}": "4"}.get(text, text))
    assert workers.min == "{{ low }}"
    with pytest.raises(InvalidSettings, match=r"workers\.min: 3 is more than workers\.start"):
        rendered.spec()
    rendered = workers.rendered(lambda text: {"{{ low }}": "1", "{{ high }}": "4"}.get(text, text))
    assert rendered.spec() == WorkersSpec(1, 2, 4, 1)


def test_time_spans_are_seconds_for_the_launcher() -> None:
    spec = Recovery(mode="fixed", max_wait=timedelta(minutes=2), start_timeout="90", reset_limit="3").spec()
    assert (spec.mode, spec.max_wait, spec.start_timeout, spec.reset_limit) == (RecoveryMode.FIXED, 120.0, 90.0, 3)
    assert Recovery(lease=0).timing() == Timing(lease=0.0)
    assert Recovery().spec().standstill is None
    assert Recovery().spec().compare
    assert not Recovery(compare="{{ False }}").rendered(lambda text: text.strip("{ }")).spec().compare
    assert Recovery(standstill=0).spec().standstill == 0.0
    assert Recovery(standstill=timedelta(minutes=5)).spec().standstill == 300.0
    spec = Recovery(stragglers="replace", factor="{{ 2 }}", window=60).rendered(lambda text: text.strip("{ }")).spec()
    assert (spec.stragglers, spec.factor, spec.window) == ("replace", 2.0, 60.0)


def test_memory_grows_by_a_factor_up_to_an_amount() -> None:
    given = Recovery(grow_memory="{{ 1.5 }}", up_to="{{ 64Gi }}")
    spec = given.rendered(lambda text: text.strip("{ }")).spec()
    assert (spec.grow_memory, spec.up_to) == (1.5, 64 * 2**30)
    assert Recovery().spec().grow_memory is None
    assert Recovery().spec().stragglers == "report"
    assert Recovery(standstill="{{ 90 }}").rendered(lambda text: text.strip("{ }")).spec().standstill == 90.0


def test_a_metadata_service_is_named_or_left_to_the_cluster() -> None:
    assert Recovery().spec().notices is NoticeService.AUTO
    assert Recovery(notices="aws-rebalance").spec().notices is NoticeService.AWS_REBALANCE
    later = Recovery(notices="{{ cloud }}").rendered(lambda text: text.replace("{{ cloud }}", "gcp"))
    assert later.spec().notices is NoticeService.GCP


def test_the_word_of_a_command_must_be_a_word() -> None:
    assert command_words(["python", "train.py", "--epochs", 3]) == ("python", "train.py", "--epochs", "3")
    with pytest.raises(InvalidSettings, match=r"command\[2\]"):
        command_words(["python", "train.py", None])


def test_variables_are_strings() -> None:
    assert check_environment({"SEED": 1}) == {"SEED": "1"}
    with pytest.raises(InvalidSettings, match="environment"):
        check_environment({"A=B": "1"})


@given(st.booleans())
def test_flags_are_read_as_jinja_prints_them(flag: bool) -> None:
    assert parse_bool("fresh", str(flag)) is flag
    assert parse_bool("fresh", str(flag).lower()) is flag


def test_a_flag_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="fresh"):
        parse_bool("fresh", "maybe")
