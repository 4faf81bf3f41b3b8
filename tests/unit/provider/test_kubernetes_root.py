"""A document in the annotations of a ConfigMap, and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidDocument
from elastic_runtime.run import runobjects
from elastic_runtime.run.join import OfferedToken, OfferedTokens
from elastic_training.clusters.document import NOBODY, RunDocument, SizeRequest, StoredLogLease
from elastic_training.clusters.kubernetes.documents.root import difference, document, of_run
from tests.unit.provider.kubernetes_objects import BEGAN, SPEC, Object, after, root, root_map

words = st.text(max_size=20)
documents = st.builds(
    RunDocument,
    spec=st.just(SPEC),
    owner=words,
    created=st.just(BEGAN),
    renewed=st.integers(0, 10**9).map(lambda milliseconds: BEGAN + timedelta(milliseconds=milliseconds)),
    cancelled=st.none() | words,
    collected=st.booleans(),
    log_lease=st.none() | st.builds(StoredLogLease, st.just(NOBODY) | words, words),
    requests=st.lists(
        st.builds(
            SizeRequest,
            words,
            workers=st.integers(1, 9),
            asked=st.just(BEGAN),
            done=st.booleans(),
            pause=st.booleans(),
            resume=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    stacks=st.none() | words,
    tokens=st.lists(st.builds(OfferedToken, words, st.just(BEGAN), st.integers(1, 9)), max_size=3).map(
        lambda tokens: OfferedTokens(tuple(tokens))
    ),
    complete=st.booleans(),
)


def patched(thing: Object, annotations: dict[str, str | None]) -> Object:
    """As the API server does it."""
    marks = {**thing.annotations, **annotations}
    present = {key: value for key, value in marks.items() if value is not None}
    return Object({**thing.raw, "metadata": {**thing.metadata, "annotations": present}})


@given(documents, documents)
def test_the_difference_makes_the_one_the_other(found: RunDocument, wanted: RunDocument) -> None:
    thing = patched(root_map(), difference(root(), found))
    assert document(thing) == found
    assert document(patched(thing, difference(found, wanted))) == wanted


@given(documents)
def test_nothing_is_set_when_nothing_differs(found: RunDocument) -> None:
    assert difference(found, replace(found, version="another")) == {}


def test_whoever_streams_the_log_is_known_to_the_launcher_as_waiting() -> None:
    found = root(owner="me")
    watched = found.leased("me", "token", after(5))
    assert difference(found, watched)[runobjects.WATCHED] == ""
    assert difference(watched, watched.adopted("you", after(6)))[runobjects.WATCHED] is None


def test_a_root_of_another_incarnation_or_another_owner_is_told_apart() -> None:
    assert of_run(root_map())
    assert of_run(root_map(), SPEC.uid)
    assert not of_run(root_map(), "another")
    assert not of_run(Object({"metadata": {"name": "run", "labels": None}}))


def test_a_root_without_a_spec_is_not_a_runs() -> None:
    with pytest.raises(InvalidDocument, match="holds no spec"):
        document(Object({**root_map().raw, "data": {}}))


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"tokens": 3}'])
def test_tokens_that_cannot_be_read_are_none_and_the_run_can_be(text: str) -> None:
    assert document(patched(root_map(), {runobjects.JOIN_TOKENS: text})).tokens == OfferedTokens()
