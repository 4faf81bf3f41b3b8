"""A training whose store takes connections and never answers. The task fails before it needs the store."""

from airflow.providers.common.compat.sdk import DAG

from elastic_training.operators.elastic_horovod import ElasticHorovodOperator

with DAG("silent", schedule=None):
    ElasticHorovodOperator(
        task_id="train",
        command=["python", "train.py"],
        workers={"min": 1, "start": 1, "max": 1},
        checkpoint_uri="s3://bucket/runs",
        checkpoint_conn_id="silent",
        fresh="{{ 'perhaps' }}",
    )
