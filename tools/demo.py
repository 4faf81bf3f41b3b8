"""``make demo``: a DAG of ``digits_elastic.py`` through a real Airflow, with figures and a report at the end.

Starts an Airflow of its own under ``build/demo`` (API server, scheduler, DAG processor, triggerer), runs the DAG,
stops everything again, also on ctrl-C and on failure (with ``--keep``, a run that has ended is left to be looked at
until ctrl-C), and leaves ``build/demo.json`` and ``build/demo.html``. The exit
status is 0 only when the run did what the demo promises: world sizes 2, 3 and 2 in this order, an accuracy of at
least 0.97, no sample lost and none trained on twice.

Run it with the interpreter of Airflow's environment; ``ELASTIC_TRAINING_TRAINER_PYTHON`` names the trainer's, by
default ``.venv-trainer/bin/python``. With ``--cluster kubernetes`` the workers are pods of the cluster of
``KUBECONFIG``: run it through ``tools/cluster with``, as ``make demo CLUSTER=kubernetes`` does. With ``--cluster
slurm`` they are jobs of the Slurm of ``SLURM_CONF``, as ``make demo CLUSTER=slurm`` has it by ``tools/slurm with``;
likewise with ``--cluster ray``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "dags"))

from rich.console import Console  # noqa: E402  # the path above has to be there first
from rich.table import Table  # noqa: E402

from demo_kit.airflow_api import AirflowApi  # noqa: E402
from demo_kit.airflow_stack import AirflowStack, StackFailed  # noqa: E402
from demo_kit.digits_run import DAG_IDS, FINAL, DigitsRun, local_trainings, stack_settings  # noqa: E402
from demo_kit.look_back import LookBack, Phase, problems  # noqa: E402
from demo_kit.progress import ProgressLine  # noqa: E402
from demo_kit.trainings import RayTrainings, SlurmTrainings, SparkTrainings, Trainings  # noqa: E402
from elastic_training.report import render_report  # noqa: E402

BUILD = REPOSITORY / "build"
JSON, HTML = BUILD / "demo.json", BUILD / "demo.html"
LONGEST = 900.0
"""Seconds that the DAG run may take."""
NO_IMAGE = (
    "no image can be loaded into the cluster of KUBECONFIG from here: push the one that `make image` has built to a "
    "registry that its nodes can pull from, and name it, as in "
    "`make demo CLUSTER=kubernetes IMAGE=registry.example/trainer:1`"
)


def main() -> int:
    """The exit status."""
    arguments = _arguments()
    console = Console()
    for old in (JSON, HTML):
        old.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        failures = _run(arguments, console)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        return 130
    except (StackFailed, TimeoutError) as error:
        console.print(f"[bold red]failed[/]: {error}", highlight=False, soft_wrap=True)
        return 1
    for failure in failures:
        console.print(f"[bold red]not as promised[/]: {failure}", highlight=False)
    return 1 if failures else 0


def _run(arguments: argparse.Namespace, console: Console) -> list[str]:
    """The run, with its figures and report; what went wrong about it. Nothing of it is left running."""
    began = time.time()
    failures: list[str] = []
    with ExitStack() as exit_stack:
        progress = exit_stack.enter_context(ProgressLine(console))
        trainings = exit_stack.enter_context(_trainings(arguments, progress))
        stack = AirflowStack(stack_settings(Path(sys.executable), BUILD / "demo", trainings))
        exit_stack.enter_context(_stopped_at_the_end(stack, trainings, progress, failures))
        progress.show("Airflow starts: database, API server, scheduler, DAG processor, triggerer")
        stack.start()
        with AirflowApi(stack.url) as api:
            stack.wait_until_healthy(api, DAG_IDS[arguments.engine])
            start = Phase("airflow_start", began, time.time() - began)
            console.print(f"Airflow is up at {stack.url}, logs in {stack.logs}", highlight=False, soft_wrap=True)
            params = {"epochs": arguments.epochs, "seed": arguments.seed}
            run = DigitsRun(stack, api, trainings, params, DAG_IDS[arguments.engine])
            deadline = time.monotonic() + LONGEST
            while (snapshot := run.snapshot()).state not in FINAL:
                stack.check()
                progress.show_run(snapshot)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the DAG run is not over after {LONGEST:.0f} s: {dict(snapshot.tasks)}")
                time.sleep(0.5)
            progress.show_run(snapshot)
            if snapshot.state != "success":
                failures.append(f"the DAG run ended as {snapshot.state}: {dict(snapshot.tasks)}")
                _print_failed_tasks(run, snapshot.tasks, console)
            look = run.look_back(arguments.epochs, before=(start,))
        if look is not None:
            failures += problems(look.outcome)
            _write(look)
        if arguments.keep:
            progress.pause()
            if look is not None:
                _print(look, console)
            _wait(stack, run, console)
    if look is not None and not arguments.keep:
        _print(look, console)
    return failures


@contextmanager
def _trainings(arguments: argparse.Namespace, progress: ProgressLine) -> Iterator[Trainings]:
    """Where the workers run."""
    if arguments.cluster == "local":
        yield local_trainings(arguments.trainer_python, BUILD / "demo")
        return
    if arguments.cluster == "slurm":
        yield SlurmTrainings(BUILD / "demo" / "training", arguments.trainer_python)
        return
    if arguments.cluster == "spark":
        yield SparkTrainings(BUILD / "demo" / "training", arguments.trainer_python)
        return
    if arguments.cluster == "ray":
        yield RayTrainings(BUILD / "demo" / "training", arguments.trainer_python)
        return
    from demo_kit.kubernetes_trainings import prepared, prepared_elsewhere

    progress.show("the cluster is prepared: image, namespace, rights, the claim for the data")
    kind = os.environ.get("ELASTIC_TRAINING_CLUSTER_KIND", "kubeconfig")
    if kind == "kubeconfig" and not arguments.image:
        raise StackFailed(NO_IMAGE)
    nodes_are_here = kind == "debian" and not arguments.image
    # Not under the repository: pods see it at the same path, which they could not enter where that is /root's.
    with TemporaryDirectory(prefix="elastic-training-demo-") as folder, ExitStack() as exit_stack:
        place = ("elastic-training-demo", Path(folder), arguments.trainer_python)
        prepare = prepared(*place) if nodes_are_here else prepared_elsewhere(*place, arguments.image)
        yield exit_stack.enter_context(prepare)


@contextmanager
def _stopped_at_the_end(
    stack: AirflowStack, trainings: Trainings, progress: ProgressLine, failures: list[str]
) -> Iterator[None]:
    try:
        yield
    finally:
        # A second ctrl-C out of impatience must not leave half of it running.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        progress.show("everything is being stopped")
        try:
            trainings.end_all()
        finally:
            failures += [f"a process did not end by itself and was killed: {left}" for left in stack.stop()]


def _wait(stack: AirflowStack, run: DigitsRun, console: Console) -> None:
    """Until ctrl-C, which here is no interruption. Raises StackFailed when a component ends by itself."""
    console.rule("Airflow stays up")
    console.print(
        f"the training's page: [bold]{run.page}[/]\n"
        "log in:              there is nothing to enter: whoever reaches this port of the loopback interface is admin\n"
        "end it:              ctrl-C; all that was started is stopped then",
        highlight=False,
        soft_wrap=True,
    )
    try:
        while True:
            stack.check()
            time.sleep(1.0)
    except KeyboardInterrupt:
        console.print()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run a DAG of digits_elastic.py through a real Airflow.")
    trainer = os.environ.get("ELASTIC_TRAINING_TRAINER_PYTHON") or REPOSITORY / ".venv-trainer" / "bin" / "python"
    parser.add_argument("--trainer-python", type=Path, default=Path(trainer), help="default: %(default)s")
    parser.add_argument(
        "--cluster",
        choices=("local", "kubernetes", "slurm", "spark", "ray"),
        default="local",
        help="where the workers run; default: %(default)s",
    )
    parser.add_argument("--image", help="of the pods, which the cluster's nodes have or can pull")
    parser.add_argument("--engine", choices=DAG_IDS, default="horovod", help="of the training; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="leave Airflow up until ctrl-C once the run has ended")
    parser.add_argument("--epochs", type=int, default=32, help="passes over the train shard; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of split, weights and order; default: %(default)s")
    arguments = parser.parse_args()
    if not arguments.trainer_python.is_file():
        parser.error(f"no interpreter at {arguments.trainer_python}; run `make setup`, or name it by --trainer-python")
    return arguments


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print_failed_tasks(run: DigitsRun, tasks: Mapping[str, str], console: Console) -> None:
    for task, state in tasks.items():
        if state == "failed":
            console.rule(f"end of the log of {task}")
            console.print("\n".join(run.log_lines(task)[-40:]), highlight=False, markup=False, soft_wrap=True)


def _write(look: LookBack) -> None:
    JSON.write_text(json.dumps(look.outcome.plain(), indent=2) + "\n", encoding="utf-8")
    promise = "; ".join(problems(look.outcome)) or "kept"
    page = render_report(look.status, {"the demo's promise": promise, **look.outcome.figures()})
    HTML.write_text(page, encoding="utf-8")


def _print(look: LookBack, console: Console) -> None:
    table = Table(show_header=False)
    phases = {f"seconds of {phase.name.replace('_', ' ')}": f"{phase.seconds:.1f}" for phase in look.outcome.phases}
    for name, value in (look.outcome.figures() | phases).items():
        table.add_row(name, value)
    console.print(table)
    console.print(f"figures: {JSON}\nreport:  {HTML}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
