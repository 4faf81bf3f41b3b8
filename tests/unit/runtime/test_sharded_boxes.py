"""Parts of tensors on ranks: which versions are whole, who keeps copies, and what is sent where."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_runtime.torch.sharded.boxes import (
    Box,
    Catalog,
    Kept,
    Leaf,
    groups,
    keepers,
    newest_whole,
    pieces,
    whole,
)

shapes = st.lists(st.integers(1, 9), min_size=0, max_size=3).map(tuple)
counts = st.integers(1, 6)


def split(shape: tuple[int, ...], ranks: int, dim: int) -> list[Box]:
    """As ``torch.chunk`` does: some ranks at the end may have nothing."""
    if not shape:
        return [whole(shape)] * ranks
    dim %= len(shape)
    each = math.ceil(shape[dim] / ranks)
    boxes = []
    for rank in range(ranks):
        start = min(rank * each, shape[dim])
        length = min(each, shape[dim] - start)
        offset = tuple(start if at == dim else 0 for at in range(len(shape)))
        boxes.append(Box(offset, tuple(length if at == dim else size for at, size in enumerate(shape))))
    return boxes


class TestPieces:
    @given(shapes, counts, counts, st.integers(0, 2), st.integers(0, 2), st.integers(1, 2), st.integers(0, 5))
    def test_every_element_arrives_once_from_somebody_who_has_it(
        self, shape: tuple[int, ...], before: int, after: int, dim: int, other: int, replicas: int, leaf: int
    ) -> None:
        content = torch.arange(math.prod(shape)).reshape(shape)
        boxes = split(shape, before, dim)
        holders = [[boxes[rank % before]] for rank in range(before * replicas)]
        needs = split(shape, after, other)
        targets = [torch.full(need.shape, -1) for need in needs]

        for piece in pieces(leaf, holders, needs):
            held = holders[piece.source][piece.holding]
            part = content[held.within(whole(shape))][piece.box.within(held)]
            into = targets[piece.target][piece.box.within(needs[piece.target])]
            assert (into == -1).all()
            into.copy_(part)

        for target, need in zip(targets, needs, strict=True):
            assert torch.equal(target, content[need.within(whole(shape))])

    @given(counts, counts)
    def test_what_is_there_already_is_not_sent(self, before: int, after: int) -> None:
        boxes = split((12,), before, 0)
        ranks = max(before, after)
        holders = [[boxes[rank]] if rank < before else [] for rank in range(ranks)]
        needs = [*split((12,), after, 0), *[Box((12,), (0,))] * (ranks - after)]
        for piece in pieces(0, holders, needs):
            if holders[piece.target] and piece.box.common(holders[piece.target][0]):
                assert piece.source == piece.target

    def test_replicas_share_the_sending(self) -> None:
        box = whole((8,))
        to_the_third = [piece for leaf in range(4) for piece in pieces(leaf, [[box], [box], []], [box, box, box])]
        assert {piece.source for piece in to_the_third if piece.target == 2} == {0, 1}


def kept(commit: int, *ranks: int, of: int, layout: int = 1) -> Kept:
    """Parts of these ranks, of so many."""
    boxes = split((6,), of, 0)
    return Kept(commit, layout, tuple((Leaf((6,), boxes[rank], "float32"),) for rank in ranks))


class TestVersions:
    def test_the_newest_of_which_everything_is_there(self) -> None:
        catalogs = [
            Catalog("a", (kept(7, 0, 2, of=3), kept(8, 0, of=3))),
            Catalog("b", (kept(7, 1, 0, of=3), kept(8, 1, of=3))),
        ]
        assert newest_whole(catalogs) == (7, 1)

    def test_a_newer_layout_of_the_same_commit(self) -> None:
        catalogs = [Catalog("a", (kept(7, 0, 1, of=2), kept(7, 0, of=1, layout=2)))]
        assert newest_whole(catalogs) == (7, 2)

    def test_layouts_are_not_mixed(self) -> None:
        catalogs = [Catalog("a", (kept(7, 0, of=2),)), Catalog("b", (kept(7, 1, of=3, layout=2),))]
        assert newest_whole(catalogs) is None

    def test_tensors_that_are_not_the_same_are_not_put_together(self) -> None:
        mine = kept(7, 0, of=2)
        [[leaf]] = kept(7, 1, of=2).holdings
        other = replace(mine, holdings=((replace(leaf, dtype="float64"),),))
        assert newest_whole([Catalog("a", (mine,)), Catalog("b", (other,))]) is None

    def test_nothing(self) -> None:
        assert newest_whole([Catalog("a"), Catalog("b")]) is None


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("abc", [1, 2, 0]),
        ("aabb", [2, 2, 0, 0]),
        ("aab", [2, 2, 0]),
        ("aa", [1, 0]),
        ("a", [0]),
    ],
)
def test_copies_are_kept_by_another_host_where_there_is_one(hosts: str, expected: list[int]) -> None:
    assert keepers(hosts) == expected


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_groups_are_all_items_in_order_and_not_too_large(sizes: list[int], most: int) -> None:
    found = list(groups(sizes, most))
    assert [number for group in found for number in group] == list(range(len(sizes)))
    assert all(len(group) == 1 or sum(sizes[number] for number in group) <= most for group in found)
