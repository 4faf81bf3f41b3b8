"""The documentation's other blocks, fragments of DAGs and commands of a shell: each is run, or says why not.

``tests/unit/tools/test_document_fragments.py`` runs them, and fails on a block that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fragment:
    """A block of a DAG file, run inside of ``with DAG(...)``; its ``...,`` stands for a training's usual arguments."""

    page: str
    words: str
    """That no other block of the page has."""
    before: str = ""
    after: str = ""
    reason: str = ""
    """Why it is not run, and what is instead."""


_TASKS = """
train = ElasticHorovodOperator(task_id="train", command=["python", "train.py"], workers=Workers(min=1, max=4))
more = ScaleWorkersSensor(task_id="more", training_task_id="train", workers=4)
"""
FRAGMENTS = [
    Fragment("docs/airflow.md", "SizeWindow(workers=8", after="assert size_plan.otherwise == 2"),
    Fragment("docs/airflow.md", "DeleteTrainingOperator", _TASKS, "assert sweep.is_teardown"),
    Fragment("docs/pausing.md", "PauseTrainingOperator", after="assert by_night.training_dag_id == 'nightly'"),
    Fragment("docs/joining.md", "Join(", after="assert train.workers.join_spec().port == 7443"),
    Fragment("docs/pools.md", "cluster=TrainingPool(", after="assert nightly.cluster == digits.cluster"),
    Fragment("docs/pools.md", "pool = TrainingPool(", after="assert nightly.cluster == digits.cluster"),
    Fragment("docs/configuration.md", "hook.list_runs()", reason="needs runs: tests/unit/provider/test_connection.py"),
    Fragment(
        "docs/results.md", "class Tell",
        after="""
        from types import SimpleNamespace as Seen
        change = Seen(before=2, world_size=3, seconds=0.5)
        Tell.resized(change=change, status=None, task=Seen(dag_id="shown"))
        """,
    ),
    Fragment(
        "docs/tries.md", "CapacityDecisionOperator(",
        """
        settings = {"command": ["python", "train.py"], "checkpoint_uri": "s3://bucket/runs"}
        evaluate = EmptyOperator(task_id="evaluate", trigger_rule="one_success")
        """,
        'assert decide.downstream_task_ids >= {"again", "small", "other"}',
    ),
    Fragment("docs/tries.md", "retry_policy=TrainingRetryPolicy()"),
    Fragment("docs/airflow.md", "FakeCluster()", reason="needs a context: tests/unit/provider/operator_bench.py"),
    Fragment("docs/cost.md", "price_book="),
    Fragment("docs/failures.md", "grow_memory=1.5", after="assert train.recovery.up_to == '64Gi'"),
    Fragment("docs/ray.md", "ray=Ray(", after="assert train.ray.memory == '32G'"),
    Fragment("docs/slurm.md", "launcher_partition", after="assert train.slurm.qos == 'preemptible'"),
    Fragment("docs/spark.md", "Spark(cpus=4, grace", after="assert train.spark.cpus == 4"),
    Fragment("docs/spark.md", "df.repartition", reason="needs a Spark: tests/spark_dataframe"),
    Fragment("docs/cost.md", "Deadline(by=", "", "assert train.deadline.budget == 40"),
    Fragment(
        "docs/gpus.md",
        "pool_slots=4",
        after='assert (train.pool, train.pool_slots) == ("gpus", 4)',
    ),
    Fragment("docs/airflow.md", "Horovod(fusion_threshold_mb"),
    Fragment("docs/gpus.md", "queue=", after='assert pods.queue == "team"'),
    Fragment("docs/deploy.md", "image_pull_secrets", after="assert pods.image_pull_secrets"),
    Fragment(
        "docs/extending.md",
        'engine = "hub"',
        after="""
        train = ElasticHubOperator(task_id="train", command=["python", "train.py"], workers=Workers(min=1, max=2))
        assert train.engine == "hub"
        """,
    ),
    Fragment("docs/kubernetes.md", "claim=\"datasets\""),
    Fragment("docs/kubernetes.md", "Jupyter(token="),
    Fragment("docs/kubernetes.md", "dag.get_task", reason="prints manifests: tests/unit/provider tries dry_run"),
    Fragment("docs/observing.md", "Prometheus(token"),
    Fragment("docs/page.md", "render_report", reason="needs a run that is over: tests/unit/provider/test_report.py"),
    Fragment("docs/torchrun.md", "Restart(signal"),
]  # fmt: skip


