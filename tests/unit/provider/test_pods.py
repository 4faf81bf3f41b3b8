from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import V1Toleration

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.runobjects import TLS_FOLDER
from elastic_training.settings import Pods, PodShape, SecretRef, Volume, Workers
from elastic_training.settings.pods import Hardware


def shape(**settings: Any) -> Pods:
    return Pods(worker=PodShape(**settings))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Pods(image="a b"), "pods.image"),
        (lambda: Pods(image_pull_policy="Sometimes"), "pods.image_pull_policy"),
        (lambda: Pods(image_pull_secrets="registry"), "pods.image_pull_secrets"),
        (lambda: Pods(image_pull_secrets=["ok", "Not ok"]), "pods.image_pull_secrets[1]"),
        (lambda: Pods(command="tini --"), "pods.command"),
        (lambda: Pods(service_account="Launcher"), "pods.service_account"),
        (lambda: Pods(priority_class="High Up"), "pods.priority_class"),
        (lambda: Pods(queue="a" * 64), "pods.queue"),
        (lambda: Pods(env={"A=B": "1"}), "pods.env"),
        (lambda: Pods(env={"ELASTIC_TRAINING_RUN": "mine"}), "pods.env"),
        (lambda: Pods(env={"A": None}), "pods.env['A']"),
        (lambda: Pods(labels={"team": "not one word"}), "pods.labels['team']"),
        (lambda: Pods(labels={"elastic-training/run": "mine"}), "pods.labels"),
        (lambda: Pods(labels={"app.kubernetes.io/managed-by": "me"}), "pods.labels"),
        (lambda: Pods(annotations={"note": 3}), "pods.annotations['note']"),
        (lambda: Pods(run_as_user=0), "pods.run_as_user"),
        (lambda: Pods(fs_group="staff"), "pods.fs_group"),
        (lambda: Pods(secrets=[SecretRef("a", key="k")]), "pods.secrets[0]"),
        (lambda: Pods(secrets=[SecretRef("a", env="K")]), "pods.secrets[0]"),
        (lambda: Pods(secrets=[SecretRef("a", key="k", env="K", mount="/k")]), "pods.secrets[0]"),
        (lambda: Pods(secrets=[SecretRef("a"), SecretRef("A")]), "pods.secrets[1].name"),
        (lambda: Pods(secrets=["a"]), "pods.secrets"),
        (lambda: Pods(volumes=Volume("/data", claim="data")), "pods.volumes"),
        (lambda: Pods(volumes=[Volume("data", claim="data")]), "pods.volumes[0].mount"),
        (lambda: Pods(volumes=[Volume("/data")]), "pods.volumes[0]"),
        (lambda: Pods(volumes=[Volume("/data", claim="a", secret="b")]), "pods.volumes[0]"),
        (lambda: Pods(volumes=[Volume("/data", empty_dir="much")]), "pods.volumes[0].empty_dir"),
        (lambda: Pods(volumes=[Volume("/data", raw={"hostPath": {"path": "/"}})]), "pods.volumes[0].raw"),
        (lambda: Pods(volumes=[Volume("/data", claim="a", sub_path="../b")]), "pods.volumes[0].sub_path"),
        (lambda: Pods(volumes=[Volume(TLS_FOLDER, claim="a")]), "pods.volumes[0].mount"),
        (
            lambda: Pods(volumes=[Volume("/a", claim="a")], secrets=[SecretRef("b", mount="/a/")]),
            "pods.volumes[0].mount",
        ),
        (lambda: Pods(launcher={"resources": {}}), "pods.launcher"),
        (lambda: shape(resources={"cpu": 1}), "pods.worker.resources"),
        (lambda: shape(resources={"limits": {"gpus": 1}}), "pods.worker.resources.limits"),
        (lambda: shape(resources={"limits": {"memory": "8 GB"}}), "pods.worker.resources.limits.memory"),
        (
            lambda: shape(resources={"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}),
            "pods.worker.resources.requests.cpu",
        ),
        (lambda: shape(node_selector={"pool": True}), "pods.worker.node_selector['pool']"),
        (lambda: shape(affinity={"node_affinity": {}}), "pods.worker.affinity"),
        (lambda: shape(tolerations={"key": "a"}), "pods.worker.tolerations"),
        (lambda: shape(tolerations=[{"key": "a", "effekt": "NoSchedule"}]), "pods.worker.tolerations[0]"),
        (lambda: shape(tolerations=[{"key": "a", "effect": "Never"}]), "pods.worker.tolerations[0].effect"),
        (lambda: shape(template="/there/is/no.yaml"), "pods.worker.template"),
        (lambda: shape(template={"containers": []}), "pods.worker.template"),
        (lambda: shape(template=3), "pods.worker.template"),
    ],
)
def test_what_cannot_work_is_refused_with_its_full_name(make: Callable[[], Pods], field: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.remedy.startswith("Write ")


def test_a_template_of_a_pod_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\n")
    shape(template=tmp_path / "pod.yaml")
    shape(template=str(tmp_path / "pod.yaml"))
    shape(template="{{ params.template }}", tolerations=[V1Toleration(key="dedicated")])


TEMPLATE = "{{ params.value }}"
TEMPLATED = Pods(
    image=TEMPLATE,
    image_pull_policy=TEMPLATE,
    image_pull_secrets=[TEMPLATE],
    command=[TEMPLATE],
    service_account=TEMPLATE,
    worker_service_account=TEMPLATE,
    env={"A": TEMPLATE},
    secrets=(SecretRef(TEMPLATE, key=TEMPLATE, env=TEMPLATE), SecretRef(TEMPLATE, mount=TEMPLATE)),
    volumes=(Volume(TEMPLATE + "/data", claim=TEMPLATE, sub_path=TEMPLATE),),
    labels={"team": TEMPLATE},
    annotations={"note": TEMPLATE},
    priority_class=TEMPLATE,
    scheduler_name=TEMPLATE,
    queue=TEMPLATE,
    run_as_user=TEMPLATE,
    run_as_group=TEMPLATE,
    fs_group=TEMPLATE,
    launcher=PodShape(
        resources={"limits": {"memory": TEMPLATE}},
        node_selector={"pool": TEMPLATE},
        affinity={"nodeAffinity": {"deep": [{"down": TEMPLATE}]}},
        tolerations=[{"key": TEMPLATE, "operator": TEMPLATE}],
        template={"spec": {"containers": [{"name": "base", "env": [{"name": "A", "value": TEMPLATE}]}]}},
    ),
)


def strings_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if is_dataclass(value):
        return [text for field in fields(value) for text in strings_in(getattr(value, field.name))]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for each in values for text in strings_in(each)]


