"""What the agent says of workers that will be taken, as a rank understands it; and when to stop because of it.

If everybody who has the state will be taken, training stops at a commit that can still be made durable. A rank that
trains on to the deadline would do steps that nobody keeps. A rank that waits for a world does no more: the commit that
it holds is the last one.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic_runtime.clock import utc_now
from elastic_runtime.protocol.rank_link import CommitDeadline, Handover, RankLink
from elastic_runtime.run.waits import NOTICE_CAUTION, NOTICE_MARGIN, RECLAIM_TIMEOUT
from elastic_runtime.script.leaving import call_back

PAUSE = 0.05
"""Seconds between two looks of ranks that stand."""


class CommitInterval:
    """The time between the last two commits. Times in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.last: float | None = None
        """When this world's last commit was; None: there was none yet."""
        self.seconds = 0.0
        """Between two commits of one world, the last two that there were."""

    def begin(self) -> None:
        """A new world trains: what passed since the last commit says nothing about the next one."""
        self.last = None

    def committed(self, now: float) -> None:
        """Record the time of a commit."""
        if self.last is not None:
            self.seconds = now - self.last
        self.last = now


class LastCommit:
    """Rank 0's judgement at each commit, and each rank's while it waits. Times in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._keeper = ""
        self._stops = False
        self.commits = CommitInterval()

    def expect_end(self, deadline: float | None, keeper: str = "", *, stops: bool = False) -> None:
        """Everybody who has the state will be taken at this time; None: no more, somebody else has it too.

        Args:
            deadline: of the first of them; of the keeper, if one is named.
            keeper: name of the rank that is to write, when the world is over and all wait for another.
            stops: the next commit is the last one, whatever the time.
        """
        self._deadline, self._keeper, self._stops = deadline, keeper, stops

    @property
    def is_expected(self) -> bool:
        """Whether there will be one."""
        return self._deadline is not None or self._stops

    def is_here(self, now: float, write: float, writes: int) -> bool:
        """Whether the commit before ``now`` is the last one that can be made durable in time.

        Args:
            now: at which it is asked.
            write: seconds that the last write took.
            writes: how many are under way before this commit's own.
        """
        if self._stops:
            return True
        if self._deadline is None or self._has_passed(now):
            return False
        needed = NOTICE_MARGIN + NOTICE_CAUTION * (self.commits.seconds + write * (1 + writes))
        return now + needed >= self._deadline

    def is_held_by(self, rank: str, now: float) -> bool:
        """Whether the rank of this name, while it waits, has to make the commit that it holds durable.

        At once: no later commit will come, and nothing is gained by waiting.
        """
        return self._deadline is not None and not self._has_passed(now) and rank == self._keeper != ""

    def _has_passed(self, now: float) -> bool:
        return self._deadline is not None and now > self._deadline + RECLAIM_TIMEOUT


class Notices:
    """Heard at commits, and while the rank waits for a world.

    Args:
        link: to the agent.
        rank: name of this rank, as the launcher knows it.
        clock: monotonic seconds.
    """

    def __init__(self, link: RankLink, rank: str, clock: Callable[[], float]) -> None:
        self._link, self._rank, self._clock = link, rank, clock
        self._newest = self._handled = 0
        """Numbers of notices."""
        self.last_commit = LastCommit()
        """The judgement that is fed with it."""
        self._handle(link.last_commit)
        link.hearers.append(self._handle)

    def receive(self) -> None:
        """Take in what has been said since the last call, and have the script's callbacks called."""
        self._link.hear()
        call_back()

    def _handle(self, word: Handover | CommitDeadline) -> None:
        if isinstance(word, CommitDeadline):
            left = None if word.deadline is None else (word.deadline - utc_now()).total_seconds()
            self.last_commit.expect_end(None if left is None else self._clock() + left, word.keeper, stops=word.stops)
        else:
            self._newest = max(self._newest, word.number or 1 + max(self._newest, self._handled))

    @property
    def to_handle(self) -> int:
        """Number of the newest notice for which nothing was done yet, 0 for none."""
        return self._newest if self._newest > self._handled else 0

    def handle(self, number: int) -> bool:
        """Whether a checkpoint is wanted for that notice, of which ranks have told each other, perhaps not this one.

        What this rank hears later of notices up to that one is handled already, also in another world.
        """
        is_new = number > self._handled
        self._handled = max(self._handled, number)
        return is_new

    def is_handled(self, number: int) -> bool:
        """Whether ranks have acted upon that notice together. In any thread."""
        return 0 < number <= self._handled

    @property
    def is_keeper(self) -> bool:
        """Whether this rank, while it waits, has to make the commit that it holds durable."""
        return self.last_commit.is_held_by(self._rank, self._clock())
