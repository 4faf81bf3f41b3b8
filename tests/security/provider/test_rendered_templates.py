"""What a template has yielded is checked like any other value, also when it looks like a template itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.clusters.registry import substituted
from elastic_training.settings import Checkpoints, Pods, PodShape, Recovery, SecretRef, Volume, Workers
from elastic_training.settings.templating import Settings, is_template
from tests.unit.provider.operator_bench import operator, trying

ASKED = "{{ params.value }}"
YIELDED = ["{{ 7 * 7 }}", "{% raw %}"]
RESOURCES = {"limits": {"cpu": ASKED}}

OF_PODS: dict[str, Pods] = {
    "pods.image": Pods(image=ASKED),
    "pods.image_pull_policy": Pods(image_pull_policy=ASKED),
    "pods.image_pull_secrets[0]": Pods(image_pull_secrets=[ASKED]),
    "pods.service_account": Pods(service_account=ASKED),
    "pods.worker_service_account": Pods(worker_service_account=ASKED),
    "pods.priority_class": Pods(priority_class=ASKED),
    "pods.scheduler_name": Pods(scheduler_name=ASKED),
    "pods.queue": Pods(queue=ASKED),
    "pods.labels['team']": Pods(labels={"team": ASKED}),
    "pods.run_as_user": Pods(run_as_user=ASKED),
    "pods.run_as_group": Pods(run_as_group=ASKED),
    "pods.fs_group": Pods(fs_group=ASKED),
    "pods.secrets[0].name": Pods(secrets=[SecretRef(ASKED)]),
    "pods.secrets[0].key": Pods(secrets=[SecretRef("name", key=ASKED, env="KEY")]),
    "pods.secrets[0].env": Pods(secrets=[SecretRef("name", key="key", env=ASKED)]),
    "pods.secrets[0].mount": Pods(secrets=[SecretRef("name", mount=ASKED)]),
    "pods.volumes[0].mount": Pods(volumes=[Volume(ASKED, claim="data")]),
    "pods.volumes[0].claim": Pods(volumes=[Volume("/data", claim=ASKED)]),
    "pods.volumes[0].secret": Pods(volumes=[Volume("/data", secret=ASKED)]),
    "pods.volumes[0].config_map": Pods(volumes=[Volume("/data", config_map=ASKED)]),
    "pods.volumes[0].empty_dir": Pods(volumes=[Volume("/data", empty_dir=ASKED)]),
    "pods.launcher.resources.limits.cpu": Pods(launcher=PodShape(resources=RESOURCES)),
    "pods.worker.resources.limits.cpu": Pods(worker=PodShape(resources=RESOURCES)),
    "pods.worker.node_selector['pool']": Pods(worker=PodShape(node_selector={"pool": ASKED})),
    "pods.worker.template": Pods(worker=PodShape(template=ASKED)),
    "pods.worker.tolerations[0].operator": Pods(worker=PodShape(tolerations=[{"operator": ASKED}])),
}
OF_TRAINING: dict[str, Workers | Recovery | Checkpoints] = {
    "workers.min": Workers(min=ASKED),
    "workers.start": Workers(start=ASKED),
    "workers.max": Workers(max=ASKED),
    "workers.slots": Workers(slots=ASKED),
    "workers.gpus": Workers(gpus=ASKED),
    "workers.gpu_resource": Workers(gpu_resource=ASKED),
    "workers.shm": Workers(shm=ASKED),
    "workers.spot": Workers(spot=ASKED),
    "recovery.mode": Recovery(mode=ASKED),
    "recovery.max_wait": Recovery(max_wait=ASKED),
    "recovery.start_timeout": Recovery(start_timeout=ASKED),
    "recovery.reset_limit": Recovery(reset_limit=ASKED),
    "recovery.rank_failures": Recovery(rank_failures=ASKED),
    "recovery.lease": Recovery(lease=ASKED),
    "recovery.unwatched": Recovery(unwatched=ASKED),
    "recovery.notices": Recovery(notices=ASKED),
    "checkpoints.every": Checkpoints(every=ASKED),
    "checkpoints.keep": Checkpoints(keep=ASKED),
}


def rendered(settings: Any, yielded: str) -> Any:
    assert isinstance(settings, Settings)
    return settings.rendered(lambda text: text.replace(ASKED, yielded))


def use(settings: Settings) -> None:
    """As ``execute`` does, before it creates anything."""
    match settings:
        case Checkpoints():
            settings.spec("file:///runs", 1, "run.1")
        case Recovery():
            settings.spec()
            settings.timing()
        case Workers():
            settings.spec()
            Pods(image="trainer:1").of_run(settings)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    """In the place of the local cluster."""
    with substituted("local", cluster := FakeCluster()):
        yield cluster


@pytest.mark.parametrize("yielded", YIELDED)
@pytest.mark.parametrize("field", OF_PODS)
def test_of_pods(field: str, yielded: str) -> None:
    pods = rendered(OF_PODS[field], yielded)
    with pytest.raises(InvalidSettings) as caught:
        pods.of_run(Workers())
    assert caught.value.field == field


@pytest.mark.parametrize("yielded", YIELDED)
@pytest.mark.parametrize("field", OF_TRAINING)
def test_of_training(field: str, yielded: str) -> None:
    settings = rendered(OF_TRAINING[field], yielded)
    with pytest.raises(InvalidSettings) as caught:
        use(settings)
    assert caught.value.field == field


@pytest.mark.parametrize("yielded", YIELDED)
@pytest.mark.parametrize("field", ["cluster", "image", "checkpoint_uri", "fresh"])
def test_of_the_operator_before_anything_is_made(field: str, yielded: str, fake: FakeCluster) -> None:
    settings: dict[str, Any] = {"image": "trainer:1", "cluster": "moon"} if field == "image" else {}
    wanted = operator(**{**settings, field: ASKED})
    wanted.render_template_fields({"params": {"value": yielded}})
    assert getattr(wanted, field) == yielded

    with pytest.raises(AirflowFailException, match=field.removesuffix("_uri")):
        wanted.execute({"ti": trying()})

    assert fake.runs == {}


def test_while_a_dag_is_parsed_it_is_a_template_as_ever() -> None:
    with pytest.raises(InvalidSettings):
        Pods(image="trainer:1").of_run(rendered(Workers(gpus=ASKED), YIELDED[0]))
    assert is_template(ASKED)
    Pods(image=ASKED, service_account=ASKED)
