"""Runs docker-compose.yml without Docker: each service's command as a process, its environment as the file has it.

Names of containers become addresses of this machine; the Kubernetes is the one of KUBECONFIG, with the trainer's image
of the tests. Then two of the examples run there, to success: a training alone, and one between pods that prepare and
evaluate, with S3 between them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import boto3  # noqa: E402 - what comes from tools/ needs the path
from botocore.exceptions import BotoCoreError  # noqa: E402

from demo_kit.airflow_api import AirflowApi  # noqa: E402
from demo_kit.airflow_stack import COMPONENTS, AirflowStack, StackSettings  # noqa: E402
from tests.airflow.postgres import postgres  # noqa: E402
from tests.compose import file  # noqa: E402
from tests.kubernetes_namespace import IMAGE  # noqa: E402

DAG_IDS = ("example_form", "example_pods_over_s3")
NAMESPACE, BUCKET = "training", "trainings"
S3 = "http://172.30.0.9:9000"
OF_THE_STACK = ("AIRFLOW__API__BASE_URL", "AIRFLOW__CORE__EXECUTION_API_SERVER_URL")
"""Settings that name a port, which is another here."""
SERVICE_TIMEOUT = 600.0
"""Seconds for what takes a minute on a machine that has nothing else to do."""
FERNET_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def main() -> int:
    """Exit status 1 when an example fails."""
    host = os.environ.get("ELASTIC_TRAINING_CLUSTER_HOST", "127.0.0.1")
    values = {**dict.fromkeys(file.variables(), "of-this-run-alone-0123456789"), "FERNET_KEY": FERNET_KEY}
    with tempfile.TemporaryDirectory(prefix="compose-") as folder, ExitStack() as open_until_the_end:
        config = Path(folder, "config")
        here = {
            S3: f"http://{host}:9000",
            "/kubernetes/ ": "/127.0.0.1/ ",
            "/config/kubeconfig.yaml": os.environ["KUBECONFIG"],
            "/config/config": str(config),
            "/kubernetes/config": str(config),
            "/deploy/": f"{ROOT / 'deploy'}/",
            "elastic-training/trainer:compose": IMAGE,
        }
        services = file.services(values)
        command, environment = services["s3"]["command"], services["scheduler"]["environment"]
        open_until_the_end.enter_context(server([host if word == "0.0.0.0" else word for word in command], here))
        run_to_its_end("bucket", [sys.executable, *services["bucket"]["command"][1:]], here)
        run_to_its_end("namespace", [*services["namespace"]["entrypoint"], *services["namespace"]["command"]], here)
        open_until_the_end.callback(delete_namespace, config)
        database = open_until_the_end.enter_context(postgres())
        settings = {
            name: at_home(value, here)
            for name, value in environment.items()
            if name not in OF_THE_STACK and "SQL_ALCHEMY" not in name and "DAGS_FOLDER" not in name
        }
        stack = AirflowStack(
            StackSettings(Path(sys.executable), Path(folder, "home"), ROOT / "dags/examples", database, settings)
        )
        try:
            say(f"starting {', '.join(COMPONENTS)}")
            stack.start()
            states = trained(stack)
        finally:
            left = stack.stop()
        files = stored(at_home(S3, here))
    say(f"{states}; {files} objects in the bucket; left behind: {left or 'nothing'}")
    return int(set(states.values()) != {"success"} or not files or bool(left))


def trained(stack: AirflowStack) -> dict[str, str]:
    """How a run of each example ends."""
    with AirflowApi(stack.url) as api:
        for dag_id in DAG_IDS:
            stack.wait_until_healthy(api, dag_id)
        say(f"all are healthy; {' and '.join(DAG_IDS)} are triggered")
        runs = {dag_id: api.trigger(dag_id, {}) for dag_id in DAG_IDS}
        deadline = time.monotonic() + SERVICE_TIMEOUT
        told: dict[str, dict[str, str]] = {}
        while True:
            stack.check()
            if (tasks := {dag_id: api.task_states(dag_id, run_id) for dag_id, run_id in runs.items()}) != told:
                say(str(tasks))
                told = tasks
            states = {dag_id: api.run_state(dag_id, run_id) for dag_id, run_id in runs.items()}
            if all(state in ("success", "failed") for state in states.values()) or time.monotonic() > deadline:
                return states
            time.sleep(1.0)


def at_home(text: str, here: Mapping[str, str]) -> str:
    """With this machine's names in the place of the containers'."""
    for theirs, ours in here.items():
        text = text.replace(theirs, ours)
    return text


def run_to_its_end(name: str, words: list[str], here: Mapping[str, str]) -> None:
    """Raises CalledProcessError."""
    say(f"running {name}")
    subprocess.run([at_home(word, here) for word in words], check=True)


@contextmanager
def server(words: list[str], here: Mapping[str, str]) -> Iterator[None]:
    """The S3 server, for the block."""
    say(f"starting {' '.join(words)}")
    program = Path(sys.executable).with_name(words[0])
    with subprocess.Popen([program, *words[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:  # Its own end is an end of waiting; a bucket cannot be made then.
                with suppress(BotoCoreError):
                    s3_client(at_home(S3, here)).list_buckets()
                    break
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def s3_client(url: str) -> Any:
    """With the credentials of the file's connection."""
    keys = {"aws_access_key_id": "compose", "aws_secret_access_key": "compose"}
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)


def stored(url: str) -> int:
    """Objects in the bucket."""
    return int(s3_client(url).list_objects_v2(Bucket=BUCKET)["KeyCount"])


def delete_namespace(config: Path) -> None:
    """And with it, whatever is left of a training."""
    words = ["kubectl", f"--kubeconfig={config}", "delete", "namespace", NAMESPACE, "--wait=false"]
    subprocess.run(words, check=False)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
