from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DIGITS = Path(__file__).resolve().parents[3] / "dags" / "digits_elastic.py"
HEAVY = ("torch", "horovod", "sklearn", "numpy", "boto3", "kubernetes", "kubernetes_asyncio")
DAG_FILE = """
from datetime import timedelta
from airflow.providers.common.compat.sdk import DAG
from elastic_training.decorators.training import elastic_horovod_task
from elastic_training.operators.elastic_horovod import ElasticHorovodOperator
from elastic_training.operators.elastic_torch import ElasticTorchOperator
from elastic_training.operators.end_training import CancelTrainingOperator, DeleteTrainingOperator
from elastic_training.operators.reclaim_worker import ReclaimWorkerOperator
from elastic_training.sensors.scale_workers import ScaleWorkersSensor
from elastic_training.settings import PodShape, Pods, SecretRef, Volume
from elastic_training.settings import Checkpoints, Recovery, Workers

with DAG("nightly", schedule=None, params={"most": 4}):
    train = ElasticHorovodOperator(
        task_id="train",
        command=["python", "train.py", "--data", "{{ dag_run.conf['data'] }}"],
        workers=Workers(min=1, start=2, max="{{ params.most }}"),
        checkpoint_uri="file:///tmp/checkpoints",
        checkpoints=Checkpoints(every=30),
        recovery=Recovery(max_wait=timedelta(minutes=5)),
        deferrable=True,
    )
    pods = Pods(
        volumes=[Volume("/data", claim="data")],
        secrets=[SecretRef("aws")],
        worker=PodShape(resources={"limits": {"memory": "8Gi"}}, template={"spec": {"dnsPolicy": "Default"}}),
    )
    ElasticHorovodOperator(
        task_id="in_pods",
        command=["python", "train.py"],
        cluster="kubernetes_default",
        image="registry/trainer:1",
        workers=Workers(min="{{ params.most }}", start=4, max=8, gpus=1, shm="2Gi", spot=True),
        pods=pods,
    )
    ElasticHorovodOperator(
        task_id="shipped", command=["python", "train.py"], workers=Workers(), scripts=["{{ params.model }}/train.py"]
    )
    ElasticTorchOperator(task_id="by_torch", command=["python", "train.py"], workers=Workers())
    more = ScaleWorkersSensor(task_id="more", training_task_id="train", workers=3)
    less = ReclaimWorkerOperator(task_id="less", training_task_id="train")
    more >> less
    train >> DeleteTrainingOperator(task_id="sweep", training_task_id="train").as_teardown()
"""


FILES = {
    "import elastic_training": "import elastic_training",
    "a DAG file": DAG_FILE,
    "digits_elastic.py": f"import runpy; runpy.run_path({str(DIGITS)!r})",
}
REPORT = f"""
import json, sys
heavy = {{}}
for name, code in json.loads(sys.argv[1]).items():
    exec(compile(code, name, "exec"), {{}})
    heavy[name] = [module for module in {HEAVY!r} if module in sys.modules]
print(json.dumps(heavy))
"""


def test_parsing_a_dag_imports_nothing_heavy() -> None:
    """One after the other in one process: Airflow alone takes two seconds to import."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(FILES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {name: [] for name in FILES}


def test_what_airflow_asks_for_while_it_is_imported_imports_no_airflow() -> None:
    """Else a module of ours that is the first to import Airflow would be asked for its names half done."""
    code = """if True:
        import sys
        from elastic_training.get_provider_info import get_provider_info
        get_provider_info()
        assert not [name for name in sys.modules if name.partition(".")[0] == "airflow"]
        import elastic_training.clusters.kubernetes.connection"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
