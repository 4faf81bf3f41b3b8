"""What each run of the list has cost so far: its machines' seconds by the price book of its task, or the deployment's.

Unlike the page of a run, it asks no cloud for its prices of the hour.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from decimal import Decimal
from time import monotonic

from elastic_runtime.errors import InvalidSettings
from elastic_runtime.prices.book import Price
from elastic_runtime.run.status import MAX_USAGE, Usage
from elastic_training.cost.bill import bill
from elastic_training.cost.price_book import named_book, read_book

FRESH = 60.0
"""Seconds after which a price book is read again."""
MOST_BOOKS = 100
"""Price books that are remembered."""


class Spending:
    """Price books as they were lately. For threads."""

    def __init__(self) -> None:
        self._books: dict[str, tuple[float, Mapping[str, Price] | None]] = {}
        self._lock = threading.Lock()

    def cost(self, usage: Iterable[Usage], given: str | None) -> Decimal | None:
        """In dollars; None: nothing of it has a price.

        Args:
            usage: seconds by kind of machine.
            given: the task's ``price_book``.
        """
        book = self._book(named_book(given))
        made = bill(tuple(usage)[:MAX_USAGE], book) if book else None
        return made.cost if made and made.priced else None

    def _book(self, name: str) -> Mapping[str, Price] | None:
        with self._lock:
            until, book = self._books.get(name, (0.0, None))
            if monotonic() < until:
                return book
            try:
                book = read_book(name)
            except InvalidSettings:  # Said on the page of each run that has it.
                book = None
            if len(self._books) >= MOST_BOOKS:
                self._books.clear()
            self._books[name] = (monotonic() + FRESH, book)
            return book
