"""Ranks that settle on a commit, in every order in which their words can come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.engines.torch.messages import AgreeAt, Prepare, Prepared
from elastic_runtime.engines.torch.session import Agreeing

RANKS, COMMITS = ("a", "b", "c"), 30


@dataclass
class Rank:
    """As :meth:`Channel.agrees` has it: begins no commit between its answer and what follows."""

    begun: int = 0
    waits: bool = False
    agreed: list[int] = field(default_factory=list)
    at: set[int] = field(default_factory=set)
    words: deque[Prepare | AgreeAt] = field(default_factory=deque)

    def commit(self) -> None:
        self.begun += 1
        if self.begun in self.at:
            self.agreed.append(self.begun)


@given(st.data())
def test_all_agree_at_the_same_commits_and_never_wait_for_each_other(data: st.DataObject) -> None:
    agreeing, ranks = Agreeing(1), {name: Rank() for name in RANKS}
    answers: deque[tuple[str, Prepared]] = deque()
    wanted = settled = 0

    def tell(word: Prepare | AgreeAt | None) -> None:
        for rank in ranks.values() if word else ():
            assert word is not None
            rank.words.append(word)

    while any(rank.begun < COMMITS or rank.words for rank in ranks.values()) or answers:
        can = [("hear", name) for name, rank in ranks.items() if rank.words]
        can += [("commit", name) for name, rank in ranks.items() if not rank.waits and rank.begun < COMMITS]
        can += [("answer", name) for name, _ in answers][:1]
        can += [("want", "")] * (wanted < 4)
        assert can, "somebody can go on"
        what, name = data.draw(st.sampled_from(can))
        if what == "want":
            wanted += 1
            tell(agreeing.want())
        elif what == "answer":
            told = agreeing.prepared(*answers.popleft(), RANKS)
            settled += told is not None
            tell(told)
        elif what == "commit":
            ranks[name].commit()
        elif isinstance(word := ranks[name].words.popleft(), Prepare):
            ranks[name].waits = True
            answers.append((name, Prepared(1, word.serial, ranks[name].begun)))
        else:
            assert word.commit > ranks[name].begun, "it comes in time"
            ranks[name].waits = False
            ranks[name].at.add(word.commit)
    assert settled <= wanted
    assert ranks["a"].agreed == ranks["b"].agreed == ranks["c"].agreed
    assert set(ranks["a"].agreed) == {commit for commit in ranks["a"].at if commit <= COMMITS}
