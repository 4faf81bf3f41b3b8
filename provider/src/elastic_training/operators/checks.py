"""The operator's own arguments, as far as they are not settings: checked at parse, and again once they are rendered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import PurePath
from urllib.parse import urlsplit

from elastic_runtime.errors import InvalidSettings
from elastic_training.clusters.location import LOCAL
from elastic_training.settings.templating import is_template

_SHAPE = "pods=Pods(worker=PodShape({}=...))"
_CONNECTION = 'cluster="CONNECTION", and that connection'
_CLUSTER = 'cluster="CONNECTION/NAMESPACE"'
_NAME = "nothing: names of run and pods follow from the task"
_WATCHED = "nothing: the run is watched, not polled"
_LINES = "nothing: each line has its worker and rank; log_ranks=[...] says which come"
_SAYS_WHY = "nothing: what Kubernetes says of pods that do not run is always in the log"
_RESULT = "nothing: results come without a sidecar"
FOREIGN = {
    "checkpoint_dir": "checkpoint_uri=...",
    **dict.fromkeys(
        ("conn_id", "aws_conn_id", "gcp_conn_id", "google_cloud_conn_id", "wasb_conn_id", "azure_conn_id"),
        'checkpoint_conn_id="...", for credentials of the checkpoint store',
    ),
    "in_cluster": f"{_CONNECTION}'s in_cluster",
    "config_file": f"{_CONNECTION}'s kube_config_path",
    "cluster_context": f"{_CONNECTION}'s cluster_context",
    "namespace": _CLUSTER,
    "name": "nothing: the run's name follows from the task",
    "cmds": "command=[...]",
    "arguments": "command=[...]",
    "args": "command=[...]",
    "env": "environment={...}, or pods=Pods(env={...})",
    "env_vars": "environment={...}, or pods=Pods(env={...})",
    "env_from": "pods=Pods(secrets=[SecretRef(...)])",
    "secrets": "pods=Pods(secrets=[SecretRef(...)])",
    "configmaps": "pods=Pods(volumes=[Volume(..., config_map=...)])",
    "volumes": "pods=Pods(volumes=[Volume(...)])",
    "volume_mounts": "pods=Pods(volumes=[Volume(...)])",
    "ports": "nothing: ports are chosen by this package",
    "container_resources": _SHAPE.format("resources"),
    "node_selector": _SHAPE.format("node_selector"),
    "affinity": _SHAPE.format("affinity"),
    "tolerations": _SHAPE.format("tolerations"),
    "pod_template_file": _SHAPE.format("template"),
    "pod_template_dict": _SHAPE.format("template"),
    "full_pod_spec": _SHAPE.format("template"),
    "init_containers": _SHAPE.format("template"),
    "pod_override": _SHAPE.format("template"),
    "labels": "pods=Pods(labels={...})",
    "annotations": "pods=Pods(annotations={...})",
    "random_name_suffix": _NAME,
    "hostname": _NAME,
    "subdomain": _NAME,
    "base_container_name": "nothing: the containers are called launcher and worker",
    "automount_service_account_token": "nothing: only the launcher's pod has a token",
    **dict.fromkeys(
        ("runtime_class_name", "hostnetwork", "host_aliases", "dnspolicy", "dns_config", "termination_message_policy"),
        _SHAPE.format("template"),
    ),
    "container_security_context": "nothing: containers are restricted, as Pod Security has it; "
    "pods=Pods(run_as_user=..., run_as_group=..., fs_group=...)",
    "pod_runtime_info_envs": _SHAPE.format("template"),
    "xcom_sidecar_container_security_context": _RESULT,
    "active_deadline_seconds": "execution_timeout=...",
    "schedule_timeout_seconds": "recovery=Recovery(start_timeout=...)",
    "startup_check_interval_seconds": _WATCHED,
    "base_container_status_polling_interval": _WATCHED,
    "poll_interval": _WATCHED,
    "logging_interval": "nothing: lines come as they are written",
    "init_container_logs": "nothing: logs of init containers are read with kubectl logs",
    "container_logs": "log_ranks=[...]: lines of launcher and ranks come into the task's log",
    "container_name_log_prefix_enabled": _LINES,
    "log_formatter": _LINES,
    "log_events_on_failure": _SAYS_WHY,
    "log_events_on_startup": _SAYS_WHY,
    "log_pod_spec_on_failure": _SAYS_WHY,
    "progress_callback": "callbacks=[...], TrainingCallback classes",
    "trigger_kwargs": "nothing: the trigger is this package's own",
    "durable": "nothing: a new try always adopts a living run",
    "on_kill_action": "nothing: a task that is ended ends its run",
    "image_pull_policy": "pods=Pods(image_pull_policy=...)",
    "image_pull_secrets": "pods=Pods(image_pull_secrets=[...])",
    "service_account_name": "pods=Pods(service_account=..., worker_service_account=...)",
    "security_context": "pods=Pods(run_as_user=..., run_as_group=..., fs_group=...)",
    "priority_class_name": "pods=Pods(priority_class=...)",
    "schedulername": "pods=Pods(scheduler_name=...)",
    "get_logs": "log_ranks=[] for the launcher's lines alone",
    "startup_timeout_seconds": "recovery=Recovery(start_timeout=...)",
    "reattach_on_restart": "nothing: a new try always adopts a living run; fresh=True starts over",
    "is_delete_operator_pod": 'on_finish="delete"',
    "on_finish_action": 'on_finish="delete"',
    "termination_grace_period": "nothing: it follows from the run's own times",
    "num_workers": "workers=Workers(min=..., start=..., max=...)",
    "min_workers": "workers=Workers(min=...)",
    "max_workers": "workers=Workers(max=...)",
    "bash_command": "command=[...]",
    "python_callable": "@task.elastic_horovod or @task.elastic_torch above the function",
    "use_dill": 'serializer="cloudpickle", of the decorators',
    "requirements": "image=..., of an image that has them",
    "cwd": "working_directory=...",
}
"""Arguments of other operators, KubernetesPodOperator's above all, and what says the same here."""
OF_OTHERS = {**FOREIGN, "kubernetes_conn_id": 'cluster="CONNECTION"'}
"""The same for operators that train nothing themselves."""
_LAUNCHERS = ("horovodrun", "torchrun", "mpirun", "mpiexec", "srun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "horovod.runner", "horovod.runner.launch")


def check_foreign(operator: str, given: Iterable[str], foreign: Mapping[str, str] = OF_OTHERS) -> None:
    """Refuse what other operators call by another name.

    Args:
        operator: its class.
        given: names of arguments that are not this operator's own.
        foreign: what says the same here, by name.

    Raises:
        InvalidSettings: with what to write instead.
    """
    for name in given:
        if ours := foreign.get(name):
            raise InvalidSettings(name, f"{operator} has no such argument", f"Write {ours}")


def as_cluster(cluster: object, kubernetes_conn_id: object) -> object:
    """The cluster by KubernetesPodOperator's name for it. Raises InvalidSettings where another one is named, too."""
    if cluster not in (LOCAL, kubernetes_conn_id):
        problem = f"it names {kubernetes_conn_id!r}, and cluster names {cluster!r}"
        raise InvalidSettings("kubernetes_conn_id", problem, "Write one of them")
    return kubernetes_conn_id


def check_command(command: object) -> None:
    """Check a command as far as it is known at parse. Words may still be templates, or outputs of other tasks.

    Raises:
        InvalidSettings: empty; one string, which would be cut into letters; or another launcher of ranks.
    """
    remedy = 'Write a list, as in ["python", "train.py"]'
    if isinstance(command, str) or not isinstance(command, Sequence):
        raise InvalidSettings("command", f"a {type(command).__name__} is not a list of words", remedy)
    if not command or command[0] == "":
        raise InvalidSettings("command", "it names no program", remedy)
    if launcher := _launcher(command):
        raise InvalidSettings(
            "command",
            f"{launcher} starts ranks itself, and here each rank is started with the command",
            'Write the command of one rank, as in ["python", "train.py"], and how many in workers=Workers(...)',
        )


def _launcher(command: Sequence[object]) -> str | None:
    """The program in it that starts ranks itself."""
    words = [str(word) for word in command if isinstance(word, str | PathLike) and not is_template(word)]
    program = PurePath(words[0]).name if words and words[0] == str(command[0]) else ""
    if program in _LAUNCHERS:
        return program
    if program.startswith("python") and "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        return module if module in _LAUNCHER_MODULES else None
    return None


def command_words(command: object) -> tuple[str, ...]:
    """The rendered command of one rank. Raises InvalidSettings."""
    check_command(command)
    assert isinstance(command, Sequence)
    for index, word in enumerate(command):
        if isinstance(word, bool) or not isinstance(word, str | int | float | PathLike):
            raise InvalidSettings(f"command[{index}]", f"{word!r} is not a word", "Write a string, a number or a path")
    return tuple(str(word) for word in command)


def check_environment(environment: object) -> Mapping[str, str]:
    """Extra environment of every rank, values as strings. Raises InvalidSettings."""
    if not isinstance(environment, Mapping):
        problem = f"a {type(environment).__name__} is not a mapping"
        raise InvalidSettings("environment", problem, 'Write {"NAME": "value"}')
    for name in environment:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidSettings("environment", f"{name!r} is not a variable's name", 'Write {"NAME": "value"}')
    return {name: _variable(f"environment.{name}", value) for name, value in environment.items()}


def _variable(field: str, value: object) -> str:
    """A variable's value; what would be Python's spelling of something else is refused, without quoting it."""
    if is_template(value):
        return str(value)
    if not isinstance(value, str | int | float | PathLike):
        remedy = 'Write a string, a number, or "" for an empty one; of a list or a mapping, json.dumps(...)'
        raise InvalidSettings(
            field, f"a variable's value cannot be {'None' if value is None else f'a {type(value).__name__}'}", remedy
        )
    text = str(value)
    if "\0" in text:
        raise InvalidSettings(field, "a value cannot hold the character NUL", "Leave it out")
    return text


def exit_codes(field: str, given: object) -> tuple[int, ...]:
    """One or several, negative for a signal; None: none. Raises InvalidSettings."""
    if given is None:
        return ()
    codes = []
    for code in given if isinstance(given, Collection) and not isinstance(given, str) else (given,):
        if isinstance(code, bool) or not isinstance(code, int) or code == 0 or not -64 <= code <= 255:
            problem = f"{code!r} is not the exit code of a failure"
            raise InvalidSettings(field, problem, "Write a number from 1 to 255, or minus a signal's, or several")
        codes.append(code)
    return tuple(codes)


def check_text(field: str, value: object, example: str) -> None:
    """A string, or None. Raises InvalidSettings."""
    if value is not None and not isinstance(value, str) and not is_template(value):
        raise InvalidSettings(field, f"a {type(value).__name__} is not a string", f"Write {example}")


def check_checkpoint_uri(uri: object) -> None:
    """Check a checkpoint URI as far as it is known. Raise InvalidSettings if it is unknown or has credentials."""
    check_text("checkpoint_uri", uri, '"s3://bucket/runs"; how often is checkpoints=Checkpoints(every=...)')
    if isinstance(uri, str) and uri and not is_template(uri):
        # Imported here, so that a DAG file pays for the stores only when it has checkpoints.
        from elastic_runtime.checkpoint.store import validate_store_uri

        _check_confidential(uri)
        validate_store_uri(uri, "checkpoint_uri")


def _check_confidential(uri: str) -> None:
    """Refuse a URI that may hold credentials. Call it before any other check, whose messages quote the URI."""
    from elastic_runtime.checkpoint.store import has_plain_host

    try:
        parts = urlsplit(uri)
        plain = has_plain_host(uri) and not parts.query and not parts.fragment
    except ValueError:
        plain = False
    if not plain:
        raise InvalidSettings(
            "checkpoint_uri",
            "it holds credentials, or what the URI of a folder or bucket does not have (user, query, fragment)",
            "Write file:///absolute/path or s3://bucket/prefix, and give credentials to the workers: "
            "checkpoint_conn_id=..., pods=Pods(secrets=[...]), a service account, or Airflow's own environment",
        )
