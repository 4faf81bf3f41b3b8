"""A rank is one of its world, however often, and under whatever number, it speaks to its session."""

from __future__ import annotations

import pytest

from elastic_runtime.engines.torch.exchanges import MOST, MOST_VALUE, Exchanges
from elastic_runtime.engines.torch.messages import Offer, Offered
from elastic_runtime.errors import InvalidDocument

RANKS = {"a": 0, "b": 1, "c": 2}


def offer(number: int, *values: str, name: str = "global") -> Offer:
    return Offer(1, name, number, values)


def test_each_gets_what_the_others_have_for_it() -> None:
    exchanges = Exchanges()
    assert list(exchanges.offer("c", offer(2, "c for a", "c for b"), RANKS)) == []
    assert list(exchanges.offer("a", offer(0, "a for b", "a for c"), RANKS)) == []
    assert list(exchanges.offer("b", offer(1, "b for a", "b for c"), RANKS)) == [
        ("a", Offered(1, "global", 0, ("b for a", "c for a"))),
        ("b", Offered(1, "global", 1, ("a for b", "c for b"))),
        ("c", Offered(1, "global", 2, ("a for c", "b for c"))),
    ]


def test_a_rank_that_offers_twice_counts_once() -> None:
    """Or the exchange would be over before all are there."""
    exchanges = Exchanges()
    for _ in range(3):
        assert list(exchanges.offer("a", offer(0, "old", "old"), RANKS)) == []
    list(exchanges.offer("a", offer(0, "new", "new"), RANKS))
    list(exchanges.offer("b", offer(1, "", ""), RANKS))
    told = dict(exchanges.offer("c", offer(2, "", ""), RANKS))
    assert told["b"].values == ("new", "")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(offer(1, "", ""), id="another's number"),
        pytest.param(offer(-1, "", ""), id="no number"),
        pytest.param(offer(3, "", ""), id="a number too high"),
        pytest.param(offer(0, ""), id="too few"),
        pytest.param(offer(0, "", "", ""), id="too many"),
        pytest.param(offer(0, "", "x" * (MOST_VALUE + 1)), id="too long"),
        pytest.param(offer(0, "", "", name="no name"), id="no name"),
        pytest.param(offer(0, "", "", name="x" * 400), id="a name too long"),
        pytest.param(offer(1, "", name="some_process_set_hash_1"), id="the number of one of some"),
        pytest.param(offer(0, "", "", name="some_process_set_hash_1"), id="another size than theirs"),
        pytest.param(offer(0, *4 * [""], name="more_process_set_hash_1"), id="more than there are"),
    ],
)
def test_a_rank_speaks_for_itself_only(said: Offer) -> None:
    exchanges = Exchanges()
    list(exchanges.offer("b", offer(1, "right", "right"), RANKS))
    list(exchanges.offer("b", offer(1, "right", name="some_process_set_hash_1"), RANKS))
    with pytest.raises(InvalidDocument):
        list(exchanges.offer("a", said, RANKS))
    list(exchanges.offer("a", offer(0, "", ""), RANKS))
    told = dict(exchanges.offer("c", offer(2, "", ""), RANKS))
    assert told["a"].values == ("right", "")


def test_a_rank_fills_no_memory_and_keeps_no_other_from_an_exchange() -> None:
    exchanges = Exchanges()
    for number in range(MOST):
        list(exchanges.offer("a", offer(0, "", name=f"{number}_process_set_hash_1"), RANKS))
    with pytest.raises(InvalidDocument, match="not complete"):
        list(exchanges.offer("a", offer(0, "", ""), RANKS))
    assert list(exchanges.offer("b", offer(1, "", ""), RANKS)) == []
    list(exchanges.offer("b", offer(1, "", name="0_process_set_hash_1"), RANKS))
    assert list(exchanges.offer("a", offer(0, "", ""), RANKS)) == []
