"""One training, which the browser's tests look at."""

from datetime import timedelta

from airflow.providers.common.compat.sdk import DAG

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.settings import Workers

with DAG("image_classifier", schedule=None, params={"script": "", "pace": "{}", "checkpoints": ""}):
    ElasticHorovodOperator(
        task_id="train",
        command=["python", "{{ params.script }}"],
        workers=Workers(min=1, start=2, max=4),
        checkpoint_uri="file://{{ params.checkpoints }}",
        environment={"PACE": "{{ params.pace }}", "OMP_NUM_THREADS": "1"},
        retries=1,
        retry_delay=timedelta(0),
    )
