"""How long is waited for commits, and for ranks: the constants of the rules about that, of launcher and ranks.

Times are seconds. The settings beside them are in :class:`~.spec.RecoverySpec` and :class:`~.spec.Timing`. What each is
the limit of: ``docs/failures.md``.
"""

from __future__ import annotations

# A training that stands still.

LEAST_STANDSTILL = 600.0
"""Limit of :attr:`.RecoverySpec.standstill` unless it is set. Shorter evaluations need no name."""
STANDSTILL_INTERVALS = 20.0
"""The same, as a multiple of the longest recent time between commits, if that is longer."""
FIRST_COMMIT = 2.0
"""How many times the limit counts for the first commit of a world, with which a script may compile."""
AT_WORK = 3.0
"""The same where all ranks are at work and none waits for another, as in an evaluation that is not named."""
ANSWER = 10.0
"""In which ranks answer where they stand. One whose process runs does so at once, unless its machine is busy."""
DEADLOCK = 10.0
"""Seconds without a commit after which ranks are asked whether they wait for each other, at least."""
DEADLOCK_AGAIN = 5.0
"""Seconds until they are asked again, when they seem to."""
LONGEST_BUSY = 86400.0
"""For which a rank may be busy."""
LONGEST_COLLECTIVE = 2 * LONGEST_BUSY
"""For which ranks with a state wait in a collective. The launcher finds sooner who does not come to it, unless a rank
is busy; no collective may end before that."""
LAST_WRITE = LONGEST_BUSY
"""For which ranks that have ended their training wait for one that writes the last checkpoint."""
ENDING = 5
"""For how many times ``timing.forming`` ranks that have ended their training wait for the others: rank 0 may still
evaluate or save something."""

# A commit that is due.

COMMIT_CAUTION = 2.0
"""How many times as long as the longest of the latest ones the next may take, to the launcher."""
COMMIT_OVERDUE = 5.0
"""By which a commit may be late, besides, until nobody knows when it comes: ranks evaluate, or wait."""
NOTICE_CAUTION = 1.5
"""How many times as long as the last commit and the last write the next may take, to a rank with a notice."""
NOTICE_MARGIN = 1.0
"""By which clocks of two machines may differ, and messages take, to a rank with a notice."""
RECLAIM_TIMEOUT = 10.0
"""After a deadline at which nobody was taken: training goes on."""

# A worker with a notice.

TO_END = 2.0
"""Before a worker is taken, its ranks have written their checkpoint and ended, where they have to."""
LEAVE_MARGIN = 5.0
"""By which clocks of two machines may differ, messages take, and processes to end."""
LEAVE_TOGETHER = 5.0
"""By which a worker leaves earlier, if another one leaves: one change of the world instead of two."""
SAME_NOTICE = 1.0
"""By which two notices of one event may differ."""

# A worker that says nothing while its world stands. Multiples of ``timing.heartbeat``.

SILENT_BEATS = 1.5
"""Heartbeats that a worker has left out: it is suspected."""
CONFIRMING_BEATS = 1.0
"""Heartbeats for which it has been suspected: it is lost."""
HEARD_BEATS = 1.5
"""Heartbeats within which another worker was heard: this launcher hears."""
LOOK_BEATS = 0.2
"""Heartbeats from one look to the next while a worker is suspected."""
