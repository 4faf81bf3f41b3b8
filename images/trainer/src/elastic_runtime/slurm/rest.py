"""slurmrestd, in its API v0.0.38: submit jobs, look at them, end them. Everything blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from typing_extensions import override

from elastic_runtime.documents import parse_json
from elastic_runtime.errors import ClusterUnavailable, InvalidDocument, InvalidSettings
from elastic_runtime.net.http_api import HttpApi
from elastic_runtime.printable import LONG, printable
from elastic_runtime.run.jobs import Job
from elastic_runtime.slurm.commands import LASTING, REMEDY, SlurmClient
from elastic_runtime.slurm.jobs import MOST_JOBS, job_of

API = "/slurm/v0.0.38"
_LONGEST_ANSWER = 128 << 20
"""Bytes. A job is some 4 KiB, and all jobs of the cluster are told of."""
_TEXTS = {
    "account": "account",
    "comment": "comment",
    "constraint": "constraints",
    "gres": "gres",
    "job-name": "name",
    "licenses": "licenses",
    "open-mode": "open_mode",
    "output": "standard_output",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
    "signal": "signal",
    "wckey": "wckey",
}
_NUMBERS = {"cpus-per-task": "cpus_per_task", "nice": "nice", "ntasks": "tasks", "time": "time_limit"}
"""Options of ``sbatch`` and what the API calls them."""
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
_ENDED = frozenset((2017, 2021))
"""Errors of Slurm: there is no such job, or it is over."""


@dataclass(frozen=True, slots=True)
class RestAccess:
    """Who asks, and where."""

    address: str
    """``http://HOST:PORT`` or ``https://HOST:PORT``."""
    user: str
    token: str = field(repr=False)
    """A JSON Web Token of ``scontrol token``."""


class RestJobs(SlurmClient):
    """Methods raise ClusterUnavailable where slurmrestd does not answer, or refuses the token.

    Args:
        access: who asks, and where.
    """

    def __init__(self, access: RestAccess) -> None:
        self._access, self.address = access, access.address
        self._api = HttpApi("slurmrestd", access.address, _LONGEST_ANSWER)

    @override
    def submit(self, options: Sequence[str], script: str, variables: Mapping[str, str] | None = None) -> str:
        wanted = {"script": script, "job": properties(options, variables or {})}
        status, answer = self._call("POST", "/job/submit", wanted)
        number = answer.get("job_id")
        if status == 200 and isinstance(number, int) and number > 0:
            return str(number)
        said = _complaint(answer)
        if LASTING.search(said):
            raise InvalidSettings("slurm", f"slurmrestd says: {said}", REMEDY)
        raise ClusterUnavailable(f"slurmrestd answers {status} to a new job: {said}")

    @override
    def jobs(self, name: str | None = None) -> list[Job]:
        status, answer = self._call("GET", "/jobs")
        told = answer.get("jobs")
        if status != 200 or not isinstance(told, list):
            raise ClusterUnavailable(f"slurmrestd answers {status} when asked for jobs: {_complaint(answer)}")
        own = [each for each in told if isinstance(each, dict) and each.get("user_name") == self._access.user]
        if len(own) > MOST_JOBS:
            raise ClusterUnavailable(f"slurmrestd tells of more than {MOST_JOBS} jobs")
        found = (_job(each) for each in own if name in (None, each.get("name")))
        return [job for job in found if job]

    @override
    def cancel(self, ids: Iterable[str]) -> None:
        for job in sorted(set(ids)):
            status, answer = self._call("DELETE", f"/job/{int(job)}")
            errors = answer.get("errors")
            ended = isinstance(errors, list) and any(
                isinstance(each, dict) and each.get("error_number") in _ENDED for each in errors
            )
            if status != 200 and not ended:
                raise ClusterUnavailable(f"slurmrestd answers {status} when job {job} shall end: {_complaint(answer)}")

    def _call(self, method: str, path: str, body: object = None) -> tuple[int, Mapping[str, Any]]:
        user = self._access.user
        headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": self._access.token}
        status, said = self._api.call(method, API + path, headers, body)
        if status == 401:
            raise ClusterUnavailable(f"{self._api} refuses the token of {user}: write another one, of scontrol token")
        try:
            plain = parse_json(said)
        except InvalidDocument:
            plain = None
        if not isinstance(plain, dict):
            raise ClusterUnavailable(f"{self.address} does not answer as slurmrestd with {API}: status {status}")
        return status, plain


def properties(options: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a job that is submitted with these options of ``sbatch``.

    Args:
        options: as :func:`elastic_runtime.slurm.jobs.options` has them.
        variables: values of those that the options export by name.

    Raises:
        InvalidSettings: the API has no property for one.
    """
    # sbatch takes the environment of a login for these options, too; a job without any variable is refused.
    made: dict[str, Any] = {"get_user_environment": "10L"}
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name in _TEXTS:
            made[_TEXTS[name]] = value
        elif name in _NUMBERS and re.fullmatch("[0-9]{1,9}", value):
            made[_NUMBERS[name]] = int(value)
        elif name == "mem" and (size := re.fullmatch("([0-9]{1,12})([KMGT]?)", value)):
            made["memory_per_node"] = max(1, round(int(size[1]) * _MEGABYTES[size[2]]))
        elif name == "nodes":
            made["nodes"] = [int(value), int(value)]
        elif name == "no-requeue":
            made["no_requeue"] = True  # In 22.05, "requeue" means that it may be requeued, whatever its value.
        elif name == "export":
            environment |= {each: variables[each] for each in value.split(",")[1:] if each in variables}
        elif name != "parsable":
            problem = f"slurmrestd has no {printable(option, 100)!r}"
            raise InvalidSettings("slurm.launcher_options", problem, "Leave it out, or use a connection of type ssh")
    made["environment"] = environment
    made["current_working_directory"] = str(PurePosixPath(made.get("standard_output", "/")).parent)
    return made


def _job(told: Mapping[str, Any]) -> Job | None:
    names = ("job_id", "job_state", "end_time", "nodes", "state_reason", "comment")
    return job_of([str(told.get(name) or "") for name in names])


def _complaint(answer: Mapping[str, Any]) -> str:
    errors = answer.get("errors")
    some = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    said = (f"{each.get('description') or ''} ({each.get('error') or ''})" for each in some)
    return printable("; ".join(said), LONG) or "without a reason"
