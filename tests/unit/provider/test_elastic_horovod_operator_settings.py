"""The operator's settings: what is refused at parse, and what rendering makes of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, task

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.fake import FakeCluster
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.pods import Hardware, Pods, PodShape, Volume
from elastic_training.settings import Recovery, Workers
from elastic_training.triggers.training_run import TrainingRunTrigger
from tests.unit.provider.operator_bench import NAME, deferred, operator, trying


class TestAtParse:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"command": []}, "command"),
            ({"command": "python train.py"}, "command"),
            ({"cluster": ""}, "cluster"),
            ({"cluster": "moon/base/camp"}, "cluster"),
            ({"cluster": "moon/Base"}, "cluster"),
            ({"cluster": None}, "cluster"),
            ({"cluster": "moon"}, "image"),
            ({"cluster": "moon", "image": "no image"}, "image"),
            ({"cluster": "moon", "pods": {"image": "trainer:1"}}, "pods"),
            ({"pods": Pods(hardware=Hardware(gpus=1))}, "pods.hardware"),
            ({"workers": 3}, "workers"),
            ({"recovery": "elastic"}, "recovery"),
            ({"on_finish": "forget"}, "on_finish"),
            ({"environment": {"A=B": "1"}}, "environment"),
            ({"fresh": "maybe"}, "fresh"),
        ],
    )
    def test_what_cannot_work_is_refused(self, settings: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            operator(**settings)
        assert caught.value.field == field

    def test_a_checkpoint_uri_that_no_store_knows_is_refused(self) -> None:
        with pytest.raises(InvalidSettings, match="checkpoint"):
            operator(checkpoint="ftp://host/runs")

    def test_what_only_rendering_shows_is_accepted(self) -> None:
        operator(
            command=["python", "{{ params.script }}"],
            checkpoint="{{ params.store }}",
            fresh="{{ params.fresh }}",
            workers=Workers(min="{{ params.least }}", max="{{ params.most }}"),
            cluster="{{ params.cluster }}",
            image="{{ params.image }}",
        )

    def test_the_pods_of_another_cluster_need_an_image_in_one_of_two_places(self) -> None:
        operator(cluster="moon/base", image="trainer:1")
        operator(cluster="moon", pods=Pods(image="trainer:1"))


class TestRendering:
    def test_settings_are_rendered_and_the_dags_own_stay_as_they_are(self) -> None:
        with DAG("nightly", schedule=None):
            workers = Workers(min=1, start=2, max="{{ params.most }}")
            train = operator(workers=workers, recovery=Recovery(mode="{{ params.mode }}"), fresh="{{ params.fresh }}")
        train.render_template_fields({"params": {"most": 7, "mode": "fixed", "fresh": False}})
        spec = train.spec("name")
        assert (spec.workers.maximum, spec.recovery.mode) == (7, "fixed")
        assert workers.max == "{{ params.most }}"

    def test_a_mapped_task_renders_too(self) -> None:
        with DAG("nightly", schedule=None):
            mapped = ElasticHorovodOperator.partial(
                task_id="train", workers=Workers(min=1, max="{{ params.most }}")
            ).expand(command=[["python", "a.py"], ["python", "b.py"]])
        train = mapped.unmap({"command": ["python", "b.py"]})
        train.render_template_fields({"params": {"most": 3}})
        assert isinstance(train, ElasticHorovodOperator)
        assert train.spec("name").workers.maximum == 3
        assert train.spec("name").command == ("python", "b.py")

    def test_the_output_of_another_task_makes_it_upstream(self) -> None:
        @task
        def prepare() -> str:
            return "data"

        with DAG("nightly", schedule=None):
            train = operator(command=["python", "train.py", "--data", prepare()])
        assert train.upstream_task_ids == {"prepare"}

    def test_the_cluster_is_rendered_and_told_what_its_pods_shall_be(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, Pods | None]] = []

        def get_cluster(name: str, pods: Pods | None = None) -> FakeCluster:
            asked.append((name, pods))
            return fake

        monkeypatch.setattr("elastic_training.operators.elastic_horovod.get_cluster", get_cluster)
        train = operator(
            deferrable=True,
            cluster="{{ params.cluster }}",
            image="trainer:{{ params.tag }}",
            workers=Workers(gpus="{{ params.gpus }}", shm="{{ params.shm }}"),
            pods=Pods(
                volumes=[Volume("{{ params.data }}", claim="data")],
                worker=PodShape(resources={"limits": {"memory": "{{ params.memory }}"}}),
            ),
        )
        params = {"cluster": "moon/base", "tag": 7, "gpus": 2, "shm": "1Gi", "data": "/data", "memory": "4Gi"}
        train.render_template_fields({"params": params})
        parting = deferred(train, trying())
        name, pods = asked[0]
        assert pods is not None
        assert (name, pods.image, pods.hardware) == ("moon/base", "trainer:7", Hardware(gpus=2, shm="1Gi"))
        assert pods.volumes[0].mount == "/data"
        assert pods.worker.resources == {"limits": {"memory": "4Gi"}}
        assert isinstance(parting.trigger, TrainingRunTrigger)
        assert parting.trigger.cluster == "moon/base"

    @pytest.mark.parametrize(
        ("cluster", "data", "field"), [("moon/Base", "/data", "cluster"), ("moon", "data", "pods.volumes[0].mount")]
    )
    def test_a_bad_rendered_pod_or_cluster_ends_the_task_without_retry(
        self, cluster: str, data: str, field: str
    ) -> None:
        train = operator(
            cluster="{{ params.cluster }}", image="t:1", pods=Pods(volumes=[Volume("{{ params.data }}", claim="data")])
        )
        train.render_template_fields({"params": {"cluster": cluster, "data": data}})
        with pytest.raises(AirflowFailException, match=re.escape(f"{field}: ")):
            train.execute({"ti": trying()})

    def test_this_machine_asks_for_no_pods_however_they_are_set(self, fake: FakeCluster) -> None:
        train = operator(deferrable=True, image="{{ params.image }}", pods=Pods(queue="{{ params.queue }}"))
        train.render_template_fields({"params": {"image": "", "queue": "No Name"}})
        deferred(train, trying())
        assert NAME in fake.runs

    def test_a_dry_run_prints_the_plan_and_creates_nothing(
        self, fake: FakeCluster, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train = operator()
        train.dry_run()
        assert "python train.py" in capsys.readouterr().out
        assert not fake.runs

    def test_a_bad_rendered_value_ends_the_task_without_retry_and_creates_nothing(self, fake: FakeCluster) -> None:
        rendered = operator(workers=Workers(min=5, max="{{ params.most }}"))
        rendered.render_template_fields({"params": {"most": 2}})
        with pytest.raises(AirflowFailException, match=r"workers\.min: 5 is more than workers\.max"):
            rendered.execute({"ti": trying()})
        assert not fake.runs
