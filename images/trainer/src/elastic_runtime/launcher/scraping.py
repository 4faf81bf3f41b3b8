"""Where the launcher answers Prometheus: ``GET /metrics`` over HTTP, for whoever shows the token. On request.

Unverified peers have the limits of the agents' port (:mod:`.agents`): few connections
(:class:`~.limits.ConnectionLimit`), seconds, bytes and failed attempts a second (:class:`~.limits.FailureLimit`). The
answer is made at most once a second for all scrapers.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from elastic_runtime.errors import InvalidDocument, InvalidSettings
from elastic_runtime.launcher.limits import ConnectionLimit, FailureLimit
from elastic_runtime.net.http_head import parse_headers
from elastic_runtime.pace import RateLimitedLog
from elastic_runtime.printable import printable
from elastic_runtime.run.observe import PrometheusSpec
from elastic_runtime.run.status import EventKind, Phase, Status, WorkerState

try:
    from prometheus_client import generate_latest
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as error:
    raise InvalidSettings(
        "observe.prometheus",
        f"the launcher cannot import prometheus_client: {error}",
        "Install elastic-runtime[prometheus] in the trainer's image",
    ) from None

# A run's status in Prometheus' text format, by its own client library. The names: docs/observing.md. Pure.
#
# Labels are bounded: the run's name, the workers that are present, phases, causes and kinds that the status knows, and
# the names of the metrics that the script reports, of which a status keeps at most MAX_METRICS.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "elastic_training_"
MOST_WORKERS = 1000
"""Present ones that are told of one by one."""
_Value = Callable[[Status], float | None]


def _checkpoint_age(status: Status) -> float | None:
    written = status.checkpoint
    return max(0.0, (status.updated - written.time).total_seconds()) if written else None


def _checkpoint_step(status: Status) -> int | None:
    return status.checkpoint.step if status.checkpoint else None


def _progress(name: str) -> _Value:
    return lambda status: getattr(status.progress, name) if status.progress else None


_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("world_size", "Ranks that train together now.", lambda status: status.world_size),
    ("workers_wanted", "Workers asked for.", lambda status: status.target_size),
    ("step", "Newest global step reported.", lambda status: status.step),
    ("progress_percent", "Of the steps that the script tells of.", _progress("percent")),
    ("time_left_seconds", "Estimated time to the last step.", _progress("seconds")),
    ("time_left_least_seconds", "Lower end of its interval.", _progress("least")),
    ("time_left_most_seconds", "Upper end of its interval.", _progress("most")),
    ("steps_per_second", "Of late.", lambda status: _last(status.throughput.values)),
    ("samples_per_second", "Of late.", lambda status: _last(status.sample_throughput.values)),
    ("checkpoint_age_seconds", "Since the newest durable checkpoint was taken.", _checkpoint_age),
    ("checkpoint_step", "Global step of the newest durable checkpoint.", _checkpoint_step),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("worlds", "Generations so far.", lambda status: status.generation),
    ("rank_failures", "Ranks that ended by themselves with an error.", lambda status: status.rank_failures),
    ("forced_resets", "Worlds that were ended by a loss or a failure.", lambda status: status.forced_resets),
    ("worker_seconds", "Time of all workers.", lambda status: sum(status.worker_seconds.values())),
)
_OF_WORKERS = (
    ("worker_cpu_percent", "Of one core, agent and ranks together.", "cpu_percent"),
    ("worker_memory_bytes", "Resident, agent and ranks together.", "memory_bytes"),
    ("worker_receive_bytes_per_second", "From the network.", "receive_bytes_per_second"),
    ("worker_transmit_bytes_per_second", "To the network.", "transmit_bytes_per_second"),
    ("worker_step_seconds", "A step of its slowest rank, apart from waiting for others.", "step_seconds"),
    ("worker_step_skew", "Times as long as the other workers.", "step_skew"),
)
_OF_GPUS = (
    ("worker_gpu_percent", "Utilisation of one GPU.", "percent"),
    ("worker_gpu_memory_bytes", "Memory of one GPU that is in use.", "memory_bytes"),
)


def exposition(status: Status) -> bytes:
    """All of it. Raises nothing that a status can cause."""
    return bytes(generate_latest(cast(Any, _Registry(status))))


class _Registry:
    """All that the library asks of one."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the status."""
        return _families(self._status)


def _families(status: Status) -> Iterator[Metric]:
    run = [status.run]
    for name, text, value in _GAUGES:
        if (number := value(status)) is not None:
            yield _one(GaugeMetricFamily(PREFIX + name, text, labels=["run"]), run, number)
    for name, text, value in _COUNTERS:
        yield _one(CounterMetricFamily(PREFIX + name, text, labels=["run"]), run, value(status))
    phases = GaugeMetricFamily(f"{PREFIX}phase", "1 for the phase that the run is in.", labels=["run", "phase"])
    for phase in Phase:
        phases.add_metric([*run, phase.value], float(status.phase is phase))
    yield phases
    states = GaugeMetricFamily(f"{PREFIX}workers", "Workers that are present, by state.", labels=["run", "state"])
    for state in WorkerState:
        if not state.gone:
            states.add_metric([*run, state.value], sum(worker.state is state for worker in status.workers))
    yield states
    lost = CounterMetricFamily(f"{PREFIX}lost_seconds", "Time without training, by cause.", labels=["run", "cause"])
    for cause, seconds in status.lost_seconds.items():
        lost.add_metric([*run, cause], seconds)
    yield lost
    events = GaugeMetricFamily(f"{PREFIX}events", "Those that the status keeps, by kind.", labels=["run", "kind"])
    for kind in EventKind:
        events.add_metric([*run, kind.value], sum(event.kind is kind for event in status.events))
    yield events
    reported = GaugeMetricFamily(f"{PREFIX}reported", "Newest value that the script reports.", labels=["run", "name"])
    for name, newest in status.metrics.items():
        reported.add_metric([*run, name], newest)
    yield reported
    yield from _of_workers(status)


