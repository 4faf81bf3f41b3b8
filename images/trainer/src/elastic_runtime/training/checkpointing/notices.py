"""What the agent says of workers that will be taken, as a rank understands it."""

from __future__ import annotations

from collections.abc import Callable

from elastic_runtime.clock import utc_now
from elastic_runtime.leaving import call_back
from elastic_runtime.rank_link import LastCommitBy, NoticeWord, RankLink
from elastic_runtime.training.checkpointing.last_commit import LastCommit


class Notices:
    """Heard at commits, and while the rank waits for a world.

    Args:
        link: to the agent.
        rank: name of this rank, as the launcher knows it.
        clock: monotonic seconds.
    """

    def __init__(self, link: RankLink, rank: str, clock: Callable[[], float]) -> None:
        self._link, self._rank, self._clock = link, rank, clock
        self._handover = False
        self.last_commit = LastCommit()
        """The judgement that is fed with it."""
        self._heard(link.last_commit)
        link.hearers.append(self._heard)

    def hear(self) -> None:
        """Take in what has been said since the last call, and have the script's callbacks called."""
        self._link.hear()
        call_back()

    def _heard(self, word: NoticeWord) -> None:
        if isinstance(word, LastCommitBy):
            left = None if word.deadline is None else (word.deadline - utc_now()).total_seconds()
            self.last_commit.expect_end(None if left is None else self._clock() + left, word.keeper)
        else:
            self._handover = True

    def take_handover(self) -> bool:
        """Whether a worker has had a notice since the last call."""
        handover, self._handover = self._handover, False
        return handover

    @property
    def is_keeper(self) -> bool:
        """Whether this rank, while it waits, has to make the commit that it holds durable."""
        return self.last_commit.is_held_by(self._rank, self._clock())
