"""A Spark cluster on this machine: ``tools/spark with -- COMMAND`` runs a command that finds it by ``SPARK_LAB``.

A standalone master and four workers of the pyspark in ``.venv-spark``, with Debian's Java, all on loopback, in a folder
that is removed in the end. ``SPARK_LAB`` is a JSON text: the master's URL, the interpreter with pyspark, the pages'
port and the number of workers. SIGPWR to a worker decommissions it, as ``decommission-worker.sh`` does. One that ends
is started again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from lab_kit import UNAVAILABLE, end, exit_at_sigterm, installed, until

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHON = REPOSITORY / ".venv-spark" / "bin" / "python"
JAVA = "openjdk-17-jre-headless"
NODES, CPUS = 4, 4


def main(arguments: list[str]) -> int:
    """Return the command's exit status, or :data:`UNAVAILABLE`."""
    if arguments[:2] != ["with", "--"] or len(arguments) < 3:
        sys.exit("usage: spark with -- COMMAND...")
    if not PYTHON.exists():
        print("LEFT OUT: no Spark here: make setup-spark", file=sys.stderr)
        return UNAVAILABLE
    if not installed({"java": JAVA}, "Java"):
        return UNAVAILABLE
    exit_at_sigterm()
    with lab() as found:
        return subprocess.run(arguments[2:], check=False, env=_environment(found)).returncode


def _environment(found: dict[str, object]) -> dict[str, str]:
    """Return the environment of a command, whose drivers read our settings."""
    return {**os.environ, "SPARK_LAB": json.dumps(found), "SPARK_CONF_DIR": str(found["settings"])}


@contextmanager
def lab() -> Iterator[dict[str, object]]:
    """Start it. Yields what ``SPARK_LAB`` holds; nothing of it is left afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True)))
        home = subprocess.run(
            [PYTHON, "-c", "import pyspark, os; print(os.path.dirname(pyspark.__file__))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        # A JVM that lives for a minute gains nothing from a second compiler and threads of a collector.
        frugal = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
        (folder / "spark-defaults.conf").write_text(
            f"spark.driver.extraJavaOptions {frugal}\nspark.executor.extraJavaOptions {frugal}\n"
        )
        options = f"{frugal} -Dspark.decommission.enabled=true -Dspark.worker.cleanup.enabled=false"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))},
            "SPARK_HOME": home,
            "LAB_OF_SPARK": str(folder),  # which executors and agents inherit, as nothing else that tells ours
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": options,
            "SPARK_WORKER_OPTS": options,
            "SPARK_DAEMON_MEMORY": "256m",
        }

        def start(name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{program}", *arguments]
            with (folder / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            stack.callback(end, process)
            return process

        # Spark takes ports that are free by then: others may have those that were a moment before.
        start("master", "master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        until(lambda: len(_ports(folder)) == 2, "the master is there", folder)
        port, page = _ports(folder)
        master = f"spark://127.0.0.1:{port}"

        def keep(number: int) -> None:
            name = f"n{number}"
            while not over.is_set():
                start(
                    name, "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                    "--cores", str(CPUS), "--memory", "4g", "--work-dir", str(folder / name), master,
                ).wait()  # fmt: skip

        over = Event()
        with ThreadPoolExecutor(NODES) as pool:
            for number in range(NODES):
                pool.submit(keep, number)
            try:
                until(lambda: _alive(page) == NODES, "all workers are there", folder)
                yield {"master": master, "settings": str(folder), "python": str(PYTHON), "page": page, "nodes": NODES}
            finally:
                over.set()
                stack.close()


def _ports(folder: Path) -> list[int]:
    """Of the master and of its page, as far as its log tells them."""
    log = (folder / "master.log").read_text()
    return [int(port) for port in re.findall("service '(?:sparkMaster|MasterUI)' on port ([0-9]+)", log)]


def _alive(page: int) -> int:
    """Workers that are alive; -1 while the master does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return len(re.findall('"state" : "ALIVE"', answer.read().decode()))
    except OSError:
        return -1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
