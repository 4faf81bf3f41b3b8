"""Driver of a run's Spark application: starts and ends tasks as it is told by lines on its standard input.

A program of its own, of pyspark and the standard library alone: its interpreter needs no ``elastic_runtime``. It reads
``{"conf": …, "exported": […]}``, then ``{"start": WORKER, "command": […], "output": PATH}`` and ``{"end": WORKER}``,
and writes ``{"ready": APPLICATION}``, ``{"began": WORKER, "host": …}``, ``{"decommissioned": WORKER}`` and ``{"ended":
WORKER, "error": …}``. It ends, with its application, when its input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

LOOK = 0.5
"""Seconds between two looks at what Spark knows of tasks and executors."""
PATIENCE = 5.0
"""Seconds that tasks have to end by themselves once the input has ended."""
_LONGEST = 2000
"""Characters of an error."""
STOPPED = 3
"""Exit status where Spark has ended the application."""
_OURS = ("SPARK", "PYSPARK", "_SPARK", "PY4J", "PYTHONPATH", "PYTHONHASHSEED", "PYTHON_")
"""Beginnings of names of variables that Spark sets for its own Python, and a rank must not have."""
_writing = threading.Lock()
_events = 1
"""File descriptor of the protocol."""


def tell(**event: Any) -> None:
    """Write one event."""
    line = f"{json.dumps(event)}\n".encode()
    with _writing:
        while line:
            line = line[os.write(_events, line) :]


def run_agent(command: list[str], output: str, variables: dict[str, str], ours: tuple[str, ...]) -> int:
    """Run an agent in a task until it ends. Return its exit status.

    Args:
        command: of the agent.
        output: file that it writes, appended to.
        variables: for its environment.
        ours: beginnings of names that it does not inherit.
    """
    # Pickled by value: what it needs it imports itself.
    import ctypes
    import signal
    import subprocess

    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        raise RuntimeError("Spark has started this task again; the launcher starts another one instead")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment.update(variables)
    if context is not None and (gpus := context.resources().get("gpu")):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.addresses)
    libc, parent = ctypes.CDLL(None), os.getpid()

    def end_with_the_task() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    # The task's main thread is the only one that forks here.
    with open(output, "ab") as log, open(os.devnull, "rb") as nothing:
        agent = subprocess.Popen(
            command, stdin=nothing, stdout=log, stderr=log, env=environment, start_new_session=True,
            preexec_fn=end_with_the_task,  # noqa: PLW1509
        )  # fmt: skip
    return agent.wait()


class Application:
    """The application and its tasks. Methods may be called from any thread.

    Args:
        conf: settings of Spark.
        variables: of agents.
    """

    def __init__(self, conf: dict[str, str], variables: dict[str, str]) -> None:
        from pyspark import SparkConf, SparkContext

        self._context: Any = SparkContext(conf=SparkConf().setAll(list(conf.items())))
        self._scala = self._context._jsc.sc()  # no other way to what Spark knows of executors
        self._variables = variables
        self._executors: dict[str, str] = {}
        """By worker whose task has begun."""
        self._tasks: dict[str, threading.Thread] = {}
        self._noticed: set[str] = set()
        self._ending: set[str] = set()

    @property
    def id(self) -> str:
        """Of the application, in Spark."""
        return str(self._context.applicationId)

    def start(self, worker: str, command: list[str], output: str) -> None:
        """Have a task run an agent."""
        thread = threading.Thread(target=self._run, args=(worker, command, output), daemon=True)
        self._tasks[worker] = thread
        thread.start()

    def end(self, worker: str) -> None:
        """Kill a worker's task, also one whose job is only about to be there."""
        if worker in self._tasks:
            self._ending.add(worker)
            self._context.cancelJobGroup(worker)

    def stop(self) -> None:
        """End all."""
        end = time.monotonic() + PATIENCE
        for thread in list(self._tasks.values()):
            thread.join(max(0.0, end - time.monotonic()))
        self._context.cancelAllJobs()
        self._context.stop()

    def _run(self, worker: str, command: list[str], output: str) -> None:
        variables, error = self._variables, ""
        try:
            self._context.setJobGroup(worker, worker, interruptOnCancel=True)
            rdd = self._context.parallelize([0], 1)
            code = rdd.map(lambda _: run_agent(command, output, variables, _OURS)).collect()[0]
            error = f"its agent ended with {code}" if code else ""
        except Exception as problem:  # noqa: BLE001  # whatever Spark, Py4J or the task raises
            error = _short(problem)
        self._executors.pop(worker, None)
        self._noticed.discard(worker)
        self._ending.discard(worker)
        self._tasks.pop(worker, None)
        tell(ended=worker, error=error)

    def watch(self) -> None:
        """Tell what Spark knows of tasks and executors, for as long as there is an application."""
        try:
            while not self._scala.isStopped():
                for worker in list(self._tasks):
                    try:
                        self._look_at(worker)
                    except Exception as problem:  # noqa: BLE001  # it is looked at again in a moment
                        sys.stderr.write(f"{worker} cannot be looked at: {_short(problem)}\n")
                threading.Event().wait(LOOK)
        finally:  # Where Java's process has ended, it cannot even be asked.
            os._exit(STOPPED)

    def _look_at(self, worker: str) -> None:
        if worker in self._ending:
            self._context.cancelJobGroup(worker)
            return
        if (executor := self._executors.get(worker)) is None:
            if (found := self._find(worker)) is None:
                return
            executor, host = found
            self._executors[worker] = executor
            tell(began=worker, host=host)
        scheduler = self._scala.taskScheduler()
        if worker not in self._noticed and scheduler.getExecutorDecommissionState(executor).isDefined():
            self._noticed.add(worker)
            tell(decommissioned=worker)

    def _find(self, worker: str) -> tuple[str, str] | None:
        """Executor and host of a worker's task; None: it has not begun."""
        tracker = self._context.statusTracker()
        for job in tracker.getJobIdsForGroup(worker):
            if (info := tracker.getJobInfo(job)) is None:
                continue
            for stage in info.stageIds:
                tasks = self._scala.statusStore().taskList(stage, 0, 10)
                for index in range(tasks.size()):
                    task = tasks.apply(index)
                    return str(task.executorId()), str(task.host())
        return None


def _short(problem: BaseException) -> str:
    """What matters of a long trace of Java's."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    said = [line for line in lines if "Error" in line or "Exception" in line or "cancelled" in line]
    return "; ".join((said or lines)[-3:])[-_LONGEST:] or type(problem).__name__


def main() -> None:
    """Until the input ends."""
    global _events  # before anybody tells anything
    # Java writes to the standard output that it inherits: garbage collections, a dump of threads.
    _events = os.dup(1)
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    variables = {name: os.environ[name] for name in first["exported"] if name in os.environ}
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    application = Application(first["conf"], variables)
    tell(ready=application.id)
    threading.Thread(target=application.watch, daemon=True).start()
    for line in sys.stdin:
        said = json.loads(line)
        if "start" in said:
            application.start(said["start"], said["command"], said["output"])
        else:
            application.end(said["end"])
    application.stop()


if __name__ == "__main__":
    main()
