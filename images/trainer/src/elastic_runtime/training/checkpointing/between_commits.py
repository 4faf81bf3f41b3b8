"""The last commit is written while the training thread is on its way to the next one: in an evaluation, or a long step.

At a commit the training thread handles notices and periodic checkpoints itself. Where it does not reach one in time, a
thread beside it begins the write: the state of the last commit is a copy that the training does not touch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from elastic_runtime.clock import utc_now
from elastic_runtime.logs import script_logger
from elastic_runtime.protocol.rank_link import Handover, RankLink
from elastic_runtime.run.waits import NOTICE_CAUTION, NOTICE_MARGIN
from elastic_runtime.training.checkpointing.notices import CommitInterval
from elastic_runtime.training.checkpointing.writer import CheckpointWriter

LEAST_WAIT = 1.0
"""Seconds that the training thread has for a commit, at least; or :data:`.NOTICE_CAUTION` times its last interval."""
SHARE = 0.25
"""Of the time from a notice to its deadline, which the training thread has at most."""
LONGEST_LOOK = 5.0
"""Seconds from one look to the next, at most: a hand-over may have failed meanwhile."""
_SHORTEST = 0.01
_TURN = 1.0
"""Seconds to wait for the turn before looking whether this is closed."""
PASSED = 10.0
"""Seconds after a deadline from which on its notice does not count any more."""
_log = script_logger(__name__)


class Overdue:
    """Judges when the last commit has to be written without the training thread. Seconds of one monotonic clock.

    Args:
        commits: of the training thread.
    """

    def __init__(self, commits: CommitInterval) -> None:
        self._commits = commits
        self._noticed: float | None = None
        self._deadline = 0.0

    def expect(self, now: float, deadline: float) -> None:
        """Note a notice that the training thread has not handled yet; of several the earliest deadline counts."""
        if self._noticed is None or self._noticed > self._deadline + PASSED:
            self._noticed, self._deadline = now, deadline
        else:
            self._deadline = min(self._deadline, deadline)

    def handled(self) -> None:
        """The training thread has, at a commit."""
        self._noticed = None

    @property
    def wait(self) -> float:
        """Seconds that the training thread has to reach a commit."""
        return max(LEAST_WAIT, NOTICE_CAUTION * self._commits.seconds)

    def for_notice(self, write: float) -> float | None:
        """When to write because of a notice; None: there is none.

        Args:
            write: seconds that the last write took.
        """
        if self._noticed is None:
            return None
        latest = min(
            max(self._noticed, self._commits.last or self._noticed) + self.wait,
            self._noticed + SHARE * (self._deadline - self._noticed),
            self._deadline - NOTICE_MARGIN - NOTICE_CAUTION * write,
        )
        return max(self._noticed, latest)

    def has_passed(self, now: float) -> bool:
        """Whether the notice does not count any more: its worker was taken, or will not be."""
        return self._noticed is not None and now > self._deadline + PASSED

    def for_period(self, due: float) -> float:
        """When to write a periodic checkpoint that is due from that moment on."""
        return max(due, (self._commits.last or due) + self.wait)


class BetweenCommits:
    """The thread; none until :meth:`go`, none after :meth:`close`.

    Args:
        turn: held by the thread that saves the state, or uses its writer.
        writer: of the state's checkpoints.
        link: to the agent.
        serial: of the last save.
        is_handled: whether the training thread has handled the notice of that number.
        commits: of the training thread.
        begin: called with ``turn`` held; begins to write the last save. Its argument: whether a notice is the reason.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        turn: threading.RLock,
        writer: CheckpointWriter,
        link: RankLink,
        serial: Callable[[], int],
        is_handled: Callable[[int], bool],
        commits: CommitInterval,
        begin: Callable[[bool], None],
        clock: Callable[[], float],
    ) -> None:
        self.overdue = Overdue(commits)
        self._turn, self._writer, self._link = turn, writer, link
        self._serial, self._is_handled, self._begin, self._clock = serial, is_handled, begin, clock
        self._words: deque[Handover] = deque(maxlen=100)
        self._bell = threading.Event()
        self._goes = self._closed = self._watches = False
        self._thread: threading.Thread | None = None

    def go(self) -> None:
        """From now on: the training is between two commits. By the thread that trains."""
        if self._goes:
            return
        self._goes = True
        if not self._watches:
            self._watches = True
            self._link.watch(self._handle)
        if self._thread is None:
            self._closed = False
            self._thread = threading.Thread(target=self._run, name="between-commits", daemon=True)
            self._thread.start()
        self._bell.set()

    def pause(self) -> None:
        """Not until :meth:`go`: what was saved last is no commit, or no world trains. When this returns, it holds."""
        with self._turn:
            self._goes = False

    def close(self) -> None:
        """End the thread; :meth:`go` starts another."""
        self.pause()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._closed = True
            self._bell.set()
            thread.join()

    def _handle(self, word: Handover) -> None:
        """In the link's thread, which waits for nobody here."""
        self._words.append(word)
        self._bell.set()

    def _run(self) -> None:
        while not self._closed:
            self._bell.clear()
            if not self._turn.acquire(timeout=_TURN):
                continue  # A signal's handler may close this while its thread has the turn.
            try:
                wait = self._look()
            finally:
                self._turn.release()
            self._bell.wait(wait)

    def _look(self) -> float | None:
        """Begin what is overdue. Returns for how long there is nothing to do; None: until the bell."""
        now = self._clock()
        self._take_in(now)
        if not self._goes:
            return None
        serial, writer, overdue = self._serial(), self._writer, self.overdue
        if overdue.has_passed(now):
            overdue.handled()
        if writer.is_busy or writer.holds_off or writer.has_written(serial):
            return LEAST_WAIT
        period = overdue.for_period(writer.next_due)
        notice = overdue.for_notice(writer.seconds)
        if notice is None and writer.wants_handover:
            notice = overdue.for_period(now)
        moment = period if notice is None else min(period, notice)
        if now < moment:
            return min(max(moment - now, _SHORTEST), LONGEST_LOOK)
        try:
            self._begin(notice is not None)
        except Exception:  # noqa: BLE001  # whatever the script's own objects raise; the next commit tells it where it trains
            self._goes = False
            _log.exception("the last commit cannot be written beside the training, which goes on")
        return LEAST_WAIT

    def _take_in(self, now: float) -> None:
        while self._words:
            word = self._words.popleft()
            if not self._is_handled(word.number):
                self.overdue.expect(now, now + (word.deadline - utc_now()).total_seconds())
