"""Settings of traces, TensorBoard events and Prometheus figures of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.observe import ObserveSpec, ProfileSpec, PrometheusSpec
from elastic_runtime.run.runobjects import PROMETHEUS_TOKEN
from elastic_training import kubernetes_syntax as syntax
from elastic_training.settings.templating import Settings, all_known, is_template
from elastic_training.settings.values import BoolOrTemplate, IntOrTemplate, parse_bool, settings_of, whole_number

SAMPLES = "samples"
"""Of the timeline: what costs a training nothing that can be measured."""
PROFILED_FROM = 10
"""Global step from which on steps are profiled when only their count is given: the first ones are not like others."""


@dataclass(frozen=True, slots=True)
class Prometheus(Settings):
    """The launcher answers Prometheus, over HTTP, to whoever shows a token."""

    token: str | Any = ""
    """``"NAME/KEY"`` of a Secret in the run's namespace that holds the token, or the absolute path of a file where the
    launcher runs."""
    port: IntOrTemplate = 9464
    """0: any that is free, for several runs on one machine; the log says which."""

    def __post_init__(self) -> None:
        self.known(token="/run/token").spec()  # noqa: S106  # where one would be

    @all_known()
    def spec(self) -> PrometheusSpec:
        """Return the launcher's specification. Raise InvalidSettings, also for rendered values."""
        port = whole_number("observe.prometheus.port", self.port, least=0)
        name, _, key = str(self.token).partition("/")
        if not isinstance(self.token, str) or not self.token or (name and not key):
            remedy = 'Write "NAME/KEY" of a Secret, or the absolute path of a file'
            raise InvalidSettings("observe.prometheus.token", "it names neither a Secret nor a file", remedy)
        if not name:
            return PrometheusSpec(port, self.token)
        syntax.object_name("observe.prometheus.token", name)
        syntax.data_key("observe.prometheus.token", key)
        return PrometheusSpec(port, PROMETHEUS_TOKEN, secret=self.token)


@dataclass(frozen=True, slots=True)
class Observe(Settings):
    """Traces and events go beside the checkpoints, so they need a ``checkpoint_uri``."""

    timeline: BoolOrTemplate = SAMPLES
    """Horovod's timeline of all worlds in one file, for Perfetto.

    ``"samples"``: at most 10 s at the begin of each world, then at intervals that double; none without a
    ``checkpoint_uri``.
    """
    profile_steps: Any = None
    """``(first, count)`` global steps that torch's profiler sees on every rank, or the count alone: from step 10 on."""
    tensorboard: BoolOrTemplate = False
    """Whether rank 0's reports are written as TensorBoard events. Needs ``tensorboardX`` in the trainer's image."""
    prometheus: Prometheus | Mapping[str, Any] | Any | None = None
    """Needs ``prometheus-client`` in the trainer's image."""

    def __post_init__(self) -> None:
        if not is_template(self.timeline):
            self._timeline()
        if not is_template(self.tensorboard):
            parse_bool("observe.tensorboard", self.tensorboard)
        if self.profile_steps is not None and not is_template(self.profile_steps):
            self._profile()
        if self.prometheus is not None and not is_template(self.prometheus):
            self._prometheus()

    @property
    def needs_store(self) -> bool:
        """Whether something of what is known by now is saved."""
        tensorboard = not is_template(self.tensorboard) and parse_bool("observe.tensorboard", self.tensorboard)
        return self.profile_steps is not None or tensorboard or self.wants_whole_timeline

    @property
    def wants_whole_timeline(self) -> bool:
        """Whether more than samples of it is asked for, as far as is known by now."""
        return not is_template(self.timeline) and self._timeline() == (True, False)

    @all_known()
    def spec(self, *, store: bool = True) -> ObserveSpec:
        """Return the launcher's specification. Raise InvalidSettings, also for rendered values.

        Args:
            store: whether there is one of checkpoints.
        """
        self.__post_init__()
        timeline, sampled = self._timeline()
        return ObserveSpec(
            timeline=timeline and (store or not sampled),
            sampled=sampled and store,
            profile=None if self.profile_steps in (None, "") else self._profile(),
            tensorboard=parse_bool("observe.tensorboard", self.tensorboard),
            prometheus=None if self.prometheus is None else self._prometheus().spec(),
        )

    def _timeline(self) -> tuple[bool, bool]:
        """Whether there is one, and whether of samples."""
        if isinstance(self.timeline, str) and self.timeline.strip().lower() == SAMPLES:
            return True, True
        try:
            return parse_bool("observe.timeline", self.timeline), False
        except InvalidSettings as error:
            problem = f"{self.timeline!r} is neither true, false nor {SAMPLES!r}"
            raise InvalidSettings("observe.timeline", problem, 'Write True, False or "samples"') from error

    def _profile(self) -> ProfileSpec:
        value = self.profile_steps
        pair = value if isinstance(value, tuple | list) else (PROFILED_FROM, value)
        if len(pair) != 2:
            problem = f"{value!r} is not a pair of numbers"
            raise InvalidSettings("observe.profile_steps", problem, "Write (first, count), or the count")
        first, count = (whole_number("observe.profile_steps", each, least=0) for each in pair)
        return ProfileSpec(first, count)

    def _prometheus(self) -> Prometheus:
        return settings_of(Prometheus, "observe.prometheus", self.prometheus, 'Prometheus(token="scrape/token")')