def test_everything_may_be_a_template_and_is_rendered_wherever_it_stands() -> None:
    before = strings_in(TEMPLATED)
    rendered = TEMPLATED.rendered(lambda text: text.replace(TEMPLATE, "rendered"))
    assert sum(TEMPLATE in text for text in before) > 20
    assert strings_in(rendered) == [text.replace(TEMPLATE, "rendered") for text in before]
    assert strings_in(TEMPLATED) == before
    assert isinstance(rendered.volumes[0], Volume)
    assert isinstance(rendered.launcher, PodShape)


def test_what_a_template_yields_is_checked_before_a_run_is_made_of_it() -> None:
    bad = Pods(labels={"team": TEMPLATE}).rendered(lambda text: text.replace(TEMPLATE, "two words"))
    with pytest.raises(InvalidSettings, match=r"pods\.labels\['team'\]: 'two words'"):
        bad.of_run(Workers())


def test_a_run_has_the_operators_image_and_the_workers_hardware() -> None:
    workers = Workers(gpus="2", gpu_resource="amd.com/gpu", shm="", spot="True")
    pods = Pods(image="everywhere:1").of_run(workers, "here:2")
    assert (pods.image, pods.hardware) == ("here:2", Hardware(gpus=2, gpu_resource="amd.com/gpu", spot=True))
    assert Pods(image="everywhere:1").of_run(Workers(), "").image == "everywhere:1"
    assert Pods().of_run(Workers()).image is None


def test_two_places_for_the_same_gpus_are_refused() -> None:
    pods = shape(resources={"limits": {"nvidia.com/gpu": 1}})
    assert pods.of_run(Workers()).hardware.gpus == 0
    with pytest.raises(InvalidSettings, match=r"pods\.worker\.resources\.limits: nvidia\.com/gpu stands here and"):
        pods.of_run(Workers(gpus=1))


def test_shared_memory_has_its_place_to_itself() -> None:
    pods = Pods(volumes=[Volume("/dev/shm", empty_dir=True)])
    pods.of_run(Workers())
    with pytest.raises(InvalidSettings, match=r"pods\.volumes\[0\]\.mount: /dev/shm is the place of workers\.shm"):
        pods.of_run(Workers(shm="1Gi"))


@given(st.dictionaries(st.from_regex(r"[A-Za-z]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True), st.text()))
def test_labels_are_valid_or_refused_by_name(labels: dict[str, str]) -> None:
    try:
        pods = Pods(labels=labels)
    except InvalidSettings as error:
        wrong = error.field.removeprefix("pods.labels[").removesuffix("]")
        assert wrong in {repr(key) for key in labels}
    else:
        assert all(len(value) <= 63 for value in pods.labels.values())
