"""What the agent says of workers that will be taken, as a rank understands it."""

from __future__ import annotations

from collections.abc import Callable

from elastic_runtime.clock import utc_now
from elastic_runtime.protocol.rank_link import CommitDeadline, NoticeWord, RankLink
from elastic_runtime.script.leaving import call_back
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
        self._newest = self._handled = 0
        """Numbers of notices."""
        self.last_commit = LastCommit()
        """The judgement that is fed with it."""
        self._heard(link.last_commit)
        link.hearers.append(self._heard)

    def hear(self) -> None:
        """Take in what has been said since the last call, and have the script's callbacks called."""
        self._link.hear()
        call_back()

    def _heard(self, word: NoticeWord) -> None:
        if isinstance(word, CommitDeadline):
            left = None if word.deadline is None else (word.deadline - utc_now()).total_seconds()
            self.last_commit.expect_end(None if left is None else self._clock() + left, word.keeper)
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
