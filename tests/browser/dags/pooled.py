"""Two trainings that share a pool, of different priorities."""

from airflow.providers.common.compat.sdk import DAG

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Workers

for name, priority, workers in (("digits", 10, 3), ("nightly", 1, 4)):
    with DAG(name, schedule=None, params={"script": "", "pace": "{}", "checkpoints": ""}):
        ElasticHorovodOperator(
            task_id="train",
            command=["python", "{{ params.script }}"],
            workers=Workers(min=1, start=workers, max=workers),
            checkpoint_uri="file://{{ params.checkpoints }}",
            environment={"PACE": "{{ params.pace }}", "OMP_NUM_THREADS": "1"},
            cluster="pool:team-a",
            priority_weight=priority,
        )
