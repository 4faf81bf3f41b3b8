from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.pod_generator import make_safe_label_value
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from elastic_runtime.errors import InvalidSettings
from elastic_training import kubernetes_syntax as syntax

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
numbers = st.decimals(min_value=0, max_value=10**6, places=3, allow_nan=False).map(lambda number: f"{number:f}")


@given(numbers, st.sampled_from(SUFFIXES))
def test_quantities_are_worth_what_kubernetes_says(number: str, suffix: str) -> None:
    text = syntax.quantity("field", number + suffix)
    assert syntax.amount(text) == parse_quantity(text)


@pytest.mark.parametrize(("text", "worth"), [("1e3", 1000), ("1E", 10**18), ("2.5E-1", Decimal("0.25")), (".5", 0.5)])
def test_exponents_and_suffixes_are_told_apart(text: str, worth: Any) -> None:
    assert syntax.amount(syntax.quantity("field", text)) == worth


@given(st.integers(0, 10**12))
def test_bare_numbers_are_quantities(number: int) -> None:
    assert syntax.amount(syntax.quantity("field", number)) == number


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
def test_what_is_a_label_of_dns_is_a_name_of_anything(name: str) -> None:
    assert syntax.dns_label("field", name) == name
    assert syntax.object_name("field", name) == name
    assert syntax.label_value("field", name) == name
    assert syntax.label_key("field", f"{name}.example/{name}") == f"{name}.example/{name}"


@given(st.text(max_size=80))
def test_names_with_anything_else_are_refused(text: str) -> None:
    good = len(text) <= 63 and re.fullmatch("[a-z0-9-]+", text) and text[0] != "-" != text[-1]
    if good:
        assert syntax.dns_label("field", text) == text
    else:
        with pytest.raises(InvalidSettings, match="Write"):
            syntax.dns_label("field", text)


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        (syntax.quantity, "2 Gi"),
        (syntax.quantity, "2GB"),
        (syntax.quantity, "-1"),
        (syntax.quantity, ""),
        (syntax.quantity, True),
        (syntax.quantity, None),
        (syntax.quantity, "1e9999"),
        (syntax.dns_label, "a" * 64),
        (syntax.object_name, "Data"),
        (syntax.object_name, "data..old"),
        (syntax.object_name, "a" * 254),
        (syntax.label_key, "a/b/c"),
        (syntax.label_key, "/name"),
        (syntax.label_value, "a" * 64),
        (syntax.label_value, "with space"),
        (syntax.label_value, 3),
        (syntax.variable, "1ST"),
        (syntax.variable, "A=B"),
        (syntax.data_key, ".."),
        (syntax.data_key, "a/b"),
        (syntax.absolute_path, "data"),
        (syntax.absolute_path, "/"),
        (syntax.absolute_path, "/a/../b"),
        (syntax.absolute_path, "/a:b"),
        (syntax.extended_resource, "gpu"),
        (syntax.resource, "gpus"),
        (syntax.image, "registry/trainer 1"),
        (syntax.image, "https://registry/trainer"),
        (syntax.image, "registry/Trainer"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_here(rule: Callable[[str, object], str], bad: object) -> None:
    with pytest.raises(InvalidSettings) as caught:
        rule("pods.field", bad)
    assert caught.value.field == "pods.field"
    assert caught.value.remedy.startswith("Write ")


@pytest.mark.parametrize(
    ("rule", "good"),
    [
        (syntax.image, "trainer"),
        (syntax.image, "registry/trainer:1"),
        (syntax.image, "localhost:5000/team/trainer_a--b:v1.2-rc"),
        (syntax.image, "registry.example/a/b@sha256:" + "0" * 64),
        (syntax.resource, "hugepages-2Mi"),
        (syntax.resource, "amd.com/gpu"),
        (syntax.resource, "memory"),
        (syntax.label_value, ""),
        (syntax.data_key, "service-account.json"),
        (syntax.variable, "my.name_1"),
        (syntax.absolute_path, "/var/data"),
    ],
)
def test_what_kubernetes_takes_is_taken(rule: Callable[[str, object], str], good: str) -> None:
    assert rule("pods.field", good) == good


@given(st.one_of(st.text(max_size=80), st.text("aZ9._-:+", max_size=80)))
def test_any_text_becomes_the_label_that_the_pod_operator_makes_of_it(text: str) -> None:
    label = syntax.safe_label_value(text)
    syntax.label_value("field", label)
    assert label == make_safe_label_value(text).removeprefix("-")
