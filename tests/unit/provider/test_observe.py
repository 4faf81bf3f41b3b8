"""What is to be observed, from the DAG file to the run's spec and its objects on Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elastic_runtime.documents import from_json, to_json
from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.observe import ObserveSpec, ProfileSpec, PrometheusSpec
from elastic_runtime.run.runobjects import PROMETHEUS_TOKEN
from elastic_runtime.run.spec import RunSpec
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Observe, Prometheus
from tests.unit.provider.manifests_bench import SPEC, container_of, everything, objects_of, pods_of


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Observe(timeline="maybe"), "observe.timeline"),
        (lambda: Observe(profile_steps=0), "observe.profile_steps"),
        (lambda: Observe(profile_steps=(1, 2, 3)), "observe.profile_steps"),
        (lambda: Observe(profile_steps=(5, 101)), "observe.profile_steps"),
        (lambda: Observe(profile_steps="many"), "observe.profile_steps"),
        (lambda: Observe(prometheus=True), "observe.prometheus"),
        (lambda: Observe(prometheus={"token": "x/y", "host": "a"}), "observe.prometheus.host"),
        (Prometheus, "observe.prometheus.token"),
        (lambda: Prometheus(token="secret"), "observe.prometheus.token"),
        (lambda: Prometheus(token="Not_A_Name/key"), "observe.prometheus.token"),
        (lambda: Prometheus(token="name/a b"), "observe.prometheus.token"),
        (lambda: Prometheus(token="/t", port=70000), "observe.prometheus.port"),
    ],
)
def test_what_cannot_work_is_refused_at_parse(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        make()
    assert refused.value.field == field


def operator(**arguments: Any) -> ElasticHorovodOperator:
    return ElasticHorovodOperator(task_id="train", command=["python", "train.py"], workers={"min": 1}, **arguments)


def test_files_need_a_store_and_figures_do_not() -> None:
    with pytest.raises(InvalidSettings, match="checkpoint_uri"):
        operator(observe=Observe(timeline=True))
    spec = operator(observe=Observe(prometheus=Prometheus(token="/run/token", port=0))).spec("run")
    assert spec.observe == ObserveSpec(prometheus=PrometheusSpec(0, "/run/token"))


def test_all_of_it_reaches_the_launcher() -> None:
    asked = {"timeline": "true", "profile_steps": 4, "tensorboard": True, "prometheus": {"token": "scrape/token"}}
    spec = operator(observe=asked, checkpoint_uri="file:///srv/runs").spec("run")
    prometheus = PrometheusSpec(9464, PROMETHEUS_TOKEN, "scrape/token")
    assert spec.observe == ObserveSpec(True, ProfileSpec(10, 4), True, prometheus)
    assert from_json(RunSpec, to_json(spec)) == spec


def test_samples_of_the_timeline_are_kept_where_there_is_a_store() -> None:
    assert operator().spec("run").observe == ObserveSpec()
    store = "file:///srv/runs"
    sampled = ObserveSpec(timeline=True, sampled=True)
    assert operator(checkpoint_uri=store).spec("run").observe == sampled
    assert operator(checkpoint_uri=store, observe={"timeline": " Samples "}).spec("run").observe == sampled
    assert operator(checkpoint_uri=store, observe=Observe(timeline=False)).spec("run").observe == ObserveSpec()


def test_a_scraper_reaches_the_launchers_port_alone_and_its_token_is_mounted_there() -> None:
    spec = replace(SPEC, observe=ObserveSpec(prometheus=PrometheusSpec(9464, PROMETHEUS_TOKEN, "scrape/token")))
    objects = everything(objects_of(spec=spec))
    job, workers = pods_of(objects_of(spec=spec))
    assert job["metadata"]["annotations"]["prometheus.io/port"] == "9464"
    assert {"name": "metrics", "containerPort": 9464} in container_of(job)["ports"]
    assert [port["name"] for port in objects["Service launcher"]["spec"]["ports"]] == ["agents", "metrics"]
    assert objects["NetworkPolicy network"]["spec"]["ingress"][1:] == [{"ports": [{"port": 9464, "protocol": "TCP"}]}]
    mounted = [each["secret"] for each in job["spec"]["volumes"] if each["name"] == "elastic-training-prometheus"]
    assert [(each["secretName"], each["items"]) for each in mounted] == [
        ("scrape", [{"key": "token", "path": "token"}])
    ]
    assert "elastic-training-prometheus" not in str(workers)
    assert "prometheus.io/scrape" not in str(workers)
    plain = everything(objects_of())
    assert len(plain["NetworkPolicy network"]["spec"]["ingress"]) == 1
    assert "prometheus" not in str(plain["Job launcher"])
