"""What a person sees of many rounds, and what is kept of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.judge import LONGEST_PAUSE, Verdict
from tests.chaos.round import Round


@dataclass(frozen=True, slots=True)
class Judged:
    """A round and what is wrong with it."""

    round: Round
    verdict: Verdict


def line(judged: Judged, done: int, of: int) -> str:
    """Of one round, as soon as it is over."""
    played, troubles = judged.round, judged.verdict.troubles
    worst = played.outcome.pauses[0].unexplained if played.outcome.pauses else 0.0
    faults = ", ".join(str(applied.fault) for applied in played.applied) or "nothing was done"
    words = f"WRONG: {'; '.join(troubles)}" if troubles else f"pause {worst:4.1f} s"
    return (
        f"[{done:>{len(str(of))}}/{of}] {played.engine} seed {played.plan.seed:06}  {played.seconds:5.1f} s  "
        f"{words}  ({faults})"
    )


def table(judged: Sequence[Judged]) -> Iterator[str]:
    """Of all rounds, one line an engine."""
    yield (
        f"{'engine':<16}{'rounds':>8}{'faults':>8}{'wrong':>8}{'digests':>9}{'apart':>8}"
        f"{f'pauses > {LONGEST_PAUSE:.0f} s':>16}{'left':>6}{'longest pause':>15}{'aborted':>9}"
    )
    for engine in dict.fromkeys(each.round.engine for each in judged):
        of_engine = [each for each in judged if each.round.engine == engine]
        yield (
            f"{engine:<16}{len(of_engine):>8}{sum(len(each.round.applied) for each in of_engine):>8}"
            f"{_count(each.verdict.wrong or each.verdict.apart for each in of_engine):>8}"
            f"{sum(each.round.digested for each in of_engine):>9}"
            f"{sum(len(each.round.outcome.digests) for each in of_engine):>8}"
            f"{_count(each.verdict.pause for each in of_engine):>16}"
            f"{_count(each.verdict.left for each in of_engine):>6}"
            f"{f'{_longest(of_engine):.1f} s':>15}{sum(each.round.aborted for each in of_engine):>9}"
        )
    kinds = Counter(applied.fault.kind for each in judged for applied in each.round.applied)
    yield ""
    yield "faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    for each in judged:
        if each.verdict.troubles:
            yield f"{each.round.engine} seed {each.round.plan.seed:06}: {'; '.join(each.verdict.troubles)}"


def _count(words: Iterable[str]) -> int:
    return sum(1 for each in words if each)


def _longest(judged: Sequence[Judged]) -> float:
    """Without what explains itself."""
    return max((pause.unexplained for each in judged for pause in each.round.outcome.pauses), default=0.0)
