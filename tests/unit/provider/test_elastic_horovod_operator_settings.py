"""The operator's settings: what is refused at parse, and what rendering makes of them."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, BaseOperator, task
from airflow.serialization.serialized_objects import DagSerialization

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import WorkersSpec
from elastic_training.clusters.fake import FakeCluster
from elastic_training.operators.checks import FOREIGN
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_training import ElasticTrainingOperator
from elastic_training.settings import Checkpoints, Pods, PodShape, Recovery, SecretRef, Volume, Workers
from elastic_training.settings.pods import Hardware
from elastic_training.triggers.training_run import TrainingRunTrigger
from tests.unit.provider.operator_bench import NAME, deferred, operator, trying

GROWS = Recovery(grow_memory=1.5, up_to="64Gi")


def limited(memory: str) -> Pods:
    """Workers with that memory limit."""
    return Pods(worker=PodShape(resources={"limits": {"memory": memory}}))


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
            ({"cluster": "moon", "image": "no image"}, "image"),
            ({"cluster": "moon", "pods": ["trainer:1"]}, "pods"),
            ({"cluster": "moon", "pods": {"imgae": "trainer:1"}}, "pods.imgae"),
            ({"cluster": "moon", "pods": {"hardware": Hardware(gpus=1)}}, "pods.hardware"),
            ({"cluster": "moon", "pods": {"volumes": [{"claim": "data"}]}}, "pods.volumes[0].mount"),
            ({"cluster": "moon", "pods": {"worker": {"resource": {}}}}, "pods.worker.resource"),
            ({"cluster": "moon", "kubernetes_conn_id": "sun"}, "kubernetes_conn_id"),
            ({"kubernetes_conn_id": "moon/Base"}, "cluster"),
            ({"pods": Pods(hardware=Hardware(gpus=1))}, "pods.hardware"),
            ({"continues": "train"}, "continues"),
            ({"continues": 7, "checkpoint_uri": "file:///runs"}, "continues"),
            ({"continues": "train", "checkpoint_uri": "file:///runs", "fresh": True}, "continues"),
            ({"workers": 3}, "workers"),
            ({"recovery": "elastic"}, "recovery"),
            ({"on_finish": "forget"}, "on_finish"),
            ({"on_finish": "delete", "wait_for_completion": False}, "on_finish"),
            ({"log_ranks": [-1]}, "log_ranks"),
            ({"log_ranks": False}, "log_ranks"),
            ({"log_ranks": "0"}, "log_ranks"),
            ({"skip_on_exit_code": 0}, "skip_on_exit_code"),
            ({"skip_on_exit_code": "99"}, "skip_on_exit_code"),
            ({"fail_on_exit_code": [2, 256]}, "fail_on_exit_code"),
            ({"fail_on_exit_code": True}, "fail_on_exit_code"),
            ({"environment": {"A=B": "1"}}, "environment"),
            ({"fresh": "maybe"}, "fresh"),
            ({"warm": "maybe"}, "warm"),
            ({"deferrable": "later"}, "deferrable"),
            ({"workers": {"least": 3}}, "workers.least"),
            ({"checkpoints": "s3://bucket/runs"}, "checkpoints"),
            ({"checkpoint_uri": Checkpoints()}, "checkpoint_uri"),
            ({"image": ["trainer:1"]}, "image"),
            ({"working_directory": 3}, "working_directory"),
            ({"environment": ["A"]}, "environment"),
            ({"recovery": {"grow_memory": 1.5, "up_to": "64Gi"}}, "recovery.grow_memory"),
            ({"cluster": "moon", "recovery": GROWS}, "recovery.grow_memory"),
            ({"cluster": "moon", "recovery": GROWS, "pods": limited("64Gi")}, "recovery.up_to"),
            ({"command": ["horovodrun", "-np", "2", "python", "train.py"]}, "command"),
            ({"command": ["/usr/bin/torchrun", "train.py"]}, "command"),
            ({"command": ["mpirun", "python", "train.py"]}, "command"),
            ({"command": ["python", "-m", "torch.distributed.run", "train.py"]}, "command"),
            ({"tolerations": []}, "tolerations"),
            ({"checkpoint_dir": "s3://bucket/runs"}, "checkpoint_dir"),
        ],
    )
    def test_what_cannot_work_is_refused(self, settings: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidSettings) as caught:
            operator(**settings)
        assert caught.value.field == field

    @pytest.mark.parametrize("limit", ["8Gi", "{{ params.limit }}"])
    def test_memory_may_grow_from_a_limit_that_is_given_in_time(self, limit: str) -> None:
        assert operator(cluster="moon", recovery=GROWS, pods=limited(limit)).recovery is GROWS

    @pytest.mark.parametrize("flag", ["false", "False", "0", "no"])
    def test_a_flag_that_is_a_word_is_read(self, flag: str) -> None:
        train = operator(warm=flag, deferrable=flag)
        assert (train.warm, train.deferrable) == (False, False)

    def test_where_checkpoints_go_is_not_how_often_and_the_remedy_says_so(self) -> None:
        with pytest.raises(InvalidSettings, match=r'a str is not a Checkpoints.*checkpoint_uri="s3://'):
            operator(checkpoints="s3://bucket/runs")

    @pytest.mark.parametrize("name", sorted(FOREIGN))
    def test_an_argument_of_another_operator_names_ours(self, name: str) -> None:
        with pytest.raises(InvalidSettings, match=re.escape(FOREIGN[name])):
            operator(**{name: "value"})
        with pytest.raises(InvalidSettings, match=re.escape(FOREIGN[name])):
            ElasticHorovodOperator.partial(task_id="train", **{name: "value"})

    def test_every_argument_of_kubernetes_pod_operator_is_ours_or_names_ours(self) -> None:
        def arguments(operator: type[Any]) -> set[str]:
            given = inspect.signature(inspect.unwrap(vars(operator)["__init__"])).parameters.values()
            return {each.name for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY}

        theirs = arguments(KubernetesPodOperator)
        assert len(theirs) > 70
        airflows = set(inspect.signature(inspect.unwrap(BaseOperator.__init__)).parameters)
        assert theirs - arguments(ElasticTrainingOperator) - airflows - FOREIGN.keys() == set()
        assert not FOREIGN.keys() & (airflows | arguments(ElasticTrainingOperator))

    @pytest.mark.parametrize("mapped", [False, True])
    def test_the_cluster_may_be_called_as_there(self, mapped: bool) -> None:
        if mapped:
            with DAG("nightly", schedule=None) as dag:
                ElasticHorovodOperator.partial(task_id="train", kubernetes_conn_id="moon", image="t:1").expand(
                    command=[["true"], ["false"]]
                )
            assert dag.get_task("train").partial_kwargs["cluster"] == "moon"
            return
        train = operator(kubernetes_conn_id="moon", image="trainer:1")
        assert train.cluster == "moon"

    def test_pods_may_be_a_mapping(self) -> None:
        plain = {
            "queue": "team",
            "secrets": [{"name": "hub", "key": "token", "env": "HUB"}],
            "volumes": [{"mount": "/data", "claim": "{{ params.claim }}"}],
            "worker": {"node_selector": {"pool": "gpu"}},
        }
        train = operator(cluster="moon", pods=plain)
        assert train.pods == Pods(
            queue="team",
            secrets=[SecretRef("hub", "token", "HUB")],
            volumes=[Volume("/data", claim="{{ params.claim }}")],
            worker=PodShape(node_selector={"pool": "gpu"}),
        )

    def test_an_argument_that_nobody_knows_is_left_to_airflow(self) -> None:
        with pytest.raises(TypeError, match="wokers"):
            operator(wokers=3)

    def test_a_checkpoint_uri_that_no_store_knows_is_refused(self) -> None:
        with pytest.raises(InvalidSettings, match="checkpoint"):
            operator(checkpoint_uri="ftp://host/runs")

    def test_what_only_rendering_shows_is_accepted(self) -> None:
        operator(
            command=["python", "{{ params.script }}"],
            checkpoint_uri="{{ params.store }}",
            fresh="{{ params.fresh }}",
            workers=Workers(min="{{ params.least }}", max="{{ params.most }}"),
            cluster="{{ params.cluster }}",
            image="{{ params.image }}",
        )

    def test_the_pods_of_another_cluster_need_an_image_in_one_of_two_places(self) -> None:
        operator(cluster="moon/base", image="trainer:1")
        operator(cluster="moon", pods=Pods(image="trainer:1"))
        with pytest.raises(
            AirflowFailException, match="image: no container image is set for the pods of cluster 'moon'"
        ):
            operator(cluster="moon").execute({"ti": trying()})


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

    @pytest.mark.parametrize(
        "given",
        [
            lambda output: {"command": output},
            lambda output: {"cluster": output},
            lambda output: {"image": output},
            lambda output: {"workers": output},
            lambda output: {"workers": Workers(min=output, start=output, max=output, slots=output)},
            lambda output: {"workers": Workers(gpus=output, shm=output, gpu_resource=output, spot=output)},
            lambda output: {"recovery": Recovery(mode=output, max_wait=output, reset_limit=output, notices=output)},
            lambda output: {"recovery": output},
            lambda output: {"checkpoints": Checkpoints(every=output, keep=output)},
            lambda output: {"checkpoints": output},
            lambda output: {"checkpoint_uri": output},
            lambda output: {"environment": output},
            lambda output: {"environment": {"DATA": output}},
            lambda output: {"pods": Pods(image=output, env={"A": output}, run_as_user=output)},
            lambda output: {"pods": Pods(volumes=[Volume(output, claim=output, read_only=output)])},
            lambda output: {
                "cluster": "moon",
                "pods": Pods(worker=PodShape(resources={"limits": {"memory": output}}, template=output)),
            },
            lambda output: {"pods": Pods(env=output, labels=output, volumes=output, command=output)},
            lambda output: {
                "cluster": "moon",
                "pods": Pods(image_pull_secrets=[output], worker=PodShape(resources=output)),
            },
            lambda output: {"fresh": output, "working_directory": output},
        ],
    )
    @pytest.mark.parametrize("mapped", [False, True])
    def test_every_setting_takes_the_output_of_another_task(self, given: Any, mapped: bool) -> None:
        with DAG("nightly", schedule=None) as dag:
            settings = {"cluster": "moon"} | given(BaseOperator(task_id="prepare").output)
            if mapped:
                settings = {"command": ["python", "train.py"], "workers": Workers()} | settings
                ElasticHorovodOperator.partial(task_id="train", **settings).expand(on_finish=["keep", "delete"])
            else:
                operator(**settings)
        assert dag.get_task("train").upstream_task_ids == {"prepare"}
        DagSerialization.to_dict(dag)

    def test_outputs_of_other_tasks_arrive(self) -> None:
        with DAG("nightly", schedule=None):
            prepare = BaseOperator(task_id="prepare")
            train = operator(
                command=prepare.output["command"],
                workers=prepare.output["workers"],
                recovery=Recovery(rank_failures=prepare.output["failures"]),
                checkpoint_uri=prepare.output["store"],
                checkpoints=Checkpoints(keep=prepare.output["keep"]),
                environment={"DATA": prepare.output["data"], "SEED": "{{ params.seed }}"},
            )
        said = {
            "command": ["python", "train.py"], "workers": {"min": 2, "max": 5}, "failures": 3,
            "store": "file:///store", "keep": 4, "data": "/data",
        }  # fmt: skip

        class TaskInstance:
            task = train

            def xcom_pull(self, *, task_ids: str, key: str, **_: Any) -> Any:
                return said[key]

        train.render_template_fields({"ti": TaskInstance(), "params": {"seed": 7}})
        spec = train.spec("name")
        assert (spec.command, spec.workers) == (("python", "train.py"), WorkersSpec(2, 2, 5, 1))
        assert (spec.recovery.rank_failures, spec.environment) == (3, {"DATA": "/data", "SEED": "7"})
        assert spec.checkpoint is not None
        assert (spec.checkpoint.uri, spec.checkpoint.keep) == ("file:///store/name", 4)

    def test_flags_of_volumes_are_read_as_they_are_rendered(self) -> None:
        pods = Pods(
            volumes=[
                Volume("/a", claim="a", read_only="{{ params.no }}"),
                Volume("/b", empty_dir="{{ params.yes }}", read_only="True"),
            ]
        )
        train = operator(cluster="moon", pods=pods, image="trainer:1")
        train.render_template_fields({"params": {"no": False, "yes": True}})
        first, second = train.pods.of_run(Workers()).volumes
        assert (first.read_only, second.read_only, second.empty_dir) == (False, True, True)
        with pytest.raises(InvalidSettings, match=r"volumes\[0\]\.read_only"):
            Pods(volumes=[Volume("/a", claim="a", read_only="perhaps")])

    def test_the_cluster_is_rendered_and_told_what_its_pods_shall_be(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, Pods | None]] = []

        def cluster_called(name: str, pods: Pods | None = None) -> FakeCluster:
            asked.append((name, pods))
            return fake

        monkeypatch.setattr("elastic_training.operators.training_arguments.cluster_called", cluster_called)
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

    def test_this_machine_asks_for_no_pods_however_they_are_set_and_says_so(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ElasticHorovodOperator, "log", log := Mock())
        train = operator(
            deferrable=True,
            cluster="{{ params.cluster }}",
            image="{{ params.image }}",
            pods=Pods(queue="{{ params.queue }}"),
            workers=Workers(spot="{{ params.spot }}", shm="2Gi"),
        )
        params = {"cluster": "local", "image": "trainer:1", "queue": "No Name", "spot": True}
        train.render_template_fields({"params": params})
        deferred(train, trying())
        assert NAME in fake.runs
        words = "Workers are processes of this machine: %s, which is about pods, changes nothing"
        log.warning.assert_any_call(words, "image, pods, workers.spot, workers.shm")

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


def test_every_field_with_a_renderer_is_shown_as_what_that_renders() -> None:
    train = operator(
        cluster="moon", environment={"SEED": 7}, pods=Pods(env={"A": "ü"}), recovery={"max_wait": 60}, size_plan=None
    )
    for field, renderer in train.template_fields_renderers.items():
        assert field in train.template_fields
        if renderer == "json":
            assert getattr(train, field) is None or isinstance(json.loads(str(getattr(train, field))), dict)
    assert str(train.pods) == '{"env": {"A": "ü"}}'


def test_no_word_of_a_command_is_read_as_a_file() -> None:
    train = operator(command=["bash", "run.sh"])
    train.resolve_template_files()
    assert train.command == ["bash", "run.sh"]
    assert not train.template_ext


class TestWarnings:
    def test_retries_without_a_checkpoint_are_warned_of_once(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = Mock()
        monkeypatch.setattr(ElasticHorovodOperator, "log", log)
        deferred(operator(deferrable=True, retries=2), trying(1))
        deferred(operator(deferrable=True, retries=2), trying(2))
        deferred(operator(deferrable=True, retries=2, checkpoint_uri="file:///store", fresh=True), trying(1))
        warned = [call.args[0] for call in log.warning.call_args_list if "checkpoint_uri" in call.args[0]]
        assert len(warned) == 1


class TestMapped:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"workers": {"min": 0}}, "workers.min"),
            ({"workers": 3}, "workers"),
            ({"command": "python train.py"}, "command"),
            ({"environment": {"SEED": None}}, "environment.SEED"),
            ({"checkpoint_uri": "nowhere://runs"}, "checkpoint_uri"),
            ({"recovery": {"mode": "magic"}}, "recovery.mode"),
            ({"warm": "maybe"}, "warm"),
            ({"log_ranks": [-1]}, "log_ranks"),
            ({"on_finish": "forget"}, "on_finish"),
            ({"fail_on_exit_code": 0}, "fail_on_exit_code"),
            ({"cluster": "local", "image": "trainer:1"}, "image"),
            ({"horovod": {"cycle": 1}}, "horovod.cycle"),
        ],
    )
    def test_a_bad_partial_is_refused_at_parse(self, settings: dict[str, Any], field: str) -> None:
        with DAG("nightly", schedule=None) as dag, pytest.raises(InvalidSettings) as caught:
            ElasticHorovodOperator.partial(task_id="train", **settings)
        assert caught.value.field == field
        assert not dag.task_ids

    @pytest.mark.parametrize(
        "settings",
        [
            {"image": "trainer:1", "pods": Pods(queue="team"), "workers": {"min": 1, "spot": True}},
            {"observe": {"timeline": True}},
            {"continues": "first"},
            {"command": ["python", "{{ params.script }}"], "workers": "{{ params.workers }}"},
        ],
    )
    def test_what_expand_may_complete_is_let_through(self, settings: dict[str, Any]) -> None:
        with DAG("nightly", schedule=None) as dag:
            ElasticHorovodOperator.partial(task_id="train", **settings).expand(working_directory=["/a", "/b"])
        assert dag.task_ids == ["train"]

    def test_a_bad_value_that_is_expanded_ends_its_task_without_retry(self) -> None:
        with DAG("nightly", schedule=None) as dag:
            ElasticHorovodOperator.partial(task_id="train", command=["python", "train.py"]).expand(
                workers=[{"min": 1}, {"min": 0}]
            )
        mapped = dag.get_task("train")
        with pytest.raises(AirflowFailException, match=r"workers\.min: 0 is less than 1"):
            mapped.unmap({"workers": {"min": 0}})


@pytest.mark.parametrize("value", [None, {"a": 1}, ["a"], object(), "nul\0"])
def test_a_variable_that_is_no_text_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(InvalidSettings) as caught:
        operator(environment={"SEED": 7, "DATA": value})
    assert caught.value.field == "environment.DATA"


class TestOnThisMachine:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"image": "trainer:1"}, "image"),
            ({"pods": Pods(queue="team")}, "pods"),
            ({"hostfile": "/data/hosts"}, "hostfile"),
            ({"workers": Workers(spot=True)}, "workers.spot"),
            ({"workers": {"shm": "2Gi"}}, "workers.shm"),
        ],
    )
    def test_what_is_about_pods_is_refused_at_parse(self, settings: dict[str, Any], field: str) -> None:
        for cluster in ({}, {"cluster": "local"}):
            with pytest.raises(InvalidSettings, match='cluster="CONNECTION"') as caught:
                operator(**cluster, **settings)
            assert caught.value.field == field
        operator(cluster="{{ params.cluster }}", **settings)
        operator(cluster="moon", **settings)

    @pytest.mark.parametrize(
        ("visible", "gpus", "words"),
        [
            ("", 2, "workers.gpus: a worker is to have 2, and this machine has no GPU that is visible. Write slots=2"),
            ("0", 2, "a worker is to have 2, and this machine has 1 visible GPU."),
            ("0,1", 2, ""),
            ("", 0, ""),
        ],
    )
    def test_gpus_that_are_not_there_are_no_cpus(
        self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, visible: str, gpus: int, words: str
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        train = operator(workers=Workers(gpus=gpus), deferrable=True)
        if not words:
            deferred(train, trying())
            return
        with pytest.raises(AirflowFailException, match=re.escape(words)):
            train.execute({"ti": trying()})
        assert not fake.runs

    def test_a_machine_type_only_gives_the_slots(self, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        deferred(operator(workers=Workers(machine="g5.12xlarge"), deferrable=True), trying())
        assert fake.runs[NAME].spec.workers.slots == 4
