"""Exchanges of one world, in the launcher: each of its ranks has a value for each of the others. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from elastic_runtime.engines.torch.messages import Offer, Offered
from elastic_runtime.errors import InvalidDocument

MOST = 64
"""Exchanges of one rank that are not complete, at a time."""
MOST_VALUE = 512
"""Characters of one value."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,320}", re.ASCII)
OF_SOME = "_process_set_hash_"
"""In the name of an exchange that need not be of all ranks, so that they are numbered otherwise."""


@dataclass(slots=True)
class _Exchange:
    size: int
    offers: dict[int, tuple[str, Offer]] = field(default_factory=dict)


class Exchanges:
    """Those that are not complete, by name."""

    def __init__(self) -> None:
        self._open: dict[str, _Exchange] = {}

    def offer(self, rank_id: str, said: Offer, rank_of: Mapping[str, int]) -> Iterator[tuple[str, Offered]]:
        """Whom to tell what, now.

        Raises:
            InvalidDocument: it cannot be.
        """
        size = len(said.values) + 1
        if not _NAME.fullmatch(said.name) or any(len(value) > MOST_VALUE for value in said.values):
            raise InvalidDocument("not a value of an exchange")
        if not 0 <= said.number < size <= len(rank_of):
            raise InvalidDocument("no number of a rank in an exchange")
        if OF_SOME not in said.name and (said.number, size) != (rank_of[rank_id], len(rank_of)):
            raise InvalidDocument("the number of another rank")
        waiting = [name for name, each in self._open.items() if rank_id in {who for who, _ in each.offers.values()}]
        if len(waiting) >= MOST and said.name not in waiting:
            raise InvalidDocument(f"more than {MOST} exchanges are not complete")
        exchange = self._open.setdefault(said.name, _Exchange(size))
        if exchange.size != size or exchange.offers.get(said.number, (rank_id, said))[0] != rank_id:
            raise InvalidDocument("the exchange of other ranks")
        exchange.offers[said.number] = (rank_id, said)
        if len(exchange.offers) < size:
            return
        del self._open[said.name]
        offers = sorted(exchange.offers.items())
        for number, (who, _) in offers:
            row = tuple(each.values[number - (other < number)] for other, (_, each) in offers if other != number)
            yield who, Offered(said.world, said.name, number, row)
