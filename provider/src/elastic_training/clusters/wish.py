"""Request of a task for a training's size: a number, a change, a bound, or workers to give up. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.run.spec import WorkersSpec

MAX_RELEASED = 100
"""Workers that one wish may name."""
_REMEDY = 'Write a whole number of 1 or more, a change as in "+2" or "-1", "min", or "max"'
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class SizeWish:
    """A size, by itself or by the one that is asked for at present."""

    size: str
    """``"3"``, ``"+2"``, ``"-1"``, ``"min"`` or ``"max"``."""
    clip: bool = False
    """Take the nearer bound for what is outside the training's bounds, instead of refusing it."""
    release: tuple[str, ...] = ()
    """Workers that go, without replacement; then ``size`` is minus their number."""

    def __post_init__(self) -> None:
        if self.size not in ("min", "max") and not re.fullmatch(r"[+-]?[0-9]{1,6}", self.size):
            raise InvalidSettings("workers", f"{self.size!r} is not a size", _REMEDY)
        if self.relative and int(self.size) == 0:
            raise InvalidSettings("workers", f"{self.size} is not a change of a size", _REMEDY)

    @property
    def relative(self) -> bool:
        """Whether it counts from the size that is asked for at present, so that asking twice would count twice."""
        return self.size[0] in "+-"

    def target(self, present: int, bounds: WorkersSpec) -> int:
        """Workers to ask for.

        Args:
            present: that are asked for now.
            bounds: of the training.

        Raises:
            InvalidSettings: outside the bounds, and not to be clipped.
        """
        match self.size:
            case "min":
                return bounds.minimum
            case "max":
                return bounds.maximum
        workers = present + int(self.size) if self.relative else int(self.size)
        if self.clip:
            return min(max(workers, bounds.minimum), bounds.maximum)
        if bounds.minimum <= workers <= bounds.maximum:
            return workers
        sum_ = f"{present} {self.size[0]} {self.size[1:]} = " if self.relative else ""
        raise InvalidSettings(
            "release" if self.release else "workers",
            f"{sum_}{workers} is outside the training's bounds {bounds.minimum} to {bounds.maximum}",
            "Ask for a number within them, write clip=True to stop at the nearer one, or widen workers.min and "
            "workers.max of the training",
        )


def size_wish(workers: object, release: object, *, clip: bool) -> SizeWish:
    """From what a user has written, rendered. Raises InvalidSettings."""
    if (workers is None) == (release is None):
        raise InvalidSettings("workers", "there is neither a size nor release, or both", "Write one of the two")
    if release is not None:
        names = released_names(release)
        return SizeWish(f"-{len(names)}", clip, names)
    if isinstance(workers, bool) or not isinstance(workers, int | str):
        raise InvalidSettings("workers", f"{workers!r} is not a size", _REMEDY)
    wish = SizeWish(str(workers).strip() if isinstance(workers, str) else str(max(workers, 0)), clip)
    if wish.size.isdecimal() and int(wish.size) == 0:
        raise InvalidSettings("workers", f"{workers} is less than 1", _REMEDY)
    return wish


def released_names(release: object) -> tuple[str, ...]:
    """Names of workers, each once. Raises InvalidSettings."""
    remedy = 'Write a list of names, as in ["worker-3"]'
    if isinstance(release, str) or not isinstance(release, Sequence) or not 0 < len(release) <= MAX_RELEASED:
        raise InvalidSettings("release", f"{release!r} is not a list of 1 to {MAX_RELEASED} names", remedy)
    for name in release:
        # It becomes the name of a file, or of a pod.
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidSettings("release", f"{name!r} is not a worker's name", remedy)
    if len(set(release)) < len(release):
        raise InvalidSettings("release", f"{list(release)!r} names a worker twice", remedy)
    return tuple(release)
