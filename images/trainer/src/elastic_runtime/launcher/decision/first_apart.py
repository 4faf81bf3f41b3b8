"""Which collective is the first in which two ranks differ, from the ends of what they have begun; pure."""

from __future__ import annotations

from itertools import zip_longest

from elastic_runtime.protocol.tallies import COMMIT, IN_GROUP, MARKS, OTHER, Tally

COMMITTED = "committed"


def first_apart(mine: Tally, theirs: Tally, agreed: Tally, who: str) -> str:
    """Return it, for people. Empty: the ends do not reach so far back, or do not differ, as for what C++ begins.

    Args:
        mine: of one rank.
        theirs: of another, at the same commit.
        agreed: of the last commit at which they did not differ, of either.
        who: names the other.
    """
    ours, others = _since(mine, agreed), _since(theirs, agreed)
    if ours is None or others is None:
        return ""
    found = (_first(_of_group(group, ours), _of_group(group, others)) for group in _groups(ours, others))
    apart = min((each for each in found if each), default=None)
    if apart is None:
        return ""
    commits, number, my_act, their_act = apart
    return f"it {my_act} where {who} {their_act}, as collective {number} of {_where(mine, agreed, commits)}"


def _since(told: Tally, agreed: Tally) -> list[str] | None:
    """Return what was done since then, in its order. None: not known."""
    behind = told.marks - agreed.marks
    if not 0 <= behind <= len(told.tail):
        return None
    kinds = dict(zip(MARKS, told.kinds, strict=False)) | {OTHER: "another collective"}
    return [
        COMMITTED if mark == COMMIT else f"began {kinds.get(mark, 'what it does not tell of')}"
        for mark in told.tail[len(told.tail) - behind :]
    ]


def _groups(*kinds: list[str]) -> dict[str, None]:
    return dict.fromkeys(kind.partition(IN_GROUP)[2] for each in kinds for kind in each)


def _of_group(group: str, kinds: list[str]) -> list[str]:
    return [kind for kind in kinds if kind == COMMITTED or kind.partition(IN_GROUP)[2] == group]


def _first(ours: list[str], others: list[str]) -> tuple[int, int, str, str] | None:
    """Commits before it, its number after the last of them, and what both did. At the end, both have committed."""
    commits, number = 0, 1
    for mine, theirs in zip_longest(ours, others, fillvalue=COMMITTED):
        if mine != theirs:
            return commits, number, mine, theirs
        commits, number = (commits + 1, 1) if mine == COMMITTED else (commits, number + 1)
    return None


def _where(told: Tally, agreed: Tally, commits: int) -> str:
    """Name the step where each commit is one, or else the commit that follows. The agreed commit's mark comes first."""
    commit = agreed.commit + commits if agreed.commit else commits + 1
    if told.step is not None and agreed.step is not None and told.step - agreed.step == told.commit - agreed.commit:
        return f"step {agreed.step + commit - agreed.commit}"
    return f"commit {commit} of this world"
