"""Machine types: from one word to the slots of a run and to the pods of its workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.prices.book import read_prices
from elastic_training.settings import Pods, PodShape, Workers
from elastic_training.settings.machines import INSTANCE_TYPE, catalogue, machine
from tests.unit.provider.manifests_bench import objects_of, pods_of

OWN = """
[mine]
"g5.xlarge" = { gpus = 2, memory = 64 }

[mine."box.4"]
gpus = 4
gpu_resource = "amd.com/gpu"
labels = { "example.org/pool" = "train" }
tolerations = ["example.org/train"]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The deployment's own file."""
    path = tmp_path / "machines.toml"
    path.write_text(OWN)
    monkeypatch.setenv("AIRFLOW__ELASTIC_TRAINING__MACHINES", str(path))
    return path


def worker(workers: Workers, **pods: Any) -> dict[str, Any]:
    """Spec of a worker's pod."""
    _launcher, made = pods_of(objects_of(Pods(image="trainer:1", **pods).of_run(workers)))
    return dict(made["spec"])


def test_one_word_gives_slots_and_what_the_pod_needs() -> None:
    workers = Workers(min=1, max=4, machine="g5.12xlarge", spot=True)
    assert workers.spec().slots == 4
    spec = worker(workers)
    assert spec["nodeSelector"] == {INSTANCE_TYPE: "g5.12xlarge"}
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert "48Gi" in json.dumps(spec["volumes"])


def test_what_is_given_beside_it_goes_before_it() -> None:
    workers = Workers(machine="g5.12xlarge", gpus=2, slots=1, shm="1Gi", gpu_resource="example.org/half")
    assert workers.spec().slots == 1
    spec = worker(workers, worker=PodShape(node_selector={INSTANCE_TYPE: "g5.24xlarge"}))
    assert spec["nodeSelector"] == {INSTANCE_TYPE: "g5.24xlarge"}
    assert spec["containers"][0]["resources"]["limits"] == {"example.org/half": "2"}
    assert "1Gi" in json.dumps(spec["volumes"])


def test_a_label_of_ones_own_stays_beside_the_type() -> None:
    spec = worker(Workers(machine="g5.xlarge"), worker=PodShape(node_selector={"zone": "a"}))
    assert spec["nodeSelector"] == {INSTANCE_TYPE: "g5.xlarge", "zone": "a"}


def test_an_unknown_one_names_those_that_are_alike() -> None:
    with pytest.raises(InvalidSettings, match=r"'g5.12xlarg' is not a known machine type.*'g5.12xlarge'"):
        Workers(machine="g5.12xlarg")
    Workers(machine="{{ params.machine }}")  # not known yet
    with pytest.raises(InvalidSettings):
        Workers(machine="{{ params.machine }}").rendered(lambda value: "no such" if value != 1 else value).spec()


def test_slots_have_to_share_its_gpus_evenly() -> None:
    with pytest.raises(InvalidSettings, match="3 slots cannot share 4 GPUs"):
        Workers(machine="g5.12xlarge", slots=3)


def test_a_file_of_ones_own_adds_and_goes_before(own: Path) -> None:
    spec = worker(Workers(machine="box.4"))
    assert spec["nodeSelector"] == {INSTANCE_TYPE: "box.4", "example.org/pool": "train"}
    assert {"key": "example.org/train", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "4"}
    assert machine("g5.xlarge").gpus == 2
    assert machine("g5.2xlarge").gpus == 1
    own.write_text(OWN.replace("gpus = 2", "gpus = 16"))
    assert machine("g5.xlarge").gpus == 16, "a changed file is read again"


def test_what_ships_has_what_the_shipped_prices_have() -> None:
    known = catalogue()
    assert {price.instance: price.cloud for price in read_prices().values()}.items() <= {
        each.name: each.cloud for each in known.values()
    }.items()
    assert {each.cloud for each in known.values()} == {"aws", "gcp", "azure", "alibaba"}
    assert all(0 < each.gpus <= 16 and each.shm for each in known.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mine", "Expected"),
        ("mine = 1", "not a table"),
        ('[mine]\n"a" = 1', "not a table"),
        ('[mine]\n"a" = { gpu = "T4", slots = 2 }', "'slots'"),
        ('[mine]\n"a" = { gpus = -1 }', "gpus"),
        ('[mine]\n"a" = { gpus = 10000 }', "gpus"),
        ('[mine]\n"a" = { gpus = true }', "gpus"),
        ('[mine]\n"a" = { memory = 0.5 }', "memory"),
        ('[mine]\n"a b" = { gpus = 1 }', "a b"),
        ('[mine]\n"a" = { labels = { "x y" = "z" } }', "x y"),
        ('[mine]\n"a" = { labels = { "x" = 1 } }', "1"),
        ('[mine]\n"a" = { tolerations = "x" }', "tolerations"),
        ('[mine]\n"a" = { gpu_resource = "gpu" }', "gpu"),
        ("# " + "x" * 2**20, "larger"),
    ],
)
def test_a_file_that_is_none_says_so(own: Path, text: str, words: str) -> None:
    own.write_text(text)
    with pytest.raises(InvalidSettings, match=re.escape(words)) as refused:
        machine("a")
    assert refused.value.field == "[elastic_training] machines"


def test_no_file_and_a_folder_are_refused(own: Path) -> None:
    own.unlink()
    with pytest.raises(InvalidSettings, match="the file does not exist"):
        machine("a")
    own.mkdir()
    with pytest.raises(InvalidSettings, match="the file does not exist"):
        machine("a")


FIELDS = st.sampled_from(["gpus", "labels", "tolerations", "memory", "a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner),
    max_leaves=6,
)


@given(VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_it_is_read_or_refused(own: Path, value: Any) -> None:
    own.write_text(f'[mine]\n"a" = {_toml(value)}')
    try:
        found = machine("a")
    except InvalidSettings as refused:
        found = None
        assert str(refused).isprintable()  # noqa: PT017
    assert found is None or 0 <= found.gpus <= 64


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=True)
