"""How a run is in a standing pool of workers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastic_runtime.errors import InvalidSettings

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST = 40
"""Characters of a pool's name."""
MOST_PRIORITY = 2**31 - 1
"""As Airflow bounds ``priority_weight``."""


def check_pool_name(name: object) -> str:
    """Return the name of a pool. Raise InvalidSettings."""
    if not isinstance(name, str) or len(name) > _LONGEST or not _NAME.fullmatch(name):
        problem = f"{name!r} is not the name of a pool"
        remedy = f'Write at most {_LONGEST} lower-case letters, digits and hyphens, as in "team-a"'
        raise InvalidSettings("pool.name", problem, remedy)
    return name


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """The pool whose workers a run has, and its place among the runs there."""

    name: str
    priority: int = 1
    """The ``priority_weight`` of the run's task. Runs with more have workers first."""
    greedy: bool = False
    """Whether it takes workers that nobody wishes for, up to ``workers.max``, until somebody does."""

    def __post_init__(self) -> None:
        check_pool_name(self.name)
        if not -MOST_PRIORITY <= self.priority <= MOST_PRIORITY:
            remedy = f"Write -{MOST_PRIORITY} to {MOST_PRIORITY}"
            raise InvalidSettings("priority_weight", f"{self.priority} is not within the bounds", remedy)