def _of_workers(status: Status) -> Iterator[Metric]:
    here = [worker for worker in status.workers if not worker.state.gone][:MOST_WORKERS]
    for name, text, field in _OF_WORKERS:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["run", "worker"])
        for worker in here:
            if (number := getattr(worker, field)) is not None:
                family.add_metric([status.run, worker.name], number)
        yield family
    for name, text, field in _OF_GPUS:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["run", "worker", "gpu"])
        for worker in here:
            for gpu in worker.gpus:
                if (number := getattr(gpu, field)) is not None:
                    family.add_metric([status.run, worker.name, str(gpu.index)], number)
        yield family


def _one(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float) -> Metric:
    family.add_metric(labels, value)
    return family


def _last(values: tuple[float, ...]) -> float | None:
    return values[-1] if values else None


log = logging.getLogger(__name__)

SEATS = 16
"""Connections at a time."""
REQUEST_TIMEOUT = 5.0
"""Seconds from a connection's begin to its end."""
HEAD = 8 * 1024
"""Bytes of a request."""
FAILURES = 10.0
"""Requests a second without the token that are answered; later ones wait."""
FRESH = 1.0
"""Seconds for which an answer is given again."""
LEAST_TOKEN, MOST_TOKEN = 16, 4096
"""Characters."""
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}


class Scraping:
    """Serve ``GET /metrics`` to clients with the token.

    Args:
        spec: of the run.
        status: the present one.
    """

    def __init__(self, spec: PrometheusSpec, status: Callable[[], Status]) -> None:
        self._spec, self._status = spec, status
        self._token = read_token(spec)
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self._connection_limit, self._failure_limit = ConnectionLimit(SEATS), FailureLimit(FAILURES, loop.time)
        self._answer: tuple[float, bytes] = (float("-inf"), b"")
        self._limited_log = RateLimitedLog(log)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port: int | None = None
        """On which it listens."""

    async def start(self, address: str) -> None:
        """Listen. A port that cannot be had is a warning: training does not depend on it."""
        try:
            self._server = await asyncio.start_server(self._arrived, address, self._spec.port, limit=HEAD)
        except OSError as error:
            log.warning("Prometheus is not answered: port %d: %s", self._spec.port, error.strerror)
            return
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("Prometheus is answered on port %d", self.port)

    async def close(self) -> None:
        """Hang up on everybody, and stop listening."""
        if self._server:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server:
            await self._server.wait_closed()

    async def _arrived(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        self._tasks.add(task)
        address = str((writer.get_extra_info("peername") or ("",))[0])
        self._connection_limit.enter(address, task)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._serve(reader, writer, address)
        except (OSError, InvalidDocument, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            self._limited_log.warning("a request for metrics from %s: %s", address, printable(str(error) or "too slow"))
        except asyncio.CancelledError:
            pass  # Its seat was needed, or this ends: asyncio's own callback would log it as an error.
        finally:
            self._tasks.discard(task)
            self._connection_limit.leave(address, task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
        first, headers = parse_headers(head)
        await self._failure_limit.wait(address)
        if not self._knows(headers.get("authorization", "")):
            await self._respond(writer, 401, b"")
            return
        self._failure_limit.give_back()
        if first.split(" ")[:2] != ["GET", "/metrics"]:
            await self._respond(writer, 404, b"")
            return
        await self._respond(writer, 200, self._metrics())

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode(errors="replace")
        return hmac.compare_digest(given, self._token) and scheme.lower() == "bearer"

    def _metrics(self) -> bytes:
        made, answer = self._answer
        if self._now() - made >= FRESH:
            answer = exposition(self._status())
            self._answer = self._now(), answer
        return answer

    @staticmethod
    async def _respond(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        challenge = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n{challenge}Content-Type: {CONTENT_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode("ascii")
            + body
        )
        writer.close()
        await writer.wait_closed()


def read_token(spec: PrometheusSpec) -> bytes:
    """Read the token that scrapers must send.

    Raises:
        InvalidSettings: the file cannot be read, everybody may write to it, or it holds no token.
    """
    path = Path(spec.token_file)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as stream:
            token = stream.read(MOST_TOKEN + 1).strip()
    except OSError as error:
        remedy = "Write a token of 16 characters or more into it"
        raise InvalidSettings("observe.prometheus", f"{path} cannot be read: {error.strerror}", remedy) from error
    if not LEAST_TOKEN <= len(token) <= MOST_TOKEN or not token.isascii():
        problem = f"what {path} holds is not {LEAST_TOKEN} to {MOST_TOKEN} ASCII characters"
        raise InvalidSettings("observe.prometheus", problem, "Write a random token into it")
    return token
