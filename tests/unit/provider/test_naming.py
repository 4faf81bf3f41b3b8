from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from elastic_training.identity.naming import MAX_LENGTH, run_name

ALLOWED = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
ids = st.text(min_size=1, max_size=300)


@given(ids, ids, ids, st.integers(-1, 10**6))
def test_any_ids_give_a_name_that_kubernetes_takes(dag: str, run: str, task: str, index: int) -> None:
    name = run_name(dag, run, task, index)
    assert ALLOWED.fullmatch(name)
    assert len(name) <= MAX_LENGTH
    assert name == run_name(dag, run, task, index)


@given(st.tuples(ids, ids, ids, st.integers(-1, 5)), st.tuples(ids, ids, ids, st.integers(-1, 5)))
def test_different_tasks_have_different_names(one: tuple[str, str, str, int], two: tuple[str, str, str, int]) -> None:
    assert (run_name(*one) == run_name(*two)) == (one == two)


def test_a_person_recognises_the_task() -> None:
    name = run_name("Nightly_Model", "scheduled__2026-11-21T01:00:00+00:00", "train", 3)
    assert name.startswith("nightly-model-train-3-")


def test_the_parts_do_not_run_into_each_other() -> None:
    assert run_name("a", "b", "c") != run_name("a", "bc", "")
    assert run_name("ab", "r", "c") != run_name("a", "r", "bc")


def test_what_has_no_latin_letter_still_has_a_name() -> None:
    assert run_name("学習", "…", "訓練").startswith("run-")


def test_a_name_never_begins_with_a_digit() -> None:
    assert run_name("2026_model", "run", "train").startswith("run-2026-model-train-")


def test_the_name_follows_from_the_ids_alone() -> None:
    # A retry, in another process, has to find the run of the try before.
    assert run_name("dag", "run", "task") == "dag-task-3clgym5iyyb6vssi"
