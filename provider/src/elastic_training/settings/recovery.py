"""Settings for lost workers and failed ranks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from elastic_runtime.run.spec import NoticeService, RecoveryMode, RecoverySpec, Timing
from elastic_training.settings.templating import Settings, all_known
from elastic_training.settings.values import Duration, IntOrTemplate, member_of, seconds_of, whole_number


@dataclass(frozen=True, slots=True)
class Recovery(Settings):
    """Settings for lost workers and failed ranks. Bare numbers are seconds."""

    mode: str = RecoveryMode.ELASTIC.value
    """``elastic``: train with whatever is there, from ``workers.min``. ``fixed``: only at exactly the wanted size."""
    max_wait: Duration = timedelta(minutes=30)
    """Longest time with too few workers before the run fails."""
    start_timeout: Duration = timedelta(minutes=10)
    """Longest time from the launcher's start to the first training."""
    reset_limit: IntOrTemplate | None = None
    """Most resets forced by lost workers or failed ranks; resizes do not count. None: no limit."""
    rank_failures: IntOrTemplate = 10
    """Most ranks that may end by themselves with an error, over the whole run."""
    lease: Duration = timedelta(hours=6)
    """A run that nobody in Airflow has waited for, for so long, ends itself; 0: never."""
    unwatched: Duration = timedelta(minutes=15)
    """The same for a run that no trigger has begun to watch since its task created or adopted it. Longer than any
    triggerer of yours may be away or full; of no effect where ``lease`` is 0."""
    notices: str = NoticeService.AUTO.value
    """Which metadata service announces that a machine will be taken, beside SIGTERM: ``aws``, ``aws-rebalance``
    (recommendations to rebalance count too), ``gcp``, ``azure``, ``alibaba``, ``none``; ``auto``: on Kubernetes the one
    that is found, on this machine none."""

    def __post_init__(self) -> None:
        known = self.known()
        known.spec()
        known.timing()

    @all_known()
    def spec(self) -> RecoverySpec:
        """For the launcher. Raises InvalidSettings."""
        limit = self.reset_limit
        return RecoverySpec(
            mode=member_of("recovery.mode", self.mode, RecoveryMode),
            max_wait=seconds_of("recovery.max_wait", self.max_wait),
            start_timeout=seconds_of("recovery.start_timeout", self.start_timeout),
            reset_limit=None if limit is None else whole_number("recovery.reset_limit", limit, least=0),
            rank_failures=whole_number("recovery.rank_failures", self.rank_failures, least=0),
            notices=member_of("recovery.notices", self.notices, NoticeService),
        )

    @all_known()
    def timing(self) -> Timing:
        """For the launcher. Raises InvalidSettings."""
        return Timing(
            lease=seconds_of("recovery.lease", self.lease, zero=True),
            unwatched=seconds_of("recovery.unwatched", self.unwatched),
        )
