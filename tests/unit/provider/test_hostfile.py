"""Where the hosts of the world are to be, from the DAG file to the run's spec."""

from __future__ import annotations

from typing import Any

import pytest

from elastic_runtime.errors import InvalidSettings
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator


def operator(**arguments: Any) -> ElasticHorovodOperator:
    return ElasticHorovodOperator(task_id="train", command=["python", "train.py"], workers={"min": 1}, **arguments)


def test_a_place_of_ones_own_reaches_only_images_that_know_it() -> None:
    spec = operator(cluster="moon", hostfile="/data/hosts").spec("run")
    assert spec.hostfile == "/data/hosts"
    spec = operator().spec("run")
    assert spec.hostfile is None


@pytest.mark.parametrize("path", ["hosts", "/etc/../hosts", "/run/elastic-training/tls/ca.crt", 7, "{{ params.path }}"])
def test_what_is_no_path_is_refused_at_parse(path: Any) -> None:
    with pytest.raises(InvalidSettings) as refused:
        operator(hostfile=path)
    assert refused.value.field == "hostfile"