@dataclass(frozen=True)
class Commands:
    """A block of shell: who runs it, or why nobody does."""

    page: str
    words: str
    """That no other block of the page has."""
    run_by: str = ""
    """A test, or what ``make`` is told."""
    reason: str = ""


_NETWORK = "fetches from a service outside"
_CLUSTER = "asks a cluster, or a registry, of the reader's own"
_MINUTES = "builds or starts for minutes what its own target of make is for"
COMMANDS = [
    Commands("README.md", "make demo", reason=_MINUTES),
    Commands("README.md", "pip wheel", run_by="tests/tutorial"),
    Commands("CONTRIBUTING.md", "make setup", reason=_MINUTES),
    Commands("docs/configuration.md", "airflow connections add", run_by="tests/unit/tools/test_document_fragments.py"),
    Commands("docs/cost.md", "curl --get", reason=_NETWORK),
    Commands("docs/cost.md", "elastic-training rehearse", run_by="tests/unit/provider/test_rehearse.py"),
    Commands("docs/examples.md", "make demo CLUSTER=kubernetes KUBECONFIG", reason=_CLUSTER),
    Commands("docs/examples.md", "tools/demo.py", reason=_MINUTES),
    Commands("docs/examples.md", "local_python", run_by="tests/unit/tools/test_document_fragments.py"),
    Commands("docs/pools.md", "refused while a run uses it", run_by="tests/unit/provider/test_training_pool.py"),
    Commands("docs/pools.md", "pool up team-a --on", run_by="tests/kubernetes/test_pools.py"),
    Commands("docs/pools.md", "elastic-training run", run_by="tests/unit/provider/test_command_run.py"),
    Commands("docs/pools.md", "--jupyter-python", run_by="tests/unit/provider/test_training_pool.py"),
    Commands("docs/getting-started.md", "-m venv venv", run_by="tests/tutorial"),
    Commands("docs/getting-started.md", "pip wheel", run_by="tests/tutorial"),
    Commands("docs/getting-started.md", "export AIRFLOW_HOME", run_by="tests/tutorial"),
    Commands("docs/getting-started.md", "airflow standalone", run_by="tests/tutorial"),
    Commands("docs/getting-started.md", "elastic-training runs", run_by="tests/tutorial"),
    Commands("docs/getting-started.md", "pkill", run_by="tests/tutorial"),
    Commands("docs/getting-started.md", "elastic-training scale", run_by="tests/tutorial"),
    Commands("docs/joining.md", "elastic-training token", run_by="tests/unit/provider/test_joining.py"),
    Commands("docs/gpus.md", "airflow pools set", reason="needs Airflow's database"),
    Commands("docs/gpus.md", "make image CUDA=1", reason=_MINUTES),
    Commands("docs/gpus.md", "make gpu-check", run_by="tests/gpu_steps/test_gpu_check.py"),
    Commands("docs/deploy.md", "make compose-up", reason="needs Docker; tests/compose runs its services as processes"),
    Commands("docs/deploy.md", "docker compose exec", reason="needs Docker"),
    Commands("docs/deploy.md", "helm upgrade", reason=_CLUSTER),
    Commands("docs/deploy.md", "create secret docker-registry", reason=_CLUSTER),
    Commands("docs/kubernetes.md", "deploy/rbac.yaml", reason=_CLUSTER),
    Commands("docs/kubernetes.md", "create clusterrolebinding", reason=_CLUSTER),
    Commands("docs/kubernetes.md", "get configmaps", reason=_CLUSTER),
    Commands("docs/kubernetes.md", "create secret generic notebook", reason=_CLUSTER),
    Commands("docs/tensorflow.md", "make image FAMILY=tensorflow", reason=_MINUTES),
    Commands("docs/project/testing-on-kubernetes.md", "tools/cluster up", reason=_MINUTES),
]
"""Whoever adds a block adds an entry."""
